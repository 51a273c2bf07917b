"""Measures with an engine what the tests of every engine compare with transformers: likelihoods, texts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from pytest_lmgate.config.arguments.generation import GenerationSettings
from pytest_lmgate.data.corpora.corpus import Corpus
from pytest_lmgate.data.requests.requests import Requests
from pytest_lmgate.data.requests.windows import window_requests
from pytest_lmgate.engine.generation import generate
from pytest_lmgate.engine.loop import Job
from pytest_lmgate.engine.scoring import score
from pytest_lmgate.evaluate.measurements.perplexity import planned_windows
from pytest_lmgate.spec.protocol import Protocol
from tests.engines.projects import CONTEXT, text_of

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


def requests_of(runner: Any, protocol: Protocol, corpus: Corpus = CORPUS) -> Requests:
    streams, plan = planned_windows(corpus, protocol.windowing(CONTEXT, model="m"), runner.tokenizer, "m")
    return window_requests(streams, plan, corpus.name)


def nll_of(runner: Any, protocol: Protocol) -> np.ndarray[Any, np.dtype[np.float64]]:
    return score(runner, requests_of(runner, protocol), JOB).nll


def texts_of(runner: Any, prompts: Sequence[str], **how: Any) -> list[str]:
    return generate(runner, prompts, GenerationSettings.of(**how), JOB, context=CONTEXT)
