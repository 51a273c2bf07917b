"""How often is `lmgate judge` wrong where the true loss is just the tolerance, and how long does it take?

    python benchmarks/judge_results.py                # 2,000 pairs a setting, twenty minutes on one core
    python benchmarks/judge_results.py --pairs 50     # seconds
    python benchmarks/judge_results.py --time         # the command, on files as lm-evaluation-harness writes them

PASS and FAIL are one-sided tests at 5% each. Exits with 1 if one of them is wrong in more than 7.5% of the pairs, or in
more than 5% by three standard errors of the simulation where rows are independent and PASS is wrong; or if the command
takes longer than is required.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import random
import resource
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from pytest_lmgate.data.results.pairs import grouped, paired
from pytest_lmgate.data.results.rows import Group, ResultRow, ResultRun, Series, Weights
from pytest_lmgate.settings.gates import Tolerance
from pytest_lmgate.tools.judge_results.verdicts import Rules, judged

TOLERANCE, SHARE, CHURN = 0.05, 0.75, 0.08
Drawn = list[tuple[str, NDArray[np.float64], NDArray[np.float64], NDArray[np.int64]]]
"""Name of each task, scores of the reference and of the candidate, and the cluster of each row."""


def independent(rng: np.random.Generator, rows: int, loss: float = TOLERANCE) -> Drawn:
    """Rows that are right or wrong, with a mean loss, of which some change both ways."""
    before = (rng.random(rows) < SHARE).astype(float)
    lost = rng.random(rows) < (CHURN + loss) / SHARE
    gained = rng.random(rows) < CHURN / (1 - SHARE)
    return [("t", before, np.where(before > 0, ~lost, gained).astype(float), np.arange(rows))]


def epochs(rng: np.random.Generator, samples: int, repeats: int) -> Drawn:
    """Samples that are asked several times, of which some lose a third of their answers, or all that are right.

    The share of right answers is of Beta(3, 1), so the mean loss of such a sample is ``E min(share, 1/3) = 107 / 324``.
    """
    share = rng.beta(3, 1, samples)
    damaged = np.where(rng.random(samples) < TOLERANCE * 324 / 107, np.maximum(share - 1 / 3, 0), share)
    cluster = np.repeat(np.arange(samples), repeats)
    before, after = ((rng.random(len(cluster)) < values[cluster]).astype(float) for values in (share, damaged))
    return [("t", before, after, cluster)]


def documents(rng: np.random.Generator, number: int) -> Drawn:
    """Documents with 1 to 40 questions, most with few; some lose half of their right answers, long ones more often."""
    sizes = np.minimum(np.ceil(rng.lognormal(1, 1, number)), 40).astype(np.int64)
    cluster = np.repeat(np.arange(number), sizes)
    # The chance is in proportion to the length, where sum n p(n) / sum n = 2 tolerance / share over all documents.
    hit = rng.random(number) < sizes * (2 * TOLERANCE / SHARE) * MEAN_SIZE / MEAN_SQUARE
    before = rng.random(len(cluster)) < SHARE
    after = before & ~(hit[cluster] & (rng.random(len(cluster)) < 0.5))
    return [("t", before.astype(float), after.astype(float), cluster)]


_LENGTHS = np.minimum(np.ceil(np.random.default_rng(1).lognormal(1, 1, 2_000_000)), 40)
MEAN_SIZE, MEAN_SQUARE = float(_LENGTHS.mean()), float((_LENGTHS**2).mean())
SIZES = (20, 25, 30, 40, 50, 60, 80, 100, 150, 250, 400, 800)


def tasks(rng: np.random.Generator, weights: Weights, damaged: tuple[int, ...]) -> Drawn:
    """Tasks of uneven size, of which some have the whole loss; their average has the tolerance."""
    whole, part = (sum(sizes) if weights == "size" else len(sizes) for sizes in (SIZES, damaged))
    losses = [TOLERANCE * whole / part if size in damaged else 0.0 for size in SIZES]
    return [(f"t{size}", *independent(rng, size, loss)[0][1:]) for size, loss in zip(SIZES, losses, strict=True)]


def of_tasks(weights: Weights, damaged: tuple[int, ...]) -> tuple[Callable[[np.random.Generator], Drawn], Weights]:
    return lambda rng: tasks(rng, weights, damaged), weights


SETTINGS: dict[str, tuple[Callable[[np.random.Generator], Drawn], Weights | None]] = {
    "50 rows": (lambda rng: independent(rng, 50), None),
    "200 rows": (lambda rng: independent(rng, 200), None),
    "1,319 rows": (lambda rng: independent(rng, 1319), None),
    "50 samples, 4 epochs": (lambda rng: epochs(rng, 50, 4), None),
    "200 samples, 4 epochs": (lambda rng: epochs(rng, 200, 4), None),
    "50 documents of 1 to 40 questions": (lambda rng: documents(rng, 50), None),
    "200 documents of 1 to 40 questions": (lambda rng: documents(rng, 200), None),
    "12 tasks of 20 to 800 rows, by size": of_tasks("size", SIZES),
    "the same, by task": of_tasks("task", SIZES),
    "by size, the loss in the largest": of_tasks("size", SIZES[-1:]),
    "by size, the loss in the 5 smallest": of_tasks("size", SIZES[:5]),
    "by task, the loss in the 2 largest": of_tasks("task", SIZES[-2:]),
    "by task, the loss in the 2 smallest": of_tasks("task", SIZES[:2]),
}


def verdict(drawn: Drawn, weights: Weights | None) -> str:
    group = {"g": Group(tuple(task for task, *_ in drawn))} if weights else {}
    runs = (
        ResultRun(path=Path("old"), tool="simulated", model="old", groups=group),
        ResultRun(path=Path("new"), tool="simulated", model="new", groups=group),
    )
    pairs = []
    for task, *both, clusters in drawn:
        sides = []
        for scores in both:
            rows = tuple(
                ResultRow(str(at), cluster=str(cluster), score=float(score))
                for at, (score, cluster) in enumerate(zip(scores, clusters, strict=True))
            )
            sides.append(Series(task=task, metric="acc", rows=rows, direction="higher"))
        pairs.append(paired(*sides, "error"))
    [pair] = grouped(pairs, runs, weights, ()) if weights else pairs
    found = judged(pair, runs, Rules(Tolerance(TOLERANCE, relative=False)), ())
    assert found.verdict != "error", found.message
    return found.verdict


def simulate(number: int) -> bool:
    """Print how often each setting is judged wrongly, and return whether one is so too often."""
    error, broken = math.sqrt(0.05 * 0.95 / number), False
    print(f"{number:,} pairs a setting with a true loss of {TOLERANCE}, the tolerance\n\n{'':<38}PASS   FAIL")
    for seed, (name, (draw, weights)) in enumerate(SETTINGS.items()):
        rng = np.random.default_rng(seed)
        counts = Counter(verdict(draw(rng), weights) for _ in range(number))
        passes, fails = (counts[outcome] / number for outcome in ("pass", "fail"))
        print(f"{name:<38}{100 * passes:4.1f}%  {100 * fails:4.1f}%", flush=True)
        limit = 0.05 + 3 * error if "rows" in name else 0.075 + 2 * error
        broken |= passes > limit or fails > 0.075 + 2 * error
    return broken


def written(folder: Path, tasks: dict[str, int], choices: int, seed: int) -> Path:
    """Write rows as the harness does: of choices, each with its prompt of 2,000 characters, or of a generated text."""
    drawn, folder = random.Random(seed), folder / f"run{seed}"
    folder.mkdir(parents=True)
    for task, size in tasks.items():
        lines = []
        for at in range(size):
            requests = {f"gen_args_{n}": {"arg_0": "word " * 400, "arg_1": f" {n}"} for n in range(choices)}
            requests = requests or {"gen_args_0": {"arg_0": "word " * 400, "arg_1": {"until": ["\n"]}}}
            responses = [[str(-drawn.random()), "False"] for _ in range(choices)] or ["42"]
            row = {"doc_id": at, "doc": {"question": "word " * 50, "subject": task}, "target": "0"}
            row |= {"arguments": requests, "resps": [responses], "filtered_resps": responses, "filter": "none"}
            row |= {f"{part}_hash": f"{part} {task} {at}".rjust(64, "0") for part in ("doc", "prompt", "target")}
            lines.append(json.dumps(row | {"metrics": ["acc"], "acc": float(drawn.random() < 0.7)}))
        (folder / f"samples_{task}_2026-11-27T10-55-28.94543{seed}.jsonl").write_text("\n".join(lines))
    return folder


def timed() -> bool:
    """Print the processor time of the command, the best of ten, and return whether it is above what is required."""
    broken = False
    subjects = {f"subject_{at}": 100 + 5 * at for at in range(57)}  # 13,680 rows
    with tempfile.TemporaryDirectory() as name:
        for of, tasks, choices, required in (("1,319 rows", {"gsm8k": 1319}, 0, 0.6), ("57 tasks", subjects, 4, 2.0)):
            sides = [str(written(Path(name) / of, tasks, choices, seed)) for seed in (0, 1)]
            command = [sys.executable, "-m", "pytest_lmgate.cli", "judge", *sides, "--tolerance", "2%"]
            seconds = []
            for _ in range(11):
                before = resource.getrusage(resource.RUSAGE_CHILDREN)
                environment = {key: value for key, value in os.environ.items() if key != "PYTHONDONTWRITEBYTECODE"}
                subprocess.run(command, env=environment, stdout=subprocess.DEVNULL, check=False)
                after = resource.getrusage(resource.RUSAGE_CHILDREN)
                seconds.append(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)
            best = min(seconds[1:])
            print(f"{of} on each side: {best:.2f} s of processor time; required: at most {required} s", flush=True)
            broken |= best > required
    return broken


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pairs", type=int, default=2000)
    parser.add_argument("--time", action="store_true")
    arguments = parser.parse_args()
    sys.exit(timed() if arguments.time else simulate(arguments.pairs))


if __name__ == "__main__":
    main()
