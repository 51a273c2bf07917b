"""Likelihoods, choices and divergences of every engine against loops over a model in float64."""

from typing import Any

import numpy as np
import pytest

from pytest_lmgate.data.corpus import Corpus
from pytest_lmgate.engines.base import COLUMNS
from pytest_lmgate.errors import LmgateError
from pytest_lmgate.measure.divergence import ModelPair, compare
from pytest_lmgate.measure.loop import Job, score_requests
from pytest_lmgate.settings.gate_options import WindowProtocol
from pytest_lmgate.windows.requests import Request
from tests.engines.contract.bench import MOST, QUIZ, ROWS, Bench
from tests.engines.numbers import requests_of, texts_of
from tests.engines.projects import CONTEXT, text_of

JOB = Job(model="m", dataset="d")
PROTOCOLS: list[dict[str, Any]] = [
    {"protocol": "sliding", "max_length": 96, "stride": 32},
    {"protocol": "sliding", "max_length": CONTEXT, "stride": 513},
    {"protocol": "disjoint", "max_length": 128},
    {"protocol": "bos-chunks", "max_length": 100},
    {"protocol": "gptq", "max_length": 128},
    {"protocol": "llama.cpp", "max_length": 64},
    {"protocol": "lm-eval"},
    {"protocol": "document"},
]


@pytest.mark.needs("windows")
@pytest.mark.parametrize("how", PROTOCOLS, ids=lambda how: f"{how['protocol']}-{how.get('max_length', '')}")
def test_every_token_has_its_nll_and_the_perplexity_is_that_of_the_protocol(bench: Bench, how: dict[str, Any]) -> None:
    expected = bench.oracle.nlls(how["protocol"], ROWS, how.get("max_length", CONTEXT), how.get("stride", 0))

    score, statistics = bench.measure("ppl_of", "exact", "text", **how)

    assert len(expected) > 500
    assert np.abs(statistics.nll - expected).max() < bench.engine.rounding
    assert float(score) == pytest.approx(np.exp(expected.mean()), rel=1e-5)


@pytest.mark.needs("windows")
@pytest.mark.parametrize(
    "how", [{"protocol": "document"}, {"protocol": "sliding", "max_length": 96, "stride": 32}], ids=str
)
def test_a_row_has_the_same_number_in_any_batch(bench: Bench, how: dict[str, Any]) -> None:
    for name in ("exact", *(bench.engine.rounded if how["protocol"] == "document" else ())):
        runner = bench.runner(name)
        requests = requests_of(runner, WindowProtocol(*how.values()))
        together = score_requests(runner, requests, JOB).nll
        assert np.array_equal(together, score_requests(runner, requests, JOB).nll), name
        alone = score_requests(runner, requests, Job(model="m", dataset="d", batch_size=1)).nll
        # Half precision of torch rounds with the shape of a batch; scales of int8 may not.
        assert np.abs(together - alone).max() <= (0.1 if name == "bfloat16" else bench.engine.batching), name


def scored(bench: Bench, request: Request) -> np.ndarray[Any, Any]:
    runner = bench.runner()
    with runner.measuring():
        # It fills the context.
        runner.prepare(requests_of(runner, WindowProtocol("lm-eval"), Corpus("d", (text_of(300),))))
        (found,) = runner.score([request])
    return np.asarray(found)


@pytest.mark.needs("windows")
def test_targets_may_be_few_and_out_of_order_and_fill_the_context(bench: Bench) -> None:
    ids = np.arange(CONTEXT) % 300 + 3
    at = np.array([20, 5, CONTEXT - 1, 39])
    targets = np.append(ids[1:], 7)[at]
    expected = -bench.oracle.logprobs(ids.tolist())[at, targets]
    assert np.abs(scored(bench, Request(ids, at, targets)) - expected).max() < bench.engine.rounding


def test_other_targets_than_the_next_tokens_have_their_nll_or_are_refused(bench: Bench) -> None:
    ids, at, targets = np.arange(3, 43), np.array([3, 20]), np.array([9, 9])
    request = Request(ids, at, targets)
    assert bench.runner().any_target or "any target" in bench.engine.lacks
    if "any target" in bench.engine.lacks:
        with pytest.raises((LmgateError, AssertionError)):
            scored(bench, request)
    else:
        expected = -bench.oracle.logprobs(ids.tolist())[at, targets]
        assert np.abs(scored(bench, request) - expected).max() < bench.engine.rounding


def test_choices_have_their_likelihoods_so_that_every_answer_is_the_models(bench: Bench) -> None:
    expected = np.array([[bench.oracle.choice(row["q"], each) for each in row["options"]] for row in QUIZ])

    score, found = bench.measure("accuracy_of", "exact", "quiz")

    assert np.abs(found.log_likelihood + expected.ravel()).max() < 30 * bench.engine.rounding
    right = [row["label"] for row in QUIZ] == expected.argmin(1)
    assert float(score) == right.mean()
    assert 0 < right.mean() < 1


@pytest.mark.needs("windows")
@pytest.mark.needs("greedy")
def test_a_token_is_greedy_where_it_is_the_likeliest(bench: Bench) -> None:
    ids = bench.oracle.tokens(ROWS[0])[:9]
    for _ in range(3):  # of what follows, every second token is the likeliest
        ids += [int(bench.oracle.logprobs(ids)[-1].argmax()), 5]
    at, targets = np.arange(len(ids) - 1), np.array(ids[1:])
    expected = bench.oracle.logprobs(ids[:-1]).argmax(1) == targets
    found = scored(bench, Request(np.array(ids), at, targets, greedy=True))
    assert found[:, 1].tolist() == expected.tolist()
    assert 3 <= expected.sum() < len(at)
    assert np.abs(found[:, 0] - bench.oracle.nll(ids, 1)).max() < bench.engine.rounding


@pytest.mark.needs("sample")
def test_what_it_draws_has_the_likelihoods_that_it_wrote_by_and_follows_them(bench: Bench) -> None:
    score, found = bench.measure("self_kl_of", "exact", "news", max_new_tokens=MOST)
    texts = np.split(found.ids, np.cumsum(found.prompt_tokens + found.window_targets)[:-1])
    expected, surprise, variance = [], 0.0, 0.0
    for ids, first in zip(texts, found.prompt_tokens, strict=True):
        expected += bench.oracle.nll(ids.tolist(), int(first))
        logprobs = bench.oracle.logprobs(ids[:-1].tolist())[first - 1 :]
        entropy = -(np.exp(logprobs) * logprobs).sum(1)
        surprise += -entropy.sum()
        variance += (np.exp(logprobs) * (logprobs + entropy[:, None]) ** 2).sum()
    assert len(expected) == found.window_targets.sum() > 40
    for nll in (found.nll_p, found.nll_q):
        assert np.abs(nll - expected).max() < 10 * bench.engine.rounding
    assert abs(surprise + sum(expected)) < 4 * variance**0.5, "draws are as surprising as their distributions"
    assert abs(float(score)) < 1e-4


@pytest.mark.needs("compare")
@pytest.mark.needs("damaged")
@pytest.mark.parametrize("side_by_side", [True, False])
def test_a_divergence_is_that_of_the_whole_distributions(bench: Bench, side_by_side: bool) -> None:
    p, q = bench.runner(), bench.runner("damaged")
    requests = requests_of(p, WindowProtocol("disjoint", 128), Corpus("d", tuple(ROWS[:2])))
    pair = ModelPair(("p", "q"), lambda: p, lambda: q, side_by_side=side_by_side)
    found = dict(zip(COLUMNS, compare(pair, requests, JOB).T, strict=True))
    made = [requests.make(index) for index in range(len(requests))]
    exact, other = bench.oracle, bench.oracle_of("damaged")
    kl = np.concatenate([exact.kl(other, each.ids.tolist())[each.at] for each in made])
    targets = np.concatenate([each.targets for each in made])
    log_p, log_q = (np.concatenate([o.logprobs(each.ids.tolist())[each.at] for each in made]) for o in (exact, other))
    of_p, of_q = (each[np.arange(len(targets)), targets] for each in (log_p, log_q))
    assert 0.1 < kl.mean() < 2
    assert found["kl"] == pytest.approx(kl, rel=1e-2, abs=1e-3)
    assert found["kl"].mean() == pytest.approx(kl.mean(), rel=1e-4)
    assert found["dp"] == pytest.approx(np.exp(of_q) - np.exp(of_p), abs=1e-4)
    assert (found["same_top"] == (log_p.argmax(1) == log_q.argmax(1))).mean() > 0.995
    assert np.abs(found["nll_p"] + of_p).max() < bench.engine.rounding
    assert np.abs(found["nll_q"] + of_q).max() < bench.engine.rounding


@pytest.mark.needs("compare")
def test_the_float_model_is_no_other_whichever_side_it_is_on(bench: Bench) -> None:
    float_, how = bench.reference(), {"max_length": 128}
    for model, reference in (("exact", float_), (float_, "exact")):
        assert abs(bench.value("kl_of", model, "text", reference=reference, **how)) < 1e-7


@pytest.mark.needs("windows")
@pytest.mark.needs("damaged")
def test_a_sampled_divergence_is_nothing_and_more_of_damaged_weights(bench: Bench) -> None:
    how = {"reference": bench.reference(), "estimator": "sampled", "max_new_tokens": MOST}
    assert abs(bench.value("kl_of", "exact", "text", **how)) < 1e-5
    found, _ = bench.measure("kl_of", "damaged", "text", **how)
    assert found.interval[0] > 0.001


@pytest.mark.needs("rounded")
def test_a_model_in_another_precision_diverges_as_that_rounds(bench: Bench) -> None:
    for name, (_, least, most) in bench.engine.rounded.items():
        assert least <= bench.value("kl_of", name, "text", reference="exact", max_length=128) < most, name


@pytest.mark.needs("threads")
def test_the_number_of_threads_changes_no_number_and_no_text(bench: Bench) -> None:
    for name in ("exact", *bench.engine.rounded):
        one, three = (bench.described(bench.entry(name, load={bench.engine.threads: count})).open() for count in (1, 3))
        # 513 tokens are a batch and one more, which flash attention of llama.cpp would share among the threads.
        corpus = Corpus("d", (text_of(190),))
        nll = [
            score_requests(each, requests_of(each, WindowProtocol("disjoint", 514), corpus), JOB).nll
            for each in (one, three)
        ]
        assert len(nll[0]) > 513
        assert np.array_equal(*nll), name
        texts = [texts_of(each, [text_of(180)], max_new_tokens=9) for each in (one, three)]
        assert texts[0] == texts[1], name
        one.close()
        three.close()
