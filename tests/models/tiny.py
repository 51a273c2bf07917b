"""Parts of all tiny models of the tests: a Llama of one layer, a tokenizer of whole words, a folder made once."""

import os
import shutil
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import filelock


def made_once(base: Path, name: str, make: Callable[[Path], object]) -> Path:
    """Return a folder that one of the workers of xdist makes for all; whoever changes its files copies it first.

    Args:
        base: The test session's own folder, ``tmp_path_factory.getbasetemp()``.
        name: Of the folder.
        make: Fills the folder that it is given, which is renamed when it is whole.
    """
    shared = base.parent if "PYTEST_XDIST_WORKER" in os.environ else base
    folder, partial = shared / name, shared / f"{name}.partial"
    with filelock.FileLock(shared / f"{name}.lock"):
        if not folder.exists():
            shutil.rmtree(partial, ignore_errors=True)
            partial.mkdir()
            make(partial)
            partial.rename(folder)
    return folder


def tiny_llama(words: int, **config: Any) -> Any:
    """Return a Llama of one layer and two heads, in evaluation mode; torch's seed decides its weights."""
    import transformers

    known = {"num_hidden_layers": 1, "num_attention_heads": 2, "tie_word_embeddings": False}
    return transformers.LlamaForCausalLM(transformers.LlamaConfig(vocab_size=words, **(known | config))).eval()


def word_level(
    words: Sequence[str],
    *,
    template: str | None = None,
    framed_by: Mapping[str, int] | None = None,
    letters: bool = False,
    **special: str,
) -> Any:
    """Return a fast tokenizer whose tokens are words between spaces.

    Args:
        words: The vocabulary, in the order of the ids; ``unk_token`` and the other special tokens are among them.
        template: What is put around a text, as `tokenizers` writes it: ``$A </s>``.
        framed_by: Ids of the special tokens that the template names.
        letters: Whether every character is a token, in place of every word.
        special: Special tokens by the names that transformers gives them.
    """
    import tokenizers
    import transformers

    vocabulary = {word: index for index, word in enumerate(words)}
    backend = tokenizers.Tokenizer(tokenizers.models.WordLevel(vocabulary, unk_token=special["unk_token"]))
    splits = tokenizers.pre_tokenizers
    backend.pre_tokenizer = splits.Split("", "isolated") if letters else splits.WhitespaceSplit()
    if letters:
        backend.decoder = tokenizers.decoders.Fuse()
    if template is not None:
        backend.post_processor = tokenizers.processors.TemplateProcessing(
            single=template, special_tokens=list((framed_by or {}).items())
        )
    return transformers.PreTrainedTokenizerFast(tokenizer_object=backend, **special)
