"""Show what `benchmarks/fix.py --real ... --write FILE` measured: the size of the smallest model within each KL.

    python benchmarks/fix_figure.py docs/figures "stories260K=stories.json" "10 blocks=trained.json"

Writes fix.svg, which needs matplotlib, and fix.md into the folder. Files with the same label are one checkpoint.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from decision_figure import load_matplotlib

_STYLES: dict[str, dict[str, Any]] = {
    "fix": {"label": "lmgate fix", "color": "#0b6e4f", "marker": "o", "lw": 2.2, "zorder": 5},
    "whole blocks": {"label": "whole blocks by why", "color": "#d98e04", "marker": "v", "ls": ":"},
    "weight error": {"label": "groups by weight error", "color": "#2e6fb7", "marker": "D", "ls": "--", "ms": 4},
    "uniform": {"label": "uniform precision", "color": "#8a8a8a", "marker": "s", "ls": "--"},
}


def draw(panels: dict[str, list[dict[str, Any]]], file: Path) -> None:
    """Draw a panel for each checkpoint and rounding."""
    pyplot = load_matplotlib()
    across = min(4, len(panels))
    figure, axes = pyplot.subplots(-(-len(panels) // across), across, figsize=(3 * across, 6), squeeze=False)
    for axis in axes.flat[len(panels) :]:
        axis.set_visible(False)
    for axis, (title, points) in zip(axes.flat, panels.items(), strict=False):
        limits = [point["limit"] for point in points]
        for method, style in _STYLES.items():
            sizes = [point["sizes"][method][0] for point in points]
            axis.plot(limits, sizes, **style)
        axis.set_title(title.replace(" bits, ", " bits,\n"), fontsize=9)
        axis.set_xscale("log")
        axis.minorticks_off()
        axis.set_xticks(limits[::2], [f"{limit:.2g}" for limit in limits[::2]])
        axis.grid(axis="y", color="#dddddd", lw=0.6)
        axis.spines[["top", "right"]].set_visible(False)
        axis.set_xlabel("KL at most, nats per token", fontsize=8)
        axis.tick_params(labelsize=8)
    for row in axes:
        row[0].set_ylabel("bits for each weight", fontsize=8)
    handles, labels = axes.flat[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="lower center", ncols=4, frameon=False, fontsize=9)
    figure.tight_layout(rect=(0, 0.05, 1, 1))
    figure.savefig(file, metadata={"Date": None})


def table(panels: dict[str, list[dict[str, Any]]]) -> str:
    """Return all points, with the KL of each model on rows that no choice read."""
    lines = [
        "| candidate | KL at most | "
        + " | ".join(style["label"] for style in _STYLES.values())
        + " | smaller than uniform by |",
        "|---|--:|" + "--:|" * (len(_STYLES) + 1),
    ]
    for title, points in panels.items():
        for point in points:
            sizes = point["sizes"]
            cells = [f"{sizes[method][0]:.2f} (KL {sizes[method][1]:.2g})" for method in _STYLES]
            saved = 1 - sizes["fix"][0] / sizes["uniform"][0]
            lines.append(f"| {title} | {point['limit']:.2g} | {' | '.join(cells)} | {100 * saved:.0f}% |")
    return "\n".join(lines) + "\n"


def main() -> None:
    folder, *given = sys.argv[1:]
    panels: dict[str, list[dict[str, Any]]] = {}
    for each in given:
        label, _, path = each.partition("=")
        for point in json.loads(Path(path).read_text(encoding="utf-8")):
            groups = "a scale for each row" if point["group"] is None else f"groups of {point['group']}"
            panels.setdefault(f"{label}, {point['bits']} bits, {groups}", []).append(point)
    for points in panels.values():
        points.sort(key=lambda point: point["limit"])
    draw(panels, Path(folder) / "fix.svg")
    (Path(folder) / "fix.md").write_text(table(panels), encoding="utf-8")


if __name__ == "__main__":
    main()
