"""Writing token by token, for engines that do not do so themselves: the likeliest token, samples, stops, damage."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from pytest_lmgate.engines.writing import chosen, drawn, ended_text, row_seed, sampling, written
from pytest_lmgate.errors import NonFiniteError
from pytest_lmgate.settings.gate_options import GenerationSettings
from pytest_lmgate.windows.tokens import PromptIds

PROMPT = PromptIds(0, "two", (1, 2))
SHARES = np.array([0.5, 0.3, 0.15, 0.05])


def how(**settings: Any) -> GenerationSettings:
    return GenerationSettings(**{"max_new_tokens": 4, **settings})


def count_on(tokens: Sequence[int]) -> Any:
    """Logits of a model that counts from the last token that it read."""
    return np.eye(12)[tokens[-1] + 1]


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({}, ("3 4 5 6", 4, False)),
        ({"max_new_tokens": 20}, ("3 4 5 6 7 8", 7, True)),  # 9 is the end, and counts
        ({"max_new_tokens": 20, "stop": ("5",)}, ("3 4 ", 3, True)),
    ],
)
def test_the_likeliest_token_is_written_until_the_end_a_stop_string_or_the_last(
    settings: dict[str, Any], expected: tuple[str, int, bool]
) -> None:
    found = written(
        count_on,
        PROMPT,
        how(**settings),
        decode=lambda ids, _: " ".join(map(str, ids)),
        ends=lambda id_: id_ == 9,
        model="m",
    )
    assert found == expected


# Tokens as a tokenizer has them: 7 is special, 8 is the end, 4 and 5 are halves of a character.
PIECES = {0: b"a", 1: b" b", 2: b"cd", 4: b"\xc3", 5: b"\xa9", 7: b"<|x|>", 8: b"</s>"}


def decode(ids: Sequence[int], skip_special: bool) -> str:
    return b"".join(PIECES[id_] for id_ in ids if id_ < 7 or not skip_special).decode(errors="replace")


@pytest.mark.parametrize(
    ("ids", "stops", "expected"),
    [
        ((0, 7, 1), (), ("a b", 3, False)),
        ((0, 7, 1, 8, 2), (), ("a b", 4, True)),
        # A part of a special token, one that begins before it, and one that ends behind it.
        ((0, 1, 7, 2), ("x|",), ("a b", 4, True)),
        ((0, 1, 7, 2), ("b<|",), ("a ", 4, True)),
        ((0, 7, 7, 2, 2), ("|>c",), ("a", 5, True)),
        ((0, 7, 2, 1), ("d b",), ("ac", 4, True)),  # begins in one token, ends in the next
        ((0, 2, 7, 1), ("no",), ("acd b", 4, False)),
        ((0, 8, 7), ("<|x|>",), ("a", 2, True)),  # what comes behind the end stops nothing
        ((0, 7, 4, 5, 2), ("é",), ("a", 5, True)),
        ((1, 7, 2), ("d", "b"), (" ", 3, True)),  # the first in the text
    ],
)
def test_a_stop_string_is_looked_for_in_the_text_with_special_tokens_and_these_are_then_left_out(
    ids: tuple[int, ...], stops: tuple[str, ...], expected: tuple[str, int, bool]
) -> None:
    assert ended_text(ids, stops, decode=decode, ends=lambda id_: id_ == 8) == expected


@pytest.mark.parametrize(
    ("settings", "kept"),
    [
        ({"temperature": 1.0}, SHARES),
        ({"temperature": 0.5}, SHARES**2),
        ({"top_k": 2}, SHARES * [1, 1, 0, 0]),
        ({"top_k": 9}, SHARES),
        ({"top_p": 0.79}, SHARES * [1, 1, 0, 0]),  # the fewest that have so much together
        ({"top_p": 0.01}, SHARES * [1, 0, 0, 0]),
        ({"top_k": 3, "top_p": 0.5}, SHARES * [1, 0, 0, 0]),  # of the three, the first has 0.526
    ],
)
def test_samples_have_the_shares_that_the_settings_leave(settings: dict[str, Any], kept: Any) -> None:
    numbers = (np.arange(10_000) + 0.5) / 10_000
    ids = [chosen(np.log(SHARES), how(seed=1, **settings), number) for number in numbers]
    assert np.bincount(ids, minlength=4) / len(ids) == pytest.approx(kept / kept.sum(), abs=2e-4)


def test_what_is_drawn_has_its_likelihoods_and_depends_on_seed_and_row_alone() -> None:
    def draw(row: int, seed: int) -> tuple[list[int], list[float]]:
        settings, prompt = how(max_new_tokens=30, seed=seed, temperature=1.0), PromptIds(row, "two", (1, 2))
        return drawn(lambda _: np.log(SHARES) + 7, prompt, settings, ends=lambda id_: id_ == 3, model="m")

    ids, nll = draw(0, 1)
    assert nll == pytest.approx(-np.log(SHARES[ids]))
    assert 3 not in ids[:-1]
    assert draw(0, 1) == (ids, nll)
    assert len({tuple(draw(row, seed)[0]) for row in (0, 1) for seed in (1, 2)}) == 4
    assert len({row_seed(seed, row) for row in range(9) for seed in range(9)}) == 81
    settings = how(max_new_tokens=5, seed=1, temperature=1.0)
    ids, nll = drawn(lambda _: np.log(SHARES), PROMPT, settings, ends=lambda _: False, model="m")
    assert len(ids) == len(nll) == 5, "as long as it may be, without an end"


@pytest.mark.parametrize("logit", [np.nan, np.inf])
def test_logits_that_are_not_finite_are_an_error_not_a_text(logit: float) -> None:
    with pytest.raises(NonFiniteError, match="model 'm': NaN or infinite logits while generating"):
        written(lambda _: np.array([0.0, logit]), PROMPT, how(), decode=lambda *_: "", ends=bool, model="m")


def test_samples_of_a_server_are_asked_for_under_its_names() -> None:
    assert sampling(how()) == {"temperature": 0.0, "top_p": 1.0, "top_k": 0}
    assert sampling(how(seed=1, top_p=0.5)) == {"temperature": 1.0, "top_p": 0.5, "top_k": 0}
