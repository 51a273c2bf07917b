"""Texts, tokens and templates of every engine: those of a loop over the likeliest tokens of a model in float64."""

from typing import Any

import numpy as np
import pytest

from tests.engines.contract.bench import LONG, MOST, PROMPTS, Bench
from tests.engines.contract.engines import EOS, SECOND_END
from tests.engines.projects import CONTEXT

BROKEN = "\N{REPLACEMENT CHARACTER}"
SAMPLES: list[dict[str, Any]] = [{"temperature": 0.8}, {"top_k": 7}, {"top_p": 0.7, "temperature": 1.3}]


def ends(bench: Bench) -> list[int]:
    return [EOS] if "generation_config" in bench.engine.lacks else [EOS, SECOND_END]


def require_same(bench: Bench, found: list[str], expected: list[str]) -> None:
    if "whole characters" not in bench.engine.lacks:
        assert found == expected
        return
    found, expected = ([text.replace(BROKEN, "") for text in texts] for texts in (found, expected))
    for text, wanted in zip(found, expected, strict=True):
        assert text.startswith(wanted)
        assert len(text) <= len(wanted) + 8


@pytest.mark.needs("writes")
@pytest.mark.parametrize("stops", [(), ("the",), ("s", "{"), ("</s>",)], ids=str)
def test_greedy_texts_are_those_of_a_loop_and_end_at_each_end_and_stop_string(
    bench: Bench, stops: tuple[str, ...]
) -> None:
    """A prompt that begins with a BOS gets no second one, which the last prompt of the dataset does."""
    expected = [bench.oracle.writes(each, MOST, ends=ends(bench), stops=stops) for each in PROMPTS]
    found = bench.texts(**({"stop": list(stops)} if stops else {}))
    require_same(bench, found, expected)
    assert len(set(expected)) > 4
    if not stops and SECOND_END in ends(bench):
        assert expected != [bench.oracle.writes(each, MOST, ends=[EOS]) for each in PROMPTS], "both have ended a text"


@pytest.mark.needs("writes")
@pytest.mark.needs("special stops")
def test_a_stop_string_may_be_a_special_token(bench: Bench) -> None:
    expected = [bench.oracle.writes(each, MOST, ends=ends(bench), stops=["<pad>", "zzz"]) for each in PROMPTS]
    assert bench.texts(stop=["<pad>", "zzz"]) == expected
    assert expected != [bench.oracle.writes(each, MOST, ends=ends(bench)) for each in PROMPTS]


@pytest.mark.needs("writes")
def test_whether_a_text_ended_by_itself_is_known(bench: Bench) -> None:
    _, found = bench.measure("chrf_of", "exact", "news", max_new_tokens=MOST)
    assert len({*found.cut}) > 1
    longer = bench.texts(max_new_tokens=MOST + 8)
    for text, more, cut in zip(found.texts, longer, found.cut, strict=True):
        assert cut or text == more


@pytest.mark.needs("writes")
def test_a_long_prompt_loses_its_left_and_keeps_its_bos(bench: Bench) -> None:
    ids = bench.oracle.tokens(LONG)
    room = CONTEXT - MOST
    assert len(ids) > room
    read = [bench.tokenizer.bos_token_id, *ids[1 - room :]]
    require_same(bench, bench.texts(dataset="long"), [bench.oracle.goes_on(read, MOST, ends=ends(bench))])


@pytest.mark.needs("writes")
@pytest.mark.parametrize("how", SAMPLES, ids=str)
def test_a_sample_depends_on_its_seed_and_row_alone(bench: Bench, how: dict[str, Any]) -> None:
    found = bench.texts(seed=1, **how)
    assert bench.texts(seed=2, **how) != found
    same = bench.texts(dataset="same", seed=1, max_new_tokens=3, **how)
    assert len(set(same)) > 5, "rows with the same prompt have samples of their own"


def shares(bench: Bench, **how: Any) -> dict[str, float]:
    """Return how often each first token was drawn after one prompt."""
    texts = bench.texts(dataset="same", max_new_tokens=1, **how)
    return {text: texts.count(text) / len(texts) for text in texts}


@pytest.mark.needs("writes")
@pytest.mark.parametrize(
    "how",
    [{"temperature": 1.0}, {"temperature": 0.5}, {"top_k": 3}, {"top_p": 0.4}, {"top_k": 5, "temperature": 2.0}],
    ids=str,
)
def test_samples_follow_the_distribution_that_the_settings_leave(bench: Bench, how: dict[str, Any]) -> None:
    logprobs = bench.oracle.logprobs(bench.oracle.tokens(PROMPTS[0], special=True))[-1] / how.get("temperature", 1.0)
    order = np.argsort(-logprobs)
    p = np.exp(logprobs[order]) / np.exp(logprobs).sum()
    kept = min(how.get("top_k", len(p)), int(np.searchsorted(np.cumsum(p), how.get("top_p", 1.0))) + 1)
    expected: dict[str, float] = {}
    for token, share in zip(order[:kept], p[:kept] / p[:kept].sum(), strict=True):
        text = bench.oracle.without_special(bench.tokenizer.decode([int(token)]))
        expected[text] = expected.get(text, 0) + float(share)
    found = shares(bench, seed=5, **how)
    if "whole characters" not in bench.engine.lacks:
        assert found.keys() <= expected.keys()
        for text, share in expected.items():
            assert abs(found.get(text, 0) - share) < 4.5 * (share * (1 - share) / 200) ** 0.5 + 0.005, text


@pytest.mark.needs("writes")
@pytest.mark.needs("draws alike")
@pytest.mark.parametrize("how", SAMPLES, ids=str)
def test_a_seed_draws_what_it_draws_in_the_checkpoint(bench: Bench, how: dict[str, Any]) -> None:
    assert bench.texts(seed=3, **how) == bench.texts(bench.reference(ends=ends(bench)), seed=3, **how)


def test_tokens_are_those_of_the_tokenizer(bench: Bench) -> None:
    facts = bench.runner().tokenizer
    for text in ("", " ", "a", "<s>the cat</s>", "\n\n tab\t", "🙂 é 猫", "the cat " * 50):
        for special in (True, False):
            assert list(facts.encode(text, special)) == bench.oracle.tokens(text, special=special)
    ids = bench.oracle.tokens("the 🙂 cat", special=True)
    assert [facts.decode(token) for token in ids] == [bench.tokenizer.decode([token]) for token in ids]
    assert (facts.bos, facts.eos, facts.adds_bos) == (1, 2, True)


@pytest.mark.needs("writes")
def test_a_chat_is_put_into_the_template_with_its_variables_and_no_others(bench: Bench) -> None:
    chat = bench.runner().tokenizer.chat
    messages = [{"role": "user", "content": "the cat"}, {"role": "assistant", "content": "sat"}]
    assert chat([*messages, messages[0]]) == "<s>user: the cat\n<s>assistant: sat\n<s>user: the cat\n"
    assert chat(messages) == "<s>user: the cat\n<s>assistant: sat", "the last turn goes on"
    for begun in ("sat ", "s", ""):
        chatted = chat([messages[0], {"role": "assistant", "content": begun}])
        assert chatted == f"<s>user: the cat\n<s>assistant: {begun}", "behind its own text"
    assert chat(messages[:1], thinks=3) == "<s>user: the cat\nthinks 3"
    with pytest.raises(ValueError, match="no variable 'think'"):
        chat(messages, think=3)
    expected = [bench.oracle.writes(f"<s>user: {each}\n", MOST, ends=ends(bench)) for each in PROMPTS]
    require_same(bench, bench.texts(dataset="chats"), expected)
