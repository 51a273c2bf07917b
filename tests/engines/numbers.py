"""Measures with an engine what the tests of every engine compare with transformers: likelihoods, texts."""

from collections.abc import Sequence
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pytest_lmgate.data.corpus import Corpus
from pytest_lmgate.engines.base import COLUMNS, Model
from pytest_lmgate.measure.divergence import ModelPair, compare
from pytest_lmgate.measure.loop import Job
from pytest_lmgate.measure.measurement import MeasurementContext, planned_windows
from pytest_lmgate.measure.sampled import SelfDivergences
from pytest_lmgate.measure.sampled import requests_of as sampled_requests
from pytest_lmgate.measure.scoring import score
from pytest_lmgate.measure.texts import generate
from pytest_lmgate.metrics.divergence import SampledStatistics, kl
from pytest_lmgate.metrics.targets import TargetLayout
from pytest_lmgate.settings.requests import GenerationSettings, Protocol, SelfDivergenceRequest, Signature
from pytest_lmgate.windows.requests import Requests, window_requests
from tests.engines.projects import CONTEXT, damaged, text_of

JOB = Job(model="m", dataset="d")
CORPUS = Corpus("d", tuple(text_of(150, seed) for seed in range(6)))
PROTOCOLS = [
    Protocol("sliding", 96, 32),
    Protocol("disjoint", 128),
    Protocol("bos-chunks", 100),
    Protocol("gptq", 128),
    Protocol("llama.cpp", 64),
    Protocol("lm-eval"),
    Protocol("document"),
    Protocol("sliding", CONTEXT, 513),
]


PROMPTS = [text_of(length, length) for length in (3, 9, 20, 1, 6)]
WAYS = [
    {},
    {"stop": "the"},
    {"seed": 3, "temperature": 0.8},
    {"seed": 4, "top_k": 7},
    {"seed": 5, "top_p": 0.7, "temperature": 1.3},
]


def requests_of(runner: Any, protocol: Protocol, corpus: Corpus = CORPUS) -> Requests:
    streams, plan = planned_windows(corpus, protocol.windowing(CONTEXT, model="m"), runner.tokenizer, "m")
    return window_requests(streams, plan, corpus.name)


def nll_of(runner: Any, protocol: Protocol) -> np.ndarray[Any, np.dtype[np.float64]]:
    return score(runner, requests_of(runner, protocol), JOB).nll


def require_same_nll(runner: Any, reference: Any, protocol: Protocol, most: float = 1e-4) -> None:
    expected, found = nll_of(reference, protocol), nll_of(runner, protocol)
    assert len(found) > 100
    assert np.abs(found - expected).max() < most
    assert np.exp(found.mean()) == pytest.approx(np.exp(expected.mean()), rel=1e-5)


def require_same_texts(runner: Any, reference: Any, **how: Any) -> None:
    expected = texts_of(reference, PROMPTS, max_new_tokens=40, **how)
    assert texts_of(runner, PROMPTS, max_new_tokens=40, **how) == expected
    assert len(set(expected)) > 1
    if not how:  # a prompt that begins with the BOS gets no second one
        assert texts_of(runner, [f"<s>{each}" for each in PROMPTS], max_new_tokens=40) == expected


def texts_of(runner: Any, prompts: Sequence[str], **how: Any) -> list[str]:
    return generate(runner, prompts, GenerationSettings(**how), JOB, context=CONTEXT).texts


def require_sampled(runner: Any, reference: Any, most: float = 1e-3) -> None:
    """What an engine draws has the same NLLs as it writes, as it reads and as transformers reads.

    A divergence of these tokens, from the reference to itself with noise, is that of whole distributions.
    """
    from pytest_lmgate.engines.transformers.runner import TransformersRunner

    corpus = Corpus("d", tuple(text_of(8, seed) for seed in range(30)))
    model = Model("m", lambda: runner, context=CONTEXT, offers=frozenset({"score", "sample"}))
    context = MeasurementContext(Path(), lambda _: runner, lambda *_: True, lambda *_: JOB, lambda _: None)
    found = SelfDivergences("self_kl", model, corpus, SelfDivergenceRequest(24)).measure(context)
    assert found.window_targets.sum() > 300
    assert np.abs(found.nll_p - found.nll_q).max() < most

    texts = np.split(found.ids, np.cumsum(found.prompt_tokens + found.window_targets)[:-1])
    requests = sampled_requests(texts, found.prompt_tokens, reference.tokenizer, "d")
    assert np.abs(score(reference, requests, JOB).nll - found.nll_q).max() < most

    noisy = TransformersRunner(replace(reference.loaded, model=damaged(reference.loaded.model)), CONTEXT)
    pair = ModelPair(("p", "q"), lambda: reference, lambda: noisy)
    exact, nll_q = compare(pair, requests, JOB)[:, [COLUMNS.index("kl"), COLUMNS.index("nll_q")]].T
    layout = {field.name: getattr(found, field.name) for field in fields(TargetLayout)}
    estimate = kl(SampledStatistics(nll_p=found.nll_q, nll_q=nll_q, **layout), signature=Signature([]))
    assert estimate.interval[0] < exact.mean() < estimate.interval[1]
    assert estimate.interval[0] > 0
