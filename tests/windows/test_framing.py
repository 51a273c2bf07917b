"""Special tokens around a text are found from what a tokenizer does, whatever it is."""

from collections.abc import Callable, Sequence

import pytest

from pytest_lmgate.windows.tokens import Framing


def tokenizer(
    prefix: Sequence[int], suffix: Sequence[int], own: Callable[[str], list[int]] = lambda text: [*map(ord, text)]
) -> Callable[[str, bool], list[int]]:
    return lambda text, special: [*prefix, *own(text), *suffix] if special else own(text)


@pytest.mark.parametrize("prefix", [(), (1,), (1, 7)])
@pytest.mark.parametrize("suffix", [(), (2,), (2, 8)])
def test_what_stands_before_and_behind_every_text_is_found(prefix: tuple[int, ...], suffix: tuple[int, ...]) -> None:
    framing = Framing.of(tokenizer(prefix, suffix))
    assert framing == Framing(prefix, suffix)
    assert framing.own([*prefix, 50, 51, *suffix]) == [50, 51]
    assert framing.own([*prefix, *suffix]) == []
    assert framing.around([50, 51]) == [*prefix, 50, 51, *suffix]
    assert framing.around([50, 51], suffix=False) == [*prefix, 50, 51]


def test_a_text_that_begins_with_the_bos_itself_has_it_once() -> None:
    framing = Framing((1, 7), (2,))
    assert framing.around(framing.own([1, 7, 1, 50, 2])) == [1, 7, 50, 2]
    assert framing.around(framing.own([1, 7, 1, 7, 50, 2])) == [1, 7, 50, 2], "as [gMASK]<sop>"
    assert framing.around(framing.once([50, 1])) == [1, 7, 50, 1, 2]
    assert Framing().once([1, 50]) == [1, 50], "the tokenizer adds none"


def test_a_tokenizer_that_changes_a_texts_own_tokens_has_no_frame() -> None:
    assert Framing.of(lambda text, special: [1, 9, 2] if special else [8]) == Framing()
