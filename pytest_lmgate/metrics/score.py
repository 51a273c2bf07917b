"""`Score`: a measured number that knows its noise, its unit and how it was made.

It is a real ``float``, so that ``assert ppl_of(model, dataset) < 16.5`` reads as what it is. What it carries besides
the value never takes part in a comparison.
"""

from __future__ import annotations

__all__ = ["Score", "distinct", "sample_of"]

import math
from collections.abc import Mapping
from dataclasses import KW_ONLY, InitVar, dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from pytest_lmgate.config.signature import Signature
from pytest_lmgate.errors import harmless_line

if TYPE_CHECKING:
    from pytest_lmgate.metrics.sample import Sample

Direction = Literal["lower", "higher"]


@dataclass(eq=False, repr=False)
class Score(float):
    """A metric's value with its noise and provenance.

    Attributes:
        metric: Name of the metric, as in ``ppl``, ``bpb``, ``bleu``.
        unit: What one unit of `n` is counted per: ``token``, ``word``, ``byte``, ``char``, ``row``.
        direction: ``lower`` if smaller values are better, else ``higher``.
        n: How many targets (or rows) the value is a mean over.
        stderr: Standard error in the value's own unit, or None where there are too few clusters.
        interval: Two-sided 95 % interval ``(low, high)`` in the value's own unit, or None likewise.
        signature: Everything needed to reproduce the number from a paper, in one line.
        iid: Whether the protocol's own program prints an error that takes tokens as independent.
        cached: Whether the measurement came from the cache.
        model: Name of the model as the user wrote it.
        dataset: Name of the dataset as the user wrote it.
        device: Where the model runs: ``cpu``, ``cuda``, ``mps``; empty for texts and functions.
        fingerprint: Content address of the measurement.
        seconds: Wall time of measuring or looking up.
        details: Further figures under the field's names.
        sample: What the value is made of, for comparing it with another; not kept by pickling.
        content: Digest of the model, wherever it runs; empty for texts and functions.
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
    fingerprint: str = ""
    seconds: float = 0.0
    details: Mapping[str, Any] = field(default_factory=dict)
    sample: Sample | None = None
    content: str = ""

    def __new__(cls, number: float, **_: object) -> Score:
        """Make the float; the fields are set after it."""
        return super().__new__(cls, number)

    def __post_init__(self, number: float) -> None:
        self.details = dict(self.details)
        if not isinstance(self.signature, Signature):  # a text
            self.signature = Signature.parse(self.signature)

    def placed(self, *, model: str, dataset: str, fingerprint: str, cached: bool, seconds: float) -> Score:
        """Return this score with the names and the address of the measurement it came from."""
        where = {"model": model, "dataset": dataset, "fingerprint": fingerprint, "cached": cached, "seconds": seconds}
        return _rebuild(float(self), {**vars(self), **where})

    def identified(self, data: str, **others: str) -> Score:
        """Return this score with a sample that says what it was measured on, by digests: its data, and what else."""
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

    def __repr__(self) -> str:
        noise = f" [{self.interval[0]:.6g}, {self.interval[1]:.6g}]" if self.interval else ""
        where = harmless_line(f", {self.model} on {self.dataset}") if self.model else ""
        cached = ", cached" if self.cached else ""
        return f"{self.metric} {float(self):.6g}{noise} ({self.n:,} {self.unit}s, {self.signature}{where}{cached})"

    def __str__(self) -> str:
        return float.__repr__(self)

    def __reduce__(self) -> tuple[Any, ...]:
        return _rebuild, (float(self), {**vars(self), "sample": None})


def sample_of(score: Score) -> Sample:
    """Return the sample of a score to compare; only percentiles of a divergence lack one, and none is compared."""
    assert score.sample is not None
    return score.sample


def distinct(a: float, b: float) -> tuple[str, str]:
    """Format two numbers with as many digits as it takes to see that they differ, if they do."""
    for digits in range(6, 18):
        left, right = f"{a:.{digits}g}", f"{b:.{digits}g}"
        if left != right or a == b:
            break
    return left, right


def _rebuild(value: float, attributes: dict[str, Any]) -> Score:
    return Score(value, **attributes)
