"""What every engine may need of transformers: a tokenizer, its facts, and the options that a class of a library knows.

transformers is imported when a tokenizer is loaded. The options of a class are read from its code.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import json
import re
import warnings
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from types import CodeType
from typing import Any

import numpy as np
from rapidfuzz.distance import OSA

from pytest_lmgate.engines.checkpoints import TokenizerFolder
from pytest_lmgate.engines.registry import library_warnings
from pytest_lmgate.errors import ConfigError, ModelError
from pytest_lmgate.identity import is_library
from pytest_lmgate.windows.tokens import Placed, TokenizerFacts, require_variables

# A text's unknown words are its own; these are around or between texts, or are the mask itself.
_SPECIAL = ("bos_token_id", "eos_token_id", "cls_token_id", "sep_token_id", "pad_token_id", "mask_token_id")


def tokenizer_facts(tokenizer: Any) -> TokenizerFacts:
    """Return the planner's view of a tokenizer."""
    # The library's own tokenizers have an argument that silences them; others may not. `quiet` empties the caches of
    # all loggers, which takes longer than to encode a short text.
    silently, how = (_without_warnings, {"verbose": False}) if is_library(type(tokenizer).__module__) else (quiet, {})

    def encode(text: str, special: bool) -> Sequence[int]:
        try:
            with silently():
                ids: Sequence[int] = tokenizer(text, add_special_tokens=special, **how)["input_ids"]
        except Exception as error:
            expected = "is called as tokenizer(text, add_special_tokens=...) and returns a mapping with input_ids"
            raise _failed(tokenizer, error, expected) from error
        return ids

    @functools.cache
    def decode(token: int) -> str:
        try:
            with silently():
                return str(tokenizer.decode(token))
        except Exception as error:
            raise _failed(tokenizer, error, "returns a token's text by tokenizer.decode(id)") from error

    def placed(text: str, special: bool) -> Placed | None:
        if not getattr(tokenizer, "is_fast", False):
            return None
        with silently():
            encoded = tokenizer(text, add_special_tokens=special, return_offsets_mapping=True, **how)
        ids, offsets = encoded["input_ids"], np.array(encoded["offset_mapping"], dtype=np.int64).reshape(-1, 2)
        return Placed(ids, *offsets.T) if len(ids) == len(offsets) else None

    def text(ids: Sequence[int]) -> str | None:
        try:
            return decoded(tokenizer, ids, skip_special=False)
        except Exception:  # of a tokenizer of the user's, which needs no such method
            return None

    def target(text: str) -> Sequence[int]:
        with silently():
            ids: Sequence[int] = tokenizer(text_target=text, **how)["input_ids"]
        return ids

    def chat(messages: Sequence[Mapping[str, str]], **variables: Any) -> str:
        goes_on = messages[-1]["role"] == "assistant"
        if variables:
            require_variables(tokenizer.get_chat_template(), variables)
        with silently():
            return str(
                tokenizer.apply_chat_template(
                    list(messages), tokenize=False, add_generation_prompt=not goes_on, continue_final_message=goes_on,
                    **variables,
                )
            )  # fmt: skip

    bos, eos, mask = (getattr(tokenizer, f"{which}_token_id", None) for which in ("bos", "eos", "mask"))
    special = (getattr(tokenizer, name, None) for name in _SPECIAL)
    return TokenizerFacts(
        encode,
        bos,
        eos,
        bos is not None and list(encode("a", True))[:1] == [bos],
        decode,
        placed,
        text,
        mask=mask,
        special=frozenset(token for token in special if token is not None),
        target=target,
        chat=chat if getattr(tokenizer, "chat_template", None) else None,
        vocabulary=getattr(tokenizer, "get_vocab", None),
    )


def _failed(tokenizer: Any, error: Exception, expected: str) -> ModelError:
    kind, what = type(tokenizer).__name__, f"{type(error).__name__}: {error}"
    return ModelError(f"the tokenizer {kind} failed: {what}; expected one that {expected}")


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Silence the libraries' progress bars and warnings: under ``-W error`` a deprecation would fail a gate."""
    from transformers.utils import logging

    verbosity = logging.get_verbosity()
    logging.set_verbosity_error()
    try:
        with without_progress_bars(), _without_warnings():
            yield
    finally:
        logging.set_verbosity(verbosity)


@contextlib.contextmanager
def without_progress_bars() -> Iterator[None]:
    from transformers.utils import logging

    bars = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        if bars:
            logging.enable_progress_bar()


@contextlib.contextmanager
def _without_warnings() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def facts_of(folder: TokenizerFolder) -> TokenizerFacts:
    """Return the planner's view of the tokenizer in a folder, which refuses chats if that holds two templates."""
    facts, files = tokenizer_facts(load_tokenizer(folder)), ("chat_template.jinja", "tokenizer_config.json")

    def refuse(*_: Any, **__: Any) -> str:
        raise ValueError(
            f"{' and '.join(files)} in {folder.path} hold two templates: remove the one that is out of date"
        )

    try:
        written, stored = (folder.path.joinpath(file).read_text("utf-8") for file in files)
        other = json.loads(stored).get("chat_template", written)
    except (OSError, ValueError, AttributeError):  # a library says what is wrong, or reads one file
        return facts
    is_same = not isinstance(other, str) or other.strip() == written.strip() or "chat_template" in folder.options
    return facts if is_same else replace(facts, chat=refuse)


def load_tokenizer(folder: TokenizerFolder) -> Any:
    import transformers

    try:
        with without_progress_bars(), library_warnings():
            tokenizer = transformers.AutoTokenizer.from_pretrained(
                str(folder.path), trust_remote_code=folder.trust_remote_code, local_files_only=True, **folder.options
            )
    except Exception as error:
        raise ModelError(
            f"model {folder.name!r}: no usable tokenizer in {folder.path}: {type(error).__name__}: {error}; save one "
            "there with tokenizer.save_pretrained, or set tokenizer: to the folder that has it"
        ) from error
    if unknown := unknown_options((type(tokenizer), transformers.AutoTokenizer), folder.options):
        raise ConfigError(
            f"models.{folder.name}.tokenizer.{unknown[0]}: {type(tokenizer).__name__} has no such option; remove it"
        )
    if folder.options.get("use_fast", is_fast := getattr(tokenizer, "is_fast", False)) != is_fast:
        raise ConfigError(
            f"models.{folder.name}.tokenizer.use_fast: this transformers loads {type(tokenizer).__name__} whatever it "
            "says; remove it"
        )
    known = {getattr(tokenizer, f"{which}_token_id", None) for which in ("bos", "eos", "cls", "sep")}
    frames = [tokenizer(**{text: ""})["input_ids"] for text in ("text", "text_target") if folder.options]
    if any(tokenizer.unk_token_id in frame and tokenizer.unk_token_id not in known for frame in frames):
        given = ", ".join(f"{key}: {value}" for key, value in folder.options.items())
        raise ConfigError(
            f"models.{folder.name}.tokenizer: with {given}, {type(tokenizer).__name__} puts {tokenizer.unk_token} at "
            "every text, which stands for what it does not know: write a language as its own files name it, as in de_DE"
        )
    return tokenizer


def decoded(tokenizer: Any, ids: Sequence[int], skip_special: bool = True) -> str:
    """Return the text of token ids with every space that the model wrote, which some tokenizers clean up."""
    how = {"clean_up_tokenization_spaces": False} if hasattr(tokenizer, "clean_up_tokenization_spaces") else {}
    with _without_warnings():
        return str(tokenizer.decode(list(ids), skip_special_tokens=skip_special, **how))


# The options that a library's class knows, and names that are nearly one of them.


def unknown_options(kinds: Iterable[type], given: Iterable[str]) -> list[str]:
    """Return the options that no code of some classes mentions."""
    names = {name for kind in kinds for name in names_in(kind)}
    return sorted(set(given) - names)


def near_misses(
    given: Mapping[str, Any], names: Collection[str], options: Collection[str], where: str
) -> Iterator[tuple[str, str]]:
    """Yield each key that is not among a class's names, and an option that it lacks whose name is alike."""
    absent = sorted(set(options) - given.keys())
    for key in given:
        # Special tokens have names that are alike: eos, eoi.
        if key not in names and not key.endswith("_token_id"):
            yield from ((f"{where}{key}", option) for option in absent if are_alike(key, option))


def are_alike(one: str, other: str) -> bool:
    """Whether two names differ by a letter or, if they are long, by two; or by abbreviations, as eps and epsilon."""
    words, others = (re.split("[_-]", name.lower()) for name in (one, other))
    letters = "".join(words)
    wrong = (len(letters) > 4) + (len(letters) > 11)
    if OSA.distance(letters, "".join(others), score_cutoff=wrong) <= wrong:
        return True
    pairs = zip(words, others, strict=False)
    return len(words) == len(others) > 1 and all(a and b and (a.startswith(b) or b.startswith(a)) for a, b in pairs)


def options_of(kind: type) -> set[str]:
    """Return the names of a class's fields and of the arguments that make it."""
    options: set[str] = set()
    for base in kind.__mro__[:-1]:
        options |= inspect.get_annotations(base).keys() | getattr(base, "attribute_map", {}).keys()
        if (init := vars(base).get("__init__")) is not None:
            options |= inspect.signature(init).parameters.keys()
    return options | {"rope_scaling", "rope_theta"} if "rope_parameters" in options else options


def names_in(kind: Any) -> set[str]:
    """Return every name and short text that the code of a class or function mentions, so also its options."""
    if not isinstance(kind, type):
        code = getattr(inspect.unwrap(kind), "__code__", None)
        return _names_of_code(code) if code else set()
    names = options_of(kind)
    for base in kind.__mro__[:-1]:
        for name, member in vars(base).items():
            names.add(name)
            if isinstance(member, list | tuple):
                names |= {text for text in member if isinstance(text, str)}
            code = getattr(member, "fget", None) or getattr(member, "__func__", member)
            if inspect.isroutine(code):
                names |= names_in(code)
    return names


def _names_of_code(code: CodeType) -> set[str]:
    names = {*code.co_varnames, *code.co_names}
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            names |= _names_of_code(constant)
        texts = constant if isinstance(constant, tuple | frozenset) else (constant,)
        names |= {text for text in texts if isinstance(text, str)}
    return names
