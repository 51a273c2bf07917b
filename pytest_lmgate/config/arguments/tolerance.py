"""How much worse a candidate may be: ``"1%"`` of the reference's value, or an absolute number in the metric's own unit.

A tolerance is a size without a sign: which way is worse belongs to the metric, so the same ``"1%"`` bounds a perplexity
from above and an accuracy from below.
"""

from __future__ import annotations

__all__ = ["Tolerance", "decimal_hint"]

import math
import re
import sys
from dataclasses import dataclass
from typing import Literal

from pytest_lmgate.errors import ConfigError

_PERCENT = re.compile(r"(?P<number>(\d+(\.\d*)?|\.\d+))\s*%")


@dataclass(frozen=True)
class Tolerance:
    """The largest degradation that a gate lets pass; the tolerance itself passes.

    Attributes:
        size: A fraction of the reference's value (0.01 for ``"1%"``), or a number in the metric's unit; not negative.
        relative: Which of the two.
    """

    size: float
    relative: bool

    @classmethod
    def parse(cls, written: object) -> Tolerance:
        """Read what the user wrote: a text such as ``"1%"`` or ``"0.5 %"``, or a number.

        Raises:
            ConfigError: It is neither, or negative, not finite, or above 100%.
        """
        if isinstance(written, str):
            match = _PERCENT.fullmatch(written.strip())
            if match is None:
                raise ConfigError.of(
                    "tolerance",
                    'expected a percentage of the reference such as "1%", or a number without quotes in '
                    f"the metric's own unit, got {written!r}{decimal_hint(written)}",
                )
            percent = float(match["number"])
            if not math.isfinite(percent):
                raise ConfigError.of("tolerance", f"expected a finite percentage, got {len(written)} characters")
            if percent > 100:
                raise ConfigError.of("tolerance", f"expected at most 100% of the reference, got {written!r}")
            return cls(percent / 100, relative=True)
        if isinstance(written, bool) or not isinstance(written, int | float):
            raise ConfigError.of(
                "tolerance",
                f'expected a percentage such as "1%" or a number, got {written!r} ({type(written).__name__})',
            )
        if isinstance(written, int) and abs(written) > sys.float_info.max:
            raise ConfigError.of("tolerance", "expected a finite size, got a whole number beyond the range of a float")
        if not math.isfinite(written) or written < 0:
            raise ConfigError.of(
                "tolerance",
                f"expected a finite size that is not negative, got {written!r}; the metric itself says "
                "which way is worse",
            )
        return cls(float(written), relative=False)

    def require_that_it_can_fail(self, metric: str, direction: Literal["lower", "higher"], span: float | None) -> None:
        """Refuse a tolerance that no candidate could exceed.

        Args:
            metric: Name, for the message.
            direction: Of the metric.
            span: Distance between the metric's best and worst value, as 1 for an accuracy; None if it has no end.

        Raises:
            ConfigError: The gate could never fail, as with ``tolerance=1`` for an accuracy where ``"1%"`` was meant.
        """
        largest = (1.0 if direction == "higher" else None) if self.relative else span
        if largest is not None and self.size >= largest:
            raise ConfigError.of(
                "tolerance",
                f"expected less than {Tolerance(largest, self.relative)} for {metric}, got {self}: no "
                "candidate can be worse than that, so the gate could never fail",
            )

    def __str__(self) -> str:
        return f"{100 * self.size:.12g}%" if self.relative else f"{self.size:.12g}"


def decimal_hint(written: object) -> str:
    """Say how to write a number that has a comma, as in ``10,5``; empty for anything else."""
    if not isinstance(written, str) or not re.fullmatch(r"\s*[-+]?\d+,\d+\s*%?\s*", written):
        return ""
    return f"; a decimal has a dot: {written.strip().replace(',', '.')}"
