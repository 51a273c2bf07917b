"""Which characters tokens stand for, how much of a text targets cover, and requests that are read together."""

import re
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_lmgate.arrays import Floats
from pytest_lmgate.data.corpus import Corpus, TextSizes
from pytest_lmgate.windows.protocols import WindowPlan, plan_windows, tokenize
from pytest_lmgate.windows.requests import Request, TargetPlaces, read_once, scored_sizes
from pytest_lmgate.windows.tokens import Placed, Streams, TokenizerFacts, TokenSpans
from tests.windows.documents import windowing

NONE = np.zeros(0, dtype=np.int64)
LETTERS = TokenizerFacts(lambda text, special: list(map(ord, text)), bos=1, decode=chr)


def spelled(text: str, facts: TokenizerFacts, *, special: bool = False) -> tuple[str, list[str]]:
    ids, spans = facts.cut(text, special=special)
    found = TargetPlaces([ids], [spans], [ids], NONE, NONE, facts).spelling(0)
    return found.text, [found.text[begin:end] for begin, end in zip(found.begins, found.ends, strict=True)]


def test_tokens_that_make_up_one_character_are_spelled_as_that_character() -> None:
    placed = Placed([5, 200, 201, 202, 6], [0, 1, 1, 1, 2], [1, 2, 2, 2, 3])
    facts = TokenizerFacts(lambda text, special: placed.ids, placed=lambda text, special: placed)
    assert spelled("a한b", facts) == ("a한b", ["a", "한", "한", "한", "b"])


def test_without_offsets_tokens_are_spelled_one_by_one() -> None:
    words = {1: "one", 2: " two", 3: " three"}
    facts = TokenizerFacts(lambda text, special: [1, 2, 3], decode=words.__getitem__)
    assert facts.cut("one two three")[1] is not None
    assert spelled("one two three", facts) == ("one two three", ["one", " two", " three"])
    # Of a text that they do not spell nobody knows which characters they are of.
    assert facts.cut("one two  three")[1] is None
    assert spelled("one two  three", facts) == ("one two three", ["one", " two", " three"])


def covered(text: str, begins: Sequence[int], ends: Sequence[int], first: int, end: int | None = None) -> list[float]:
    """Words, characters and bytes of a text's tokens from the one numbered `first` on."""
    spans = TokenSpans(text, np.array(begins), np.array(ends))
    streams = Streams([np.arange(len(begins))], sizes=[TextSizes.of(text)], spans=[spans])
    begin, ends = np.array([first]), np.array([streams.lengths[0] if end is None else end])
    plan = WindowPlan(np.array([0]), begin, ends, begin, np.zeros(1, dtype=bool))
    return scored_sizes(streams, plan)[0].tolist()


@pytest.mark.parametrize(
    ("text", "begins", "ends", "first", "expected"),
    [
        # Two words of six letters in tokens of three: the first token is half a word.
        ("abcdef ghijkl", [0, 3, 6, 10], [3, 6, 10, 13], 1, [1.5, 10, 10]),
        # Each word is one, however long it is.
        ("a bcd", [0, 2, 3], [1, 3, 5], 1, [1, 4, 4]),
        # Three tokens of a byte each make one character of three bytes; the first is not scored.
        ("한b", [0, 0, 0, 1], [1, 1, 1, 2], 1, [2 / 3 * 0.5 + 0.5, 1 + 2 / 3, 3]),
        # Spaces that are in no token belong to the token behind them, at the end to the last one.
        (" ab  cd ", [1, 5], [3, 7], 1, [1 + 1, 5, 5]),
        # A token of a space whose offsets were trimmed to nothing, as by transformers' ByteLevel.
        ("a  b", [0, 2, 3], [1, 2, 4], 1, [1, 3, 3]),
        # An empty piece before (behind) a text that begins (ends) with white space counts as the harness counts it.
        (" a b ", [0, 2, 4], [2, 4, 5], 1, [1 + 1, 3, 3]),
        (" \n ", [0, 1, 2], [1, 2, 3], 1, [2 * 2 / 3, 2, 2]),
        # A token that reaches into the next one's character, as a merge of "a" with the first byte of "한".
        ("a한", [0, 1], [2, 2], 1, [0.25, 0.5, 1.5]),
        # A special token behind the text has no character.
        ("ab", [0, 1, 0], [1, 2, 0], 1, [0.5, 1, 1]),
        ("é𝄞", [0, 1], [1, 2], 1, [0.5, 1, 4]),
    ],
)
def test_what_targets_cover_by_hand(
    text: str, begins: list[int], ends: list[int], first: int, expected: list[float]
) -> None:
    assert covered(text, begins, ends, first) == pytest.approx(expected, abs=1e-6)


@given(st.text(" \nabcé한\u2003", min_size=2, max_size=30), st.data())
def test_the_parts_of_a_text_add_up_to_what_the_harness_counts(text: str, data: st.DataObject) -> None:
    cuts = sorted(data.draw(st.sets(st.integers(1, len(text) - 1), min_size=1, max_size=8)))
    begins, ends = [0, *cuts], [*cuts, len(text)]
    parts = [covered(text, begins, ends, at, at + 1) for at in range(len(begins))]
    whole = [len(re.split(r"\s+", text)), len(text), len(text.encode())]
    assert np.sum(parts, axis=0) == pytest.approx(whole, abs=1e-5)
    own = [text[begin:end] for begin, end in zip(begins, ends, strict=True)]
    assert [part[1:] for part in parts] == [[len(each), len(each.encode())] for each in own]


@pytest.mark.parametrize("protocol", ["sliding", "disjoint", "bos-chunks", "gptq", "llama.cpp", "lm-eval", "document"])
def test_where_each_letter_is_a_token_the_scored_text_is_the_targets(protocol: str) -> None:
    corpus = Corpus("t", ("abcdefghijklm", "", "no", "x", "pqrstuvw xyz"), join="\n")
    streams = tokenize(corpus, windowing(protocol), LETTERS, model="m")
    plan = plan_windows(windowing(protocol), streams.lengths, adds_bos=False)
    found = scored_sizes(streams, plan)
    targets = np.bincount(plan.document, weights=plan.targets, minlength=len(streams.ids))
    assert found[:, 1].tolist() == found[:, 2].tolist() == targets.tolist()
    assert 0 < targets.sum() <= sum(streams.lengths)
    assert (targets.sum() == sum(streams.lengths)) == (protocol == "lm-eval")


def test_without_the_characters_of_tokens_only_a_text_that_is_scored_whole_has_a_size() -> None:
    corpus, unknown = Corpus("t", ("ab cd", "ef")), TokenizerFacts(LETTERS.encode, bos=1)
    for protocol in ("document", "lm-eval"):
        streams = tokenize(corpus, windowing(protocol), unknown, model="m")
        found = scored_sizes(streams, plan_windows(windowing(protocol), streams.lengths))
        assert (None if found is None else found.tolist()) == (
            None if protocol == "document" else [[2, 5, 5], [1, 2, 2]]
        )


# Requests that read the same tokens are joined, and each gets its own numbers back.


TOKENS = st.lists(st.integers(0, 2), min_size=1, max_size=3)


def request(ids: list[int], targets: list[int], source: list[int] | None = None) -> Request:
    at = np.arange(len(ids) - len(targets), len(ids))
    return Request(np.array(ids), at, np.array(targets), None if source is None else np.array(source))


def score(requests: list[Request]) -> list[Floats]:
    """Numbers that depend on all that a request reads and scores."""
    return [
        sum(each.ids * 3.0 ** np.arange(len(each.ids))) + 100.0 * each.at + 1000.0 * each.targets for each in requests
    ]


@given(st.lists(st.tuples(TOKENS, st.integers(1, 3)), min_size=1, max_size=12))
def test_each_request_gets_the_numbers_that_it_has_alone(drawn: list[tuple[list[int], int]]) -> None:
    requests = [request(ids, list(range(min(targets, len(ids))))) for ids, targets in drawn]
    joined, parted = read_once(requests)
    assert len(joined) == len({tuple(ids) for ids, _ in drawn})
    for found, expected in zip(parted(score(joined)), score(requests), strict=True):
        np.testing.assert_array_equal(found, expected)


def test_requests_with_a_source_stay_as_they_are() -> None:
    requests = [request([1, 2], [3], [5]), request([1, 2], [3], [6])]
    joined, parted = read_once(requests)
    assert joined == requests
    assert [found.tolist() for found in parted(score(joined))] == [found.tolist() for found in score(requests)]
