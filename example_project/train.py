"""Trains the small causal model of this repository on weather bulletins and writes models/float.

    python train.py

takes less than two minutes on one core. Seeds, order and thread count are fixed: on the same versions of the
libraries and the same kind of processor it writes the same bytes again.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from functools import partial
from itertools import cycle, islice
from pathlib import Path

import torch
from tokenizers import Tokenizer
from torch.nn.functional import cross_entropy
from transformers import LlamaConfig, LlamaForCausalLM
from weather.corpus import draw_bulletins
from weather.optimum import best_perplexity
from weather.tokenizer import BOS, EOS, PAD, save_tokenizer, word_tokenizer
from weather.wording import END

SEED = 1
"""Seed of the training text and of the weights; `weather.corpus.HELD_OUT_SEED` is another."""
CONTEXT = 256
BATCH = 12
STEPS = 1000
WARM_UP = 50
PEAK_RATE = 1e-2
NO_TARGET = -100


def untrained(tokenizer: Tokenizer, spread: float = 0.02) -> LlamaForCausalLM:
    """Return the model to train, and make torch repeat itself from here on: seed, threads and algorithms."""
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)
    torch.manual_seed(SEED)
    model = small_llama(tokenizer, spread)
    print(f"{model.num_parameters():,} parameters, {tokenizer.get_vocab_size()} tokens")
    return model


def small_llama(tokenizer: Tokenizer, spread: float = 0.02) -> LlamaForCausalLM:
    """Return a model with random weights of that standard deviation."""
    config = LlamaConfig(
        vocab_size=tokenizer.get_vocab_size(),
        hidden_size=64,
        intermediate_size=160,
        num_hidden_layers=3,
        num_attention_heads=4,
        num_key_value_heads=4,
        max_position_embeddings=CONTEXT,
        tie_word_embeddings=True,
        bos_token_id=tokenizer.token_to_id(BOS),
        eos_token_id=tokenizer.token_to_id(EOS),
        pad_token_id=tokenizer.token_to_id(PAD),
        initializer_range=spread,
    )
    return LlamaForCausalLM(config)


def token_rows(tokenizer: Tokenizer) -> Iterator[list[int]]:
    """Yield rows of `CONTEXT` tokens of ever new text.

    Three rows of four are cut from running text wherever they fall, as a sliding window will be. The fourth holds
    bulletins each between BOS and EOS, for reading and writing one at a time.
    """
    bulletins = draw_bulletins(SEED)
    shapes = (("", END), ("", END), ("", END), (BOS, EOS))
    rest: dict[tuple[str, str], list[int]] = {shape: [] for shape in shapes}
    for shape in cycle(shapes):
        before, after = shape
        ids = rest[shape]
        while len(ids) < CONTEXT:
            ids += tokenizer.encode(f"{before}{next(bulletins).text}{after}").ids
        yield ids[:CONTEXT]
        # Running text goes on where it was cut; bulletins between BOS and EOS begin again in each row.
        rest[shape] = ids[CONTEXT:] if after == END else []


def batches(rows: Iterator[list[int]]) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """Yield batches of rows as what is read and what is to be predicted: the very same tokens."""
    while True:
        ids = torch.tensor([next(rows) for _ in range(BATCH)])
        yield ids, ids


def rate_at(step: int, steps: int) -> float:
    """Return the share of the peak learning rate at a step of so many: a linear warm-up, then half a cosine."""
    if step < WARM_UP:
        return (step + 1) / WARM_UP
    return 0.02 + 0.98 * (1 + math.cos(math.pi * (step - WARM_UP) / (steps - WARM_UP))) / 2


def train(model: LlamaForCausalLM, batches: Iterator[tuple[torch.Tensor, torch.Tensor]], steps: int) -> None:
    """Train in place, with a line of progress now and then.

    Args:
        model: The model.
        batches: Pairs of token ids and targets, both ``[rows, tokens]``; each position predicts the next one's target,
            and a target of `NO_TARGET` counts for nothing.
        steps: Batches to train on.
    """
    optimizer = torch.optim.AdamW(model.parameters(), lr=PEAK_RATE, betas=(0.9, 0.98), weight_decay=0.01)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, partial(rate_at, steps=steps))
    for step, (ids, targets) in enumerate(islice(batches, steps)):
        logits = model(ids).logits
        loss = cross_entropy(logits[:, :-1].flatten(0, 1), targets[:, 1:].flatten(), ignore_index=NO_TARGET)
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        if step % 100 == 99:
            print(f"step {step + 1:4}: training perplexity {math.exp(loss.item()):.3f}", flush=True)


def main() -> None:
    """Train and save."""
    tokenizer = word_tokenizer()
    model = untrained(tokenizer)
    print(f"best possible perplexity {best_perplexity():.3f}")
    train(model, batches(token_rows(tokenizer)), STEPS)
    folder = Path(__file__).parent / "models" / "float"
    model.save_pretrained(folder)
    save_tokenizer(folder, CONTEXT)


if __name__ == "__main__":
    main()
