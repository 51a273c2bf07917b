"""Trains the writer of this repository, which turns a note of the weather into a bulletin, and writes models/writer.

    python train_writer.py

takes about two minutes on one core, and like train.py writes the same bytes again. The model has the shape of that
of train.py; it reads a note as a prompt and learns what follows: a bulletin, and EOS.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import torch
from tokenizers import Tokenizer
from train import CONTEXT, NO_TARGET, train, untrained
from weather.corpus import draw_bulletins
from weather.notes import prompt
from weather.quiz import held_out_questions
from weather.references import held_out_records
from weather.tokenizer import EOS, PAD, save_tokenizer, word_tokenizer

SEED = 5
"""Seed of the training records and their wording; those of the held-out files are others."""
BATCH = 24
STEPS = 1200
SPREAD = 0.1
"""Standard deviation of the first weights: near 1 / sqrt(64), for a width of 64. From the 0.02 of wide models the
writer learns later where in the note to look."""


def examples() -> Iterator[tuple[str, str]]:
    """Yield prompts with a bulletin each, none of a record that the held-out files ask for."""
    held_out = {record for record, _ in held_out_records()} | {each.record for each in held_out_questions()}
    for bulletin in draw_bulletins(SEED):
        if bulletin.record not in held_out:
            yield prompt(bulletin.record), bulletin.text + EOS


def batches(tokenizer: Tokenizer) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """Yield batches of examples, padded, as what is read and what is to be predicted: bulletins, not prompts."""
    drawn = examples()
    while True:
        pairs = [[tokenizer.encode(text).ids for text in next(drawn)] for _ in range(BATCH)]
        longest = max(len(asked) + len(answered) for asked, answered in pairs)
        ids = torch.full((BATCH, longest), tokenizer.token_to_id(PAD))
        targets = torch.full((BATCH, longest), NO_TARGET)
        for row, (asked, answered) in enumerate(pairs):
            end = len(asked) + len(answered)
            ids[row, :end] = torch.tensor(asked + answered)
            targets[row, len(asked) : end] = ids[row, len(asked) : end]
        yield ids, targets


def main() -> None:
    """Train and save, in float16: half the size, and the writer's texts are no worse for it."""
    tokenizer = word_tokenizer()
    model = untrained(tokenizer, SPREAD)
    train(model, batches(tokenizer), STEPS)
    folder = Path(__file__).parent / "models" / "writer"
    model.half().save_pretrained(folder)
    save_tokenizer(folder, CONTEXT)


if __name__ == "__main__":
    main()
