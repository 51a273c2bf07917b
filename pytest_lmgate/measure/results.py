"""Results of another tool as a measurement: its scores are read, and no model runs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

from pytest_lmgate.arrays import Floats
from pytest_lmgate.cache.store import Fingerprint, StoredResult
from pytest_lmgate.data.results.pairs import Pair, paired
from pytest_lmgate.data.results.rows import Series, digest
from pytest_lmgate.engines.base import Model, Runner
from pytest_lmgate.errors import ComparisonError, ConfigError, ModelError
from pytest_lmgate.measure.measurement import Measurement, MeasurementContext
from pytest_lmgate.metrics.results import identity_of_series, scores_of, signature_of, values_of
from pytest_lmgate.metrics.score import Score
from pytest_lmgate.settings.gate_options import Signature
from pytest_lmgate.settings.metrics import Direction
from pytest_lmgate.windows.tokens import TokenizerFacts

# Raise the number whenever the code that reads results may give other scores.
_KIND = "results/1"


@dataclass(frozen=True)
class ResultsRequest:
    """Which rows of a task a gate reads, and which scores it takes to be better; None if it does not say."""

    variant: str = ""
    direction: Direction | None = None


@dataclass(frozen=True)
class ResultScores(Measurement[Floats]):
    """The scores of a task's rows; the address is the content of the files, and everything that they tell."""

    data: Series
    asked: ResultsRequest
    offers = ()  # no model runs

    def __post_init__(self) -> None:
        known, wanted = self.data.direction, self.asked.direction
        if wanted and known and wanted != known:
            end = "min" if known == "higher" else "max"
            raise ConfigError(f"{known} values of {self.metric!r} are better: use metric_{end}")

    @cached_property
    def fingerprint(self) -> Fingerprint:
        told = {**self.identity, "metric": str(self.signature), "scores": digest(values_of(self.data).tolist())}
        return Fingerprint.of(_KIND, {**self.model.ingredients, **told})

    @cached_property
    def identity(self) -> dict[str, str]:
        return identity_of_series(self.data)

    @property
    def signature(self) -> Signature:
        return signature_of(self.data)

    @property
    def remarks(self) -> list[str]:
        return list(self.data.remarks)

    def measure(self, context: MeasurementContext) -> Floats:
        return values_of(self.data)

    def tokens(self, tokenizer: TokenizerFacts) -> int:
        return 0

    def encode(self, statistics: Floats) -> StoredResult:
        return StoredResult({"scores": statistics}, {})

    def decode(self, entry: StoredResult) -> Floats:
        return entry.arrays["scores"]

    def score(self, statistics: Floats) -> Score:
        return next(scores_of(self.data))

    def paired_with(self, reference: ResultScores) -> tuple[Pair, Score, Score]:
        """Return both scores on the same rows in the same order; ComparisonError if they are other measurements."""
        names = f"{reference.model.name!r}", f"{self.model.name!r}"
        pair = paired(reference.data, self.data, "error", names)
        if pair.problem:
            raise ComparisonError(f"cannot be compared with the model {names[0]}: {pair.problem}")
        ours, theirs = scores_of(pair.new, pair.old)
        return pair, ours, theirs


def results_model(name: str, content: Mapping[str, str]) -> Model:
    """Return the model that measured results, as far as it is known: by the digests of their files."""

    def refuse() -> Runner:
        raise ModelError(f"model {name!r} is results, which are only read")

    return Model(name, refuse, content=content, offers=frozenset(), device="")
