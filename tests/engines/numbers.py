"""Measures with an engine what the tests of every engine compare with transformers: likelihoods, texts."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from pytest_lmgate.data.corpus import Corpus
from pytest_lmgate.measure.loop import Job, score_requests
from pytest_lmgate.measure.measurement import planned_windows
from pytest_lmgate.measure.texts import generate
from pytest_lmgate.settings.gate_options import GenerationSettings, WindowProtocol
from pytest_lmgate.windows.protocols import WindowPlan
from pytest_lmgate.windows.requests import Requests, window_requests
from pytest_lmgate.windows.tokens import Streams
from tests.engines.projects import CONTEXT, text_of

JOB = Job(model="m", dataset="d")
CORPUS = Corpus("d", tuple(text_of(150, seed) for seed in range(6)))


def requests_of(runner: Any, protocol: WindowProtocol, corpus: Corpus = CORPUS) -> Requests:
    streams, plan = planned_windows(corpus, protocol.windowing(CONTEXT, model="m"), runner.tokenizer, "m")
    return window_requests(streams, plan, corpus.name)


def one_window(row: Any) -> Requests:
    """Return token ids as a text of one window, all but whose first is scored."""
    plan = WindowPlan(*(np.array([number]) for number in (0, 0, len(row), 1)), np.array([False]))
    return window_requests(Streams([row]), plan, "text")


def nll_of(runner: Any, protocol: WindowProtocol) -> np.ndarray[Any, np.dtype[np.float64]]:
    return score_requests(runner, requests_of(runner, protocol), JOB).nll


def texts_of(runner: Any, prompts: Sequence[str], **how: Any) -> list[str]:
    return generate(runner, prompts, GenerationSettings(**how), JOB, context=CONTEXT).texts
