"""Multiple choice: the likelihood of each choice given its question, and the share that is answered right."""

from __future__ import annotations

__all__ = ["ChoiceLikelihoods"]

import json
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from pytest_lmgate import __version__
from pytest_lmgate.cache.fingerprint import Fingerprint
from pytest_lmgate.cache.store import Entry
from pytest_lmgate.config.signature import Signature
from pytest_lmgate.data.requests.choices import plan_choices
from pytest_lmgate.data.requests.windows import WindowPlan, window_requests
from pytest_lmgate.data.tokenization.tokens import Streams, TokenizerFacts
from pytest_lmgate.engine.scoring import score
from pytest_lmgate.evaluate.measurements.measurement import Bench, Measurement, addressed, digest_of_text, require
from pytest_lmgate.evaluate.sources.rows import DatasetRows
from pytest_lmgate.metrics.accuracy import ChoiceStatistics
from pytest_lmgate.metrics.score import Score
from pytest_lmgate.metrics.table import METRICS
from pytest_lmgate.metrics.texts.inputs import cluster_numbers
from pytest_lmgate.spec.requests import ChoiceRequest

_KIND = "choices/4"


@dataclass(frozen=True)
class ChoiceLikelihoods(Measurement[list[float]]):
    """Log-likelihood of each choice under a causal model, row after row."""

    data: DatasetRows
    asked: ChoiceRequest

    def __post_init__(self) -> None:
        require(self.model, self.metric, "score", "causal")

    @property
    def fingerprint(self) -> Fingerprint:
        """Address of the log-likelihoods, which do not depend on the answers."""
        how = {"delimiter": self.data.spec.between, "max_length": str(self._max_length)}
        if self.data.spec.chat:
            how |= self.model.writing()  # which has the chat template of a model in memory
        return addressed(_KIND, self.model, questions=digest_of_text(self._asked_text), **how)

    @cached_property
    def identity(self) -> dict[str, str]:
        """Questions, choices, answers and clusters."""
        clusters = self.data.clusters
        groups = [] if clusters is None else [cluster_numbers(clusters, len(self.data.questions)).tolist()]
        answers = [each.answer for each in self.data.questions]
        return {"data": digest_of_text(json.dumps([self._asked_text, answers, *groups]))}

    @property
    def signature(self) -> Signature:
        """Which accuracy, and what a choice is read after."""
        spec, shown = self.data.spec, len(self.data.examples)
        return Signature(
            [
                ("variant", self.asked.variant),
                ("max_length", str(self._max_length)),
                *([("examples", str(shown))] if shown else []),
                *([("chat", None)] if spec.chat else []),
                ("delimiter", repr(spec.between)),
                ("version", __version__),
            ]
        )

    def measure(self, bench: Bench) -> list[float]:
        """Score every choice."""
        runner, name = bench.runner(self.model), self.data.name
        streams, plan = self._plan(runner.tokenizer)
        job = bench.job(self.model.name, name, self.model.batch_size)
        found = score(runner, window_requests(streams, plan, name), job)
        nll = found.nll if found.is_double else found.nll.astype(np.float32)
        begins = np.concatenate([[0], np.cumsum(plan.targets)[:-1]])
        return [-float(total) for total in np.add.reduceat(nll.astype(np.float64), begins)]

    def tokens(self, tokenizer: TokenizerFacts) -> int:
        """Count the tokens of all questions with each of their choices."""
        return window_requests(*self._plan(tokenizer), self.data.name).tokens

    def _plan(self, tokenizer: TokenizerFacts) -> tuple[Streams, WindowPlan]:
        return plan_choices(
            self.data.questions,
            tokenizer,
            delimiter=self.data.spec.between,
            max_length=self._max_length,
            name=self.data.name,
            model=self.model.name,
        )

    def encode(self, statistics: list[float]) -> Entry:
        """Return what to store of the log-likelihoods."""
        return Entry({"log_likelihood": np.array(statistics)})

    def decode(self, entry: Entry) -> list[float]:
        """Return the log-likelihoods that were stored."""
        return [float(value) for value in entry.arrays["log_likelihood"]]

    def score(self, statistics: list[float]) -> Score:
        """Make the accuracy of the variant asked for."""
        choices = [choice for each in self.data.questions for choice in each.choices]
        found = ChoiceStatistics(
            np.array(statistics),
            np.array([len(choice) for choice in choices]),
            np.array([len(choice.encode()) for choice in choices]),
            np.array([len(each.choices) for each in self.data.questions]),
            np.array([each.answer for each in self.data.questions]),
        )
        return METRICS[self.metric].score(
            found, signature=self.signature, variant=self.asked.variant, clusters=self.data.clusters
        )

    @cached_property
    def _asked_text(self) -> str:
        return json.dumps([[each.text, each.choices] for each in self.data.questions], ensure_ascii=False)

    @property
    def _max_length(self) -> int | None:
        return self.asked.max_length or self.model.context
