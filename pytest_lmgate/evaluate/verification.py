"""``--lmgate-verify``: some cache hits of a session, drawn at random, are measured again at its end and compared.

A checksum shows that an entry is whole, not that it is true: whoever can write to the cache can write a checksum.
Models in memory are not drawn, since the user's object may have changed by the end of the session.
"""

from __future__ import annotations

__all__ = ["Verification"]

import secrets
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from pytest_lmgate.backends.base import Model
from pytest_lmgate.cache.store import Entry
from pytest_lmgate.errors import harmless_line
from pytest_lmgate.evaluate.measurements.measurement import Measurement

if TYPE_CHECKING:
    from pytest_lmgate.evaluate.lookup import Measurements

# Mean difference per token, in nats, that the rounding of another machine explains, and a quarter as much for each nat
# of the mean: 4 eps of the dtype, and this at least. Measured between AVX-512 and SSE on two Llamas of 260,000 weights:
# 1e-6 in float32, 2.2 eps in float16, 2.3 eps in bfloat16, where 1.1 % of the most likely tokens were others.
_FLOAT32_ROUNDING = 1e-4
_ROUNDINGS = {"bfloat16": 4 * 2.0**-7, "float16": 4 * 2.0**-10}
_NEAR_TIES = 3  # so many values of yes or no, such as whether the most likely token is the same, may differ on any text


@dataclass
class Verification:
    """The cache hits of a session, of which some are measured again.

    Attributes:
        size: How many are measured again, at most.
        hits: How many there were to draw from.
        in_memory: Hits of models in memory, which are not drawn.
    """

    size: int
    hits: int = 0
    in_memory: int = 0
    _drawn: list[tuple[Measurement[Any], Any]] = field(default_factory=list)

    def note(self, measurement: Measurement[Any], found: Any) -> None:
        """Note a hit. In the end any is drawn as likely as any other (Vitter 1985, algorithm R)."""
        if not self.size:
            return
        if any(model.in_memory for model in measurement.models):
            self.in_memory += 1
            return
        self.hits += 1
        place = len(self._drawn) if len(self._drawn) < self.size else secrets.randbelow(self.hits)
        if place < self.size:
            self._drawn[place : place + 1] = [(measurement, found)]

    def run(self, measurements: Measurements) -> dict[str, Any]:
        """Measure the drawn hits again.

        Returns:
            Counts of ``hits``, hits ``in_memory`` and hits ``verified``, and under ``problems`` a sentence for each
            that is not what is measured, or cannot be measured.
        """
        drawn = sorted(self._drawn, key=lambda hit: hit[0].words)  # so that each model is loaded once
        problems = [problem for hit in drawn if (problem := _problem(measurements, *hit))]
        return {"hits": self.hits, "in_memory": self.in_memory, "verified": len(drawn), "problems": problems}


def _problem(measurements: Measurements, measurement: Measurement[Any], found: Any) -> str:
    what = measurement.words
    try:
        again = measurement.encode(measurements.again(measurement))
        differs = _difference(measurement.encode(found), again, max(map(_rounding, measurement.models)))
    except Exception as error:  # out of memory, say: whatever it is, the entry is not verified
        why = f"{type(error).__name__}: {error}"
        return harmless_line(f"--lmgate-verify: {what}: cannot be measured again, so nothing is verified: {why}")
    if not differs:
        return ""
    entry = measurements.store.path(measurement.fingerprint)
    return harmless_line(
        f"--lmgate-verify: {what}: the cache entry is not what the model gives: {differs}; do not trust the "
        f"gates that used it; find out who wrote {entry} or the digests in that cache, and delete both"
    )


def _difference(kept: Entry, again: Entry, rounding: float) -> str:
    """Say in which array or fact two measurements differ beyond rounding; empty if in none."""
    for name in sorted(kept.arrays.keys() | again.arrays.keys()):
        one, other = kept.arrays.get(name), again.arrays.get(name)
        if one is None or other is None or one.shape != other.shape:
            return f"{name} is {_shape(one)} in the cache and {_shape(other)} when measured again"
        if not np.array_equal(one, other) and (said := _beyond(one, other, rounding)):
            return f"{name} {said}"
    for name in sorted(kept.facts.keys() | again.facts.keys()):
        if said := _unequal(kept.facts.get(name), again.facts.get(name)):
            return f"{name}{said}"
    return ""


def _beyond(one: NDArray[Any], other: NDArray[Any], rounding: float) -> str:
    """The mean difference bounds the difference of the means, and so what it does to any value that a gate judges."""
    is_rounded = other.dtype.kind == "f"
    one, other = one.astype(float), other.astype(float)
    with np.errstate(all="ignore"):
        allowed = rounding * (1 + float(np.abs(other).mean()) / 4) if is_rounded else 0.0
        if is_rounded and np.isin(other, (0, 1)).all():
            allowed += _NEAR_TIES / other.size
        difference = float(np.abs(one - other).mean())
        if difference <= allowed:
            return ""
        return (
            f"is {one.mean():.6g} on average in the cache and {other.mean():.6g} when measured again (mean difference "
            f"{difference:.2g}, rounding explains {allowed:.2g})"
        )


def _unequal(one: Any, other: Any) -> str:
    if one == other:
        return ""
    if isinstance(one, list) and isinstance(other, list) and len(one) == len(other):
        row = next(row for row, (a, b) in enumerate(zip(one, other, strict=True)) if a != b)
        return f", row {row}, is {one[row]!r:.80} in the cache and {other[row]!r:.80} when measured again"
    return f" is {one!r:.80} in the cache and {other!r:.80} when measured again"


def _shape(array: NDArray[Any] | None) -> str:
    return "missing" if array is None else f"of shape {list(array.shape)}"


def _rounding(model: Model) -> float:
    """Return what rounding may change on another machine, by the dtype that a model computes in."""
    return max(_FLOAT32_ROUNDING, _ROUNDINGS.get(model.dtype, 0.0))
