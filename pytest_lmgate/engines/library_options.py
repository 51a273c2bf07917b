"""The options that a library's class knows, read from its code, and names that are nearly one of them."""

from __future__ import annotations

import inspect
import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from types import CodeType
from typing import Any

from rapidfuzz.distance import OSA


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
