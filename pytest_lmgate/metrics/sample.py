"""What a score is made of, cluster by cluster: enough to compare it with another score on the same targets or rows."""

from __future__ import annotations

__all__ = ["Sample", "Scale"]

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from pytest_lmgate.metrics.noise import MAX_CLUSTERS, block_clusters
from pytest_lmgate.metrics.score import Direction

if TYPE_CHECKING:
    from pytest_lmgate.metrics.texts import TextMetric

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


@dataclass(frozen=True)
class Scale:
    """How a metric's value comes from the mean over targets.

    Attributes:
        direction: ``lower`` if smaller values are better.
        exponential: Whether the value is ``exp(factor * mean)``, as perplexity's, or ``factor * mean``.
        factor: Targets per unit: 1 for tokens and rows, N / words for a perplexity per word, N / (ln 2 * bytes) for
            bits per byte. A property of the text, above 0 and the same for both models.

    Raises:
        ValueError: `factor` is not above 0, or larger values of an exponential scale are better.
    """

    direction: Direction
    exponential: bool = False
    factor: float = 1.0

    def __post_init__(self) -> None:
        if not 0 < self.factor < math.inf:
            raise ValueError(f"expected a factor above 0, got {self.factor!r}")
        if self.exponential and self.direction == "higher":
            raise ValueError("expected direction 'lower' of an exponential scale, got 'higher'")

    def value(self, mean: float) -> float:
        """Return the metric's value for a mean; infinite where the exponential overflows."""
        if not self.exponential:
            return self.factor * mean
        return math.exp(self.factor * mean) if self.factor * mean < 709 else math.inf


@dataclass(frozen=True, eq=False)
class Sample:
    """Additive statistics of each cluster, and how a value is made of their sum.

    Attributes:
        sums: Shape ``[clusters, k]``; k is 1 where there is a scale.
        counts: Targets or rows of each cluster, shape ``[clusters]``.
        scale: Of a metric that is a mean over targets or rows, or the exponential of one; None for others.
        metric: Of the others: makes a value of summed statistics.
        identity: What was measured, part by part (``data``, ``targets``, ``protocol``, ``reference``): samples are
            comparable where every part is the same.
    """

    sums: Floats
    counts: Ints
    scale: Scale | None = None
    metric: TextMetric | None = None
    identity: Mapping[str, str] = field(default_factory=dict)

    @property
    def direction(self) -> Direction:
        """``lower`` if smaller values are better."""
        if self.scale is not None:
            return self.scale.direction
        assert self.metric is not None
        return self.metric.direction

    def value(self) -> float:
        """Return the metric's value."""
        total = self.sums.sum(axis=0)
        if self.scale is not None:
            return self.scale.value(float(total[0]) / int(self.counts.sum()))
        assert self.metric is not None
        return float(self.metric.value(total))

    def identified(self, *, signature: str, **parts: str) -> Sample:
        """Return the sample with what its score was measured on and by; versions of programs are left out."""
        fields = signature.split("|")
        protocol = "|".join(each for each in fields if not each.startswith(("version:", "lmgate:")))
        return replace(self, identity={**self.identity, **parts, "protocol": protocol})

    def merged(self) -> Sample:
        """Return the sample in at most 512 clusters: neighbours are merged, as even in size as they allow."""
        if len(self.counts) <= MAX_CLUSTERS:
            return self
        groups = block_clusters(np.arange(len(self.counts)), self.counts, running_text=False)
        begins = np.flatnonzero(np.diff(groups, prepend=-1))
        return replace(
            self, sums=np.add.reduceat(self.sums, begins, axis=0), counts=np.add.reduceat(self.counts, begins)
        )
