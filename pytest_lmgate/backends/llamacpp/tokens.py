"""A GGUF's own tokens, or those of a tokenizer's folder, which must agree with the GGUF on every text that is read."""

from __future__ import annotations

__all__ = ["Tokens", "checked_facts", "own_tokens", "tokens_of_folder"]

import ctypes
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from pytest_lmgate.backends.llamacpp.library import Weights
from pytest_lmgate.data.tokenization.tokens import Placed, TokenizerFacts
from pytest_lmgate.errors import ModelError

_NONE = -1  # LLAMA_TOKEN_NULL
_SHOWN = 40


@dataclass(frozen=True)
class Tokens:
    """The tokens of a model.

    Attributes:
        facts: What the planning needs to know.
        text: Returns the text of generated tokens, without special tokens.
        ends: Returns whether a token ends a text.
    """

    facts: TokenizerFacts
    text: Callable[[Sequence[int]], str]
    ends: Callable[[int], bool]


def own_tokens(weights: Weights) -> Tokens:
    """Return the tokens of the GGUF's own vocabulary.

    Special tokens that a text names, as ``<s>``, are read as such, as tokenizers of transformers do. Its vocabulary is
    not told: converters write names of their own for unused and added tokens, so that two models are compared by the
    ids of the text.
    """
    llama, vocabulary = weights.llama, weights.vocabulary

    def encode(text: str, special: bool) -> list[int]:
        written = text.encode("utf-8", "surrogatepass")
        room = len(written) + 8
        while True:
            ids = (llama.llama_token * room)()
            count = llama.llama_tokenize(vocabulary, written, len(written), ids, room, special, True)
            if count >= 0:
                return list(ids[:count])
            room = -count

    def piece(token: int, special: bool) -> bytes:
        room = 64
        while True:
            buffer = ctypes.create_string_buffer(room)
            count = llama.llama_token_to_piece(vocabulary, token, buffer, room, 0, special)
            if count >= 0:
                return buffer.raw[:count]
            room = -count

    # Byte by byte: llama_detokenize takes spaces out that the model wrote.
    puts_space = llama.llama_vocab_type(vocabulary) == llama.LLAMA_VOCAB_TYPE_SPM
    puts_space = puts_space and weights.metadata("tokenizer.ggml.add_space_prefix") != "false"

    def text(ids: Sequence[int]) -> str:
        written = b"".join(piece(token, False) for token in ids)
        return (written.removeprefix(b" ") if puts_space else written).decode(errors="replace")

    def shown(token: int) -> str:
        return piece(token, True).decode(errors="replace")

    named = {
        name: token
        for name in ("bos", "eos", "eot", "sep", "pad", "mask")
        if (token := int(getattr(llama, f"llama_vocab_{name}")(vocabulary))) != _NONE
    }
    facts = TokenizerFacts(
        encode,
        named.get("bos"),
        named.get("eos"),
        bool(llama.llama_vocab_get_add_bos(vocabulary)),
        shown,
        special=frozenset(named.values()),
        chat=_chat(weights, {name: shown(token) for name, token in named.items()}),
    )
    return Tokens(facts, text, lambda token: bool(llama.llama_vocab_is_eog(vocabulary, token)))


def tokens_of_folder(folder: Path, weights: Weights) -> Tokens:
    """Return the tokens of a tokenizer's folder; a text that it cuts otherwise than the GGUF is an error.

    Raises:
        ModelError: The tokenizer cannot be loaded, or puts other special tokens around a text than the GGUF.
    """
    from pytest_lmgate.backends.hf.models.loading import decoded, load_tokenizer, tokenizer_facts

    tokenizer = load_tokenizer(weights.name, folder)
    given, own = tokenizer_facts(tokenizer), own_tokens(weights)

    def check(ids: Sequence[int], text: str, special: bool) -> None:
        _require_same(ids, own.facts.encode(text, special), given, own, folder=folder, model=weights.name)

    facts = checked_facts(given, check)
    facts.encode("a", True)
    return Tokens(facts, partial(decoded, tokenizer), own.ends)


def checked_facts(given: TokenizerFacts, check: Callable[[Sequence[int], str, bool], None]) -> TokenizerFacts:
    """Return a tokenizer whose every text is checked.

    Args:
        given: The tokenizer.
        check: Given token ids, their text and whether special tokens were added; raises where the model has others.
    """

    def encode(text: str, special: bool) -> Sequence[int]:
        ids = list(given.encode(text, special))
        check(ids, text, special)
        return ids

    def placed(text: str, special: bool) -> Placed | None:
        found = given.placed(text, special)
        if found is not None:
            check(found.ids, text, special)
        return found

    return replace(given, encode=encode, placed=placed, target=None)


def _require_same(
    ids: Sequence[int], its: Sequence[int], given: TokenizerFacts, own: Tokens, *, folder: Path, model: str
) -> None:
    if list(ids) == list(its):
        return
    pairs = zip(ids, its, strict=False)
    at = next((at for at, (a, b) in enumerate(pairs) if a != b), min(len(ids), len(its)))
    before = own.text(its[:at])[-_SHOWN:]
    where = f"after {before!r}" if before else "at the beginning"
    raise ModelError(
        f"model {model!r}: the tokenizer in {folder} and the GGUF cut a text into different tokens: token {at} {where} "
        f"is {_shown(ids, at, given)} in the folder and {_shown(its, at, own.facts)} in the GGUF; give the folder that "
        "the GGUF was made from, or leave tokenizer: out to use the GGUF's own tokens"
    )


def _shown(ids: Sequence[int], at: int, facts: TokenizerFacts) -> str:
    return f"{ids[at]} ({facts.decode(ids[at])!r})" if at < len(ids) else "none"


def _chat(weights: Weights, special: Mapping[str, str]) -> Callable[[Sequence[Mapping[str, str]]], str] | None:
    template = weights.metadata("tokenizer.chat_template")
    if template is None:
        return None

    def chat(messages: Sequence[Mapping[str, str]]) -> str:
        from llama_cpp.llama_chat_format import Jinja2ChatFormatter

        formatter: Any = Jinja2ChatFormatter(template, special.get("eos", ""), special.get("bos", ""))
        return str(formatter(messages=list(messages)).prompt)

    return chat
