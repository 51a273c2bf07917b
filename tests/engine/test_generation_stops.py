"""A text ends before the first stop string in it, wherever that begins and ends among the tokens."""

from __future__ import annotations

from typing import Any

import pytest

from pytest_lmgate.engine.loop import Progress
from tests.engine.writing import PROMPTS, alone, written
from tests.models.encoders import encoder_decoder, framed_tokenizer
from tests.models.zoo import build, word_tokenizer

TOKENIZER = word_tokenizer()


@pytest.fixture(scope="module")
def llama() -> Any:
    return build("llama")


@pytest.fixture(scope="module")
def plain(llama: Any) -> list[str]:
    """What the model writes without a stop string: words as w17, a blank between two."""
    return alone(llama, TOKENIZER, PROMPTS)


def _cut(text: str, *stops: str) -> str:
    return text[: min((text.index(stop) for stop in stops if stop in text), default=len(text))]


@pytest.mark.parametrize("size", [1, 3, "auto"])
@pytest.mark.parametrize(
    "stops",
    [("7",), ("w4",), ("2 w",), (" ",), ("w",), ("5", "3 w3", "8"), ("no such string",), ("no such string", "1")],
)
def test_a_text_is_cut_before_the_first_stop_string(
    llama: Any, plain: list[str], stops: tuple[str, ...], size: int | str
) -> None:
    found = written(llama, TOKENIZER, PROMPTS, stop=list(stops), batch_size=size)
    assert found == [_cut(text, *stops) for text in plain]


def test_a_stop_string_over_many_tokens_is_found(llama: Any, plain: list[str]) -> None:
    stop = plain[2][5:40]
    assert len(stop.split()) > 5
    assert written(llama, TOKENIZER, PROMPTS, stop=stop) == [_cut(text, stop) for text in plain]


def test_one_stop_string_may_be_said_without_a_list(llama: Any) -> None:
    assert written(llama, TOKENIZER, PROMPTS, stop="7") == written(llama, TOKENIZER, PROMPTS, stop=["7"])


def test_an_encoder_decoder_model_stops_too() -> None:
    model, tokenizer = encoder_decoder("t5"), framed_tokenizer()
    plain = alone(model, tokenizer, PROMPTS)
    assert written(model, tokenizer, PROMPTS, stop="5") == [_cut(text, "5") for text in plain]
    assert any("5" in text for text in plain)


def test_the_prompts_own_text_stops_nothing(llama: Any, plain: list[str]) -> None:
    # The blank before the first word stands between prompt and text, and belongs to neither.
    prompt, text = PROMPTS[0], plain[0]
    assert written(llama, TOKENIZER, [prompt], stop=[prompt.split()[-1], prompt]) == [text]
    assert written(llama, TOKENIZER, [prompt], stop=f"{prompt.split()[-1]} {text.split()[0]}") == [text]


def _steps(model: Any, monkeypatch: pytest.MonkeyPatch, **how: Any) -> tuple[list[str], int]:
    calls, forward = 0, model.forward

    def counted(*args: Any, **named: Any) -> Any:
        nonlocal calls
        calls += 1
        return forward(*args, **named)

    with monkeypatch.context() as patch:
        patch.setattr(model, "forward", counted)
        texts = written(model, TOKENIZER, [PROMPTS[1]], **how)
    return texts, calls


def test_generation_ends_with_the_stop_string(llama: Any, plain: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    words = plain[1].split()
    fourth = words[3]
    assert fourth not in words[:3]
    texts, calls = _steps(llama, monkeypatch, stop=fourth[1:], max_new_tokens=12)
    assert texts == [_cut(plain[1], fourth[1:])]
    assert calls <= 4


def test_a_batch_goes_on_until_its_last_row_has_stopped(llama: Any, plain: list[str]) -> None:
    told: list[Progress] = []
    stop = plain[1].split()[2]
    written(llama, TOKENIZER, [PROMPTS[1]] * 2, stop=stop, report=told.append)
    assert told[-1].tokens == 2 * 3
    written(llama, TOKENIZER, [PROMPTS[1], PROMPTS[0]], stop=stop, report=told.append)
    assert told[-1].tokens > 3 + 3


def test_beams_end_with_the_stop_string(llama: Any) -> None:
    for prompt, text in zip(PROMPTS, written(llama, TOKENIZER, PROMPTS, stop="7", num_beams=3), strict=True):
        assert "7" not in text
        assert written(llama, TOKENIZER, [prompt], stop="7", num_beams=3, batch_size=1) == [text]
