"""What is measured: a model with random weights, a word-level tokenizer and a text, made from one seed.

Random weights cost exactly what trained ones cost, and nothing has to be fetched. Small models are mostly head or
mostly body, so there are two shapes: that of GPT-2 with few layers, and that of SmolLM2-135M.
"""

from __future__ import annotations

__all__ = [
    "CONTEXT",
    "SHAPES",
    "VOCABULARY",
    "Subject",
    "environment",
    "load_folder",
    "load_model",
    "make_subject",
    "word_tokenizer",
]

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

VOCABULARY, CONTEXT, LAYERS, WIDTH, HEADS = 50_257, 1024, 4, 256, 4
SHAPES = {
    "head": "4 layers, 256 wide, vocabulary 50,257: two thirds of the work is the head's",
    "body": "30 layers, 576 wide, tied head of 49,152, as SmolLM2-135M: four fifths of the work are the body's",
}
_END_OF_TEXT = "<|endoftext|>"


@dataclass(frozen=True)
class Subject:
    """A folder that holds everything.

    Attributes:
        folder: The folder; ``model/`` is a checkpoint.
        tokens: Tokens in the text.
    """

    folder: Path
    tokens: int

    @property
    def model(self) -> Path:
        """The checkpoint with its tokenizer."""
        return self.folder / "model"

    @property
    def text(self) -> Path:
        """The text, one word per token."""
        return self.folder / "text.txt"


def make_subject(folder: Path, *, tokens: int, seed: int = 0, shape: str = "head") -> Subject:
    """Write the model, the tokenizer and the text into `folder`.

    Args:
        folder: An empty folder.
        tokens: Length of the text; its words follow Zipf's law over the whole vocabulary.
        seed: Decides weights and text.
        shape: One of `SHAPES`.
    """
    import torch

    subject = Subject(folder, tokens)
    torch.manual_seed(seed)
    model = _model(shape)
    model.save_pretrained(subject.model)
    words = [f"w{number:x}" for number in range(model.config.vocab_size - 1)]
    word_tokenizer(words).save_pretrained(subject.model)
    chance = 1 / np.arange(1, len(words) + 1)
    drawn = np.random.default_rng(seed).choice(len(words), size=tokens, p=chance / chance.sum())
    text = " ".join(words[number] for number in drawn)
    subject.text.write_text(text, encoding="utf-8")
    return subject


def _model(shape: str) -> Any:
    from transformers import GPT2Config, GPT2LMHeadModel, LlamaConfig, LlamaForCausalLM

    if shape == "head":
        ends = dict.fromkeys(("bos_token_id", "eos_token_id"), VOCABULARY - 1)
        return GPT2LMHeadModel(
            GPT2Config(vocab_size=VOCABULARY, n_positions=CONTEXT, n_embd=WIDTH, n_layer=LAYERS, n_head=HEADS, **ends)
        )
    vocabulary = 49_152
    return LlamaForCausalLM(
        LlamaConfig(
            vocab_size=vocabulary,
            hidden_size=576,
            intermediate_size=1536,
            num_hidden_layers=30,
            num_attention_heads=9,
            num_key_value_heads=3,
            max_position_embeddings=2 * CONTEXT,
            tie_word_embeddings=True,
            bos_token_id=vocabulary - 1,
            eos_token_id=vocabulary - 1,
        )
    )


def environment(subject: Subject, threads: int) -> dict[str, str]:
    """The environment of every process: so many threads, no network, and compiled modules kept as usual.

    Where bytecode is not written, modules of an editable installation would be compiled again in every process.
    """
    env = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    return {
        **env,
        "OMP_NUM_THREADS": str(threads),
        "HF_HUB_OFFLINE": "1",
        "TOKENIZERS_PARALLELISM": "false",
        "PYTHONPYCACHEPREFIX": str(subject.folder / "bytecode"),
    }


def load_model(subject: Subject, threads: int) -> Any:
    """Load the subject's checkpoint; see `load_folder`."""
    return load_folder(subject.model, threads)


def load_folder(folder: Path, threads: int) -> Any:
    """Load a checkpoint as the plugin does, and set the number of threads.

    Returns:
        A `pytest_lmgate.engines.transformers.loading.LoadedModel` with every weight in memory.
    """
    import torch

    from pytest_lmgate.engines.checkpoints import TokenizerFolder, open_checkpoint
    from pytest_lmgate.engines.transformers.loading import load_checkpoint

    torch.set_num_threads(threads)
    loaded = load_checkpoint(
        open_checkpoint(folder, name="subject"),
        tokenizer_folder=TokenizerFolder("subject", folder),
        adapter_folder=None,
        load={},
        dtype="float32",
        device="cpu",
        trust_remote_code=False,
        pickle_weights=False,
    )
    for parameter in loaded.model.parameters():
        parameter.sum()  # weights are mapped from the file; read them now, not while the clock runs
    return loaded


def word_tokenizer(words: list[str]) -> Any:
    """Return a tokenizer with a token for each word, and one for the end of a text."""
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    vocabulary = {word: number for number, word in enumerate([*words, _END_OF_TEXT])}
    backend = Tokenizer(models.WordLevel(vocabulary, unk_token=_END_OF_TEXT))
    backend.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return PreTrainedTokenizerFast(
        tokenizer_object=backend,
        bos_token=_END_OF_TEXT,
        eos_token=_END_OF_TEXT,
        unk_token=_END_OF_TEXT,
        model_max_length=CONTEXT,
    )
