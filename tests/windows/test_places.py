"""How the tokens of a text are spelled."""

from collections.abc import Sequence

import numpy as np

from pytest_lmgate.windows.places import TargetPlaces
from pytest_lmgate.windows.tokens import Placed, TokenizerFacts

NONE = np.zeros(0, dtype=np.int64)


def spelled(text: str, ids: Sequence[int], facts: TokenizerFacts) -> tuple[str, list[str]]:
    array = np.array(ids)
    found = TargetPlaces([text], [array], [array], NONE, NONE, facts).spelling(0)
    return found.text, [found.text[begin:end] for begin, end in zip(found.begins, found.ends, strict=True)]


def test_tokens_that_make_up_one_character_are_spelled_as_that_character() -> None:
    ids, starts = [5, 200, 201, 202, 6], [0, 1, 1, 1, 2]
    facts = TokenizerFacts(lambda text, special: ids, placed=lambda text, special: Placed(ids, starts))
    assert spelled("a한b", ids, facts) == ("a한b", ["a", "한", "한", "한", "b"])


def test_special_tokens_around_a_text_have_no_character_of_it() -> None:
    def encode(text: str, special: bool) -> list[int]:
        return [1, 5, 6, 2] if special else [5, 6]

    facts = TokenizerFacts(
        encode,
        placed=lambda text, special: Placed(encode(text, special), [0, 0, 3, 0] if special else [0, 3]),
        special=frozenset((1, 2)),
    )
    assert spelled("ab cd", [1, 5, 6, 2], facts) == ("ab cd", ["", "ab ", "cd", ""])


def test_without_offsets_tokens_are_spelled_one_by_one() -> None:
    words = {1: "one", 2: " two", 3: " three"}
    facts = TokenizerFacts(lambda text, special: [1, 2, 3], decode=words.__getitem__)
    assert spelled("one two three", [1, 2, 3], facts) == ("one two three", ["one", " two", " three"])


def test_offsets_of_other_tokens_than_those_measured_do_not_count() -> None:
    """As where a convention reads a text line by line, which the tokenizer would cut otherwise as a whole."""
    facts = TokenizerFacts(
        lambda text, special: [1, 1, 1],
        placed=lambda text, special: Placed([1, 1, 1], [0, 1, 2]),
        decode=lambda id: f"<{id}>",
    )
    assert spelled("abc", [1, 2, 1], facts) == ("<1><2><1>", ["<1>", "<2>", "<1>"])
