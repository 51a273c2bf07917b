"""`Score`: a measured number that knows its noise, its unit and how it was made.

It is a real ``float``, so that ``assert ppl_of(model, dataset) < 16.5`` reads as what it is. What it carries besides
the value never takes part in a comparison. What is computed with it is a plain float: another number was not measured.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import KW_ONLY, InitVar, dataclass, field
from typing import TYPE_CHECKING, Any

from pytest_lmgate.errors import escape_controls
from pytest_lmgate.settings.gate_options import Signature
from pytest_lmgate.settings.metrics import Direction

if TYPE_CHECKING:
    from pytest_lmgate.stats.sample import Sample


@dataclass(frozen=True)
class ScoredRow:
    """One row, by its index from 0, with its own score; an empty prompt is unknown.

    The prediction is what was scored; `output` is the text that it was extracted from, None if that is the prediction.
    """

    row: int
    score: float
    prediction: str
    references: tuple[str, ...]
    prompt: str = ""
    output: str | None = None


@dataclass(frozen=True)
class AnswerCounts:
    """How many texts have no answer, or no end.

    Attributes:
        rows: Number of answers: of texts, or of rows where one answer is made of all texts of a row.
        without: Rows in whose text the dataset's `extract` found no answer; null without `extract`.
        cut: Texts that end because they have `max_new_tokens` tokens, or rows with such a text; null where the engine
            does not say.
    """

    rows: int
    without: int | None = None
    cut: int | None = None


@dataclass(eq=False, repr=False)
class Score(float):
    """A metric's value with its noise and provenance.

    Attributes:
        metric: Name of the metric, as in ``ppl``, ``bpb``, ``bleu``.
        unit: Unit of `n`: ``token``, ``word``, ``byte``, ``char``, ``row``.
        direction: ``lower`` if smaller values are better, else ``higher``.
        n: Number of targets (or rows) in the mean.
        stderr: Standard error in the value's own unit; None with too few clusters.
        interval: Two-sided 95% interval ``(low, high)`` in the value's own unit; None with too few clusters.
        signature: Everything needed to reproduce the number from a paper, in one line.
        iid: Whether the protocol's own program prints an error for independent tokens.
        cached: Whether the measurement came from the cache.
        model: Name of the model, as written by the user.
        dataset: Name of the dataset, as written by the user.
        device: Where the model runs: ``cpu``, ``cuda``, ``mps``, ``server``; empty for texts and functions.
        hardware: Name of the GPU or processor that it was measured on; empty if unknown.
        fingerprint: Content address of the measurement.
        seconds: Wall time of measuring or lookup.
        details: Further figures under the field's names.
        sample: Statistics behind the value, for comparisons; not pickled.
        content: Digest of the model, wherever it runs; empty for texts and functions.
        weights: Digest of its weights, and of how and where they run; empty for texts and functions.
        show_row: For text metrics: returns row `i` for display. Not pickled.
    """

    number: InitVar[float]
    _: KW_ONLY
    metric: str = ""
    n: int = 0
    signature: Signature = Signature.parse("")  # noqa: RUF009 - it never changes
    iid: bool = False
    unit: str = "token"
    direction: Direction = "lower"
    stderr: float | None = None
    interval: tuple[float, float] | None = None
    cached: bool = False
    model: str = ""
    dataset: str = ""
    device: str = ""
    hardware: str = ""
    fingerprint: str = ""
    seconds: float = 0.0
    details: Mapping[str, Any] = field(default_factory=dict)
    sample: Sample | None = None
    content: str = ""
    weights: str = ""
    show_row: Callable[[int], ScoredRow] | None = None

    def __new__(cls, number: float, **attributes: object) -> Score:
        if not attributes:  # as statistics.mean makes its result, by the class of its numbers
            return float(number)  # type: ignore[return-value]
        return super().__new__(cls, number)

    def __post_init__(self, number: float) -> None:
        self.details = dict(self.details)
        if not isinstance(self.signature, Signature):  # a text
            self.signature = Signature.parse(self.signature)

    def placed(self, *, model: str, dataset: str, fingerprint: str, cached: bool, seconds: float) -> Score:
        """Return this score with the names and the address of its measurement."""
        where = {"model": model, "dataset": dataset, "fingerprint": fingerprint, "cached": cached, "seconds": seconds}
        return _rebuild(float(self), {**vars(self), **where})

    def placed_as(self, other: Score) -> Score:
        """Return this score with the names and the address of another one of the same measurement."""
        names = ("model", "dataset", "fingerprint", "cached", "seconds")
        return self.placed(**{name: getattr(other, name) for name in names})

    def identified(self, data: str, **others: str) -> Score:
        """Return this score with the identity of its sample: digests of the data and the rest."""
        found = self.sample
        sample = None if found is None else found.identified(data=data, signature=self.signature, **others)
        return _rebuild(float(self), {**vars(self), "sample": sample})

    @property
    def value(self) -> float:
        """The plain float."""
        return float(self)

    @property
    def is_finite(self) -> bool:
        """Whether the value can be judged at all."""
        return math.isfinite(self)

    def require_sample(self) -> Sample:
        """Return the sample; only percentiles of a divergence lack one, and they are never compared."""
        assert self.sample is not None
        return self.sample

    def __repr__(self) -> str:
        noise = f" [{self.interval[0]:.6g}, {self.interval[1]:.6g}]" if self.interval else ""
        where = escape_controls(f", {self.model} on {self.dataset}", line=True) if self.model else ""
        cached = ", cached" if self.cached else ""
        return f"{self.metric} {float(self):.6g}{noise} ({self.n:,} {self.unit}s, {self.signature}{where}{cached})"

    def __str__(self) -> str:
        return float.__repr__(self)

    def __copy__(self) -> Score:
        return _rebuild(float(self), vars(self))

    def __deepcopy__(self, _: object) -> Score:
        return self.__copy__()

    def __reduce__(self) -> tuple[Any, ...]:
        return _rebuild, (float(self), {**vars(self), "sample": None, "show_row": None})


def distinct(a: float, b: float, least: int = 6) -> tuple[str, str]:
    """Format two numbers in so many digits at least, and in enough to differ, if they do."""
    pairs = ((f"{a:.{digits}g}", f"{b:.{digits}g}") for digits in range(least, 18))
    return next(pair for pair in pairs if pair[0] != pair[1] or not (a < b or a > b))


def _rebuild(value: float, attributes: dict[str, Any]) -> Score:
    return Score(value, **attributes)
