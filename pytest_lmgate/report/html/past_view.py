"""A gate's last runs, as the page draws them: values with their intervals and limits in a few paths."""

from __future__ import annotations

__all__ = ["PastView", "past_view"]

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby

from pytest_lmgate.report.plot import Axis
from pytest_lmgate.report.runs.history import when
from pytest_lmgate.report.runs.past import PastRun
from pytest_lmgate.report.wording.excerpt import excerpt

HEIGHT = 60
_LINE = 300


@dataclass(frozen=True)
class PastView:
    """Runs side by side, the first at 0; y grows downward to 60. All but the texts are paths.

    Attributes:
        noise: The intervals.
        changes: Where a value changed beyond noise.
        dots: Class and path of the runs that did not pass, and of this one.
        axis: Of the values, from the bottom; None where they are too far apart.
        ends: Date and commit of the first run and of the last.
        notes: A sentence for each change.
    """

    words: str
    runs: int
    noise: str
    values: str
    limits: str
    changes: str
    dots: Sequence[tuple[str, str]]
    axis: Axis | None
    ends: tuple[str, str]
    notes: Sequence[str]


def past_view(past: Sequence[PastRun], most: int) -> PastView | None:
    """Return what the page shows of so many runs of a gate at most, the newest last; None without two values."""
    runs = list(past[-most:])
    valued = [(at, run, run.value) for at, run in enumerate(runs) if run.value is not None]
    if len(valued) < 2:
        return None
    numbers = [each for run in runs for each in (run.value, run.limit, *(run.interval or ())) if each is not None]
    axis = Axis.over(numbers, most=4)

    def y(value: float | None, end: int) -> int:
        if value is None:
            return end
        return HEIGHT // 2 if axis is None else round(HEIGHT * (1 - axis.place(value) / 100))

    noise = [
        f"M{at} {y(run.interval[1], 0)}V{y(run.interval[0], HEIGHT)}"
        for at, run, _ in valued
        if run.interval is not None
    ]
    dots = {run.verdict: "" for run in runs}
    for at, run, value in valued:
        if run.verdict != "pass" or run is runs[-1]:
            dots[run.verdict] += f"M{at} {y(value, 0)}h0"
    return PastView(
        words=f"the last {len(runs)} runs, with 95% intervals; the dashed line is the limit",
        runs=len(runs),
        noise="".join(noise),
        values="M" + " ".join(f"{at} {y(value, 0)}" for at, _, value in valued),
        limits=_steps([None if run.limit is None else y(run.limit, 0) for run in runs]),
        changes="".join(f"M{at} 0V{HEIGHT}" for at, run in enumerate(runs) if _is_change(run)),
        dots=[(verdict, path) for verdict, path in dots.items() if path],
        axis=axis,
        ends=(_end(runs[0]), _end(runs[-1])),
        notes=[excerpt(_note(run), _LINE) for run in runs if _is_change(run) or (run.kind == "first" and run.words)],
    )


def _steps(heights: Sequence[int | None]) -> str:
    """Return a line at each run's height, in one stroke as long as the height stays."""
    path, at = "", 0
    for height, same in groupby(heights):
        length = len(list(same))
        path += "" if height is None else f"M{at - 0.5:g} {height}h{length}"
        at += length
    return path


def _is_change(run: PastRun) -> bool:
    return run.kind in ("worse", "better")


def _end(run: PastRun) -> str:
    return excerpt(f"{run.date[:10]} {run.commit[:7]}".rstrip(), 20)


def _note(run: PastRun) -> str:
    where = f"{when(run.date)} {run.commit}".rstrip()
    return f"{where}: {run.kind if _is_change(run) else 'compared anew from here'}: {run.words}"
