"""The simulation as a picture: what each method says against the number of documents."""

from __future__ import annotations

__all__ = ["draw", "load_matplotlib"]

import importlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from judges import METHODS
from pairs import TRUTHS
from promises import Point

_STYLES = {
    "pytest-lmgate": {"color": "#0b6e4f", "marker": "o", "lw": 2.2, "zorder": 5},
    "Student's bounds": {"color": "#d98e04", "marker": "v", "ls": ":"},
    "fixed tolerance": {"color": "#8a8a8a", "marker": "s", "ls": "--"},
    "llama.cpp": {"color": "#d1495b", "marker": "^"},
    "unpaired z-test": {"color": "#2e6fb7", "marker": "D"},
}
# Label, truth, share in Point, level that is promised and whether more is better, limits of the axis.
_ROWS = (
    ("worse by the tolerance:\nPASS, % (promised ≤ 5)", TRUTHS[0], "passed", 5, False, (0, 60)),
    ("worse by the tolerance:\n95% interval covers, %\n(promised ≥ 95)", TRUTHS[0], "covered", 95, True, (0, 104)),
    ("no change:\nPASS, %", TRUTHS[1], "passed", None, True, (0, 104)),
    ("no change:\nverdict FAIL, %\n(promised ≤ 5)", TRUTHS[1], "failed", 5, False, (0, 20)),
)


def load_matplotlib() -> Any:
    """Return pyplot, drawing to files.

    Raises:
        SystemExit: matplotlib is not installed.
    """
    try:
        matplotlib = importlib.import_module("matplotlib")
    except ImportError:
        raise SystemExit(
            "the figure needs matplotlib: pip install -e '.[benchmarks]', or leave it out with --no-figure"
        ) from None
    matplotlib.use("Agg")
    matplotlib.rcParams["svg.hashsalt"] = "decisions"
    return importlib.import_module("matplotlib.pyplot")


def draw(plt: Any, points: Sequence[Point], path: Path) -> None:
    """Draw the points of one noise: a row for each question, a column for each sigma, a line for each method.

    What is promised is shaded.
    """
    spreads = list(dict.fromkeys(point.spread for point in points))
    documents = list(dict.fromkeys(point.documents for point in points))
    figure, axes = plt.subplots(
        len(_ROWS), len(spreads), figsize=(2.9 * len(spreads) + 0.6, 9.5), sharex=True, sharey="row", squeeze=False
    )
    for row, (label, truth, share, level, at_least, limits) in zip(axes, _ROWS, strict=True):
        for axis, spread in zip(row, spreads, strict=True):
            for method in METHODS:
                if method == "fixed tolerance" and share == "covered":
                    continue  # it has no interval
                chosen = [p for p in points if (p.spread, p.truth, p.method) == (spread, truth, method)]
                shares = [100 * getattr(p, share) for p in chosen]
                axis.plot(documents, shares, ms=5, label=method, clip_on=False, **{"lw": 1.4, **_STYLES[method]})
            if level is not None:
                kept = (level, limits[1]) if at_least else (limits[0], level)
                axis.axhspan(*kept, color="#0b6e4f", alpha=0.12, lw=0)
            axis.set(xscale="log", ylim=limits)
            axis.set_xticks(documents, [str(count) for count in documents])
            axis.minorticks_off()
            axis.grid(axis="y", color="0.9", lw=0.8)
            axis.set_axisbelow(True)
            axis.spines[["top", "right"]].set_visible(False)
        row[0].set_ylabel(label, fontsize=9)
    for axis, spread in zip(axes[0], spreads, strict=True):
        axis.set_title("equal lengths" if spread == 0 else f"lognormal lengths, sigma {spread:g}", fontsize=10)
    for axis in axes[-1]:
        axis.set_xlabel("documents")
    handles, labels = axes[0][0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="lower center", ncols=len(METHODS), frameon=False, fontsize=10)
    figure.align_ylabels(axes[:, 0])
    figure.tight_layout(rect=(0, 0.04, 1, 1))
    figure.savefig(path, metadata={"Date": None})
    plt.close(figure)
