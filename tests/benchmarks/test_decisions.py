"""benchmarks/decisions.py: vectorized it says what the package says, its small run keeps every promise, docs agree."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import decisions
import halves
import numpy as np
import pytest
from bell_mccaffrey import degrees_of_freedom
from decision_tables import MAIN, NOISES
from judges import METHODS, OURS, clustered, llama_cpp, require_same_verdicts
from pairs import CONFIDENCE, TRUTHS, Noise, simulate
from promises import broken_promises

from pytest_lmgate.metrics.noise.means import clustered_mean
from tests.end_to_end.projects import environment
from tests.warm import warm_python

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"


@pytest.mark.parametrize("noise", list(NOISES))
@pytest.mark.parametrize("truth", TRUTHS)
@pytest.mark.parametrize(("documents", "spread"), [(2, 0.0), (10, 1.5), (40, 0.5)])
def test_the_closed_form_for_many_is_that_of_one(noise: str, truth: str, documents: int, spread: float) -> None:
    pairs = simulate(np.random.default_rng(0), NOISES[noise], documents, spread, truth, 20)

    judged, df = clustered(pairs), degrees_of_freedom(pairs.counts)

    for each in range(20):
        one = clustered_mean(pairs.sums[each], pairs.counts[each].astype(np.int64))
        bounds, interval = one.bounds(CONFIDENCE), one.bounds(0.5 + CONFIDENCE / 2)
        assert bounds is not None
        assert interval is not None
        assert judged.change[each] == pytest.approx(one.mean, abs=1e-15)
        assert (judged.lower[each], judged.upper[each]) == pytest.approx(bounds[:2], rel=1e-9)
        assert (judged.low[each], judged.high[each]) == pytest.approx(interval[:2], rel=1e-9)
        assert df[each] == pytest.approx(one.df, rel=1e-9)
    require_same_verdicts(pairs, judged, 20)


def test_a_verdict_that_the_package_would_not_give_is_an_error() -> None:
    pairs = simulate(np.random.default_rng(0), NOISES[MAIN], 30, 1.0, TRUTHS[0], 5)

    with pytest.raises(AssertionError, match="but compare_means says"):
        require_same_verdicts(pairs, llama_cpp(pairs), 5)


def test_llama_cpps_error_is_its_formula_over_the_tokens_drawn() -> None:
    """Token by token, for one text: the simulation draws only sums and the squares around them."""
    rng = np.random.default_rng(1)
    noise = Noise(0.05, 0.2)
    drawn = simulate(rng, noise, 50, 0.5, TRUTHS[1], 200)
    counts = drawn.counts[0].astype(int)
    effects = np.repeat(rng.normal(0, noise.documents, (200, 50)), counts, axis=1)
    tokens = effects + rng.normal(0, noise.tokens, effects.shape)

    by_token = np.mean(tokens**2, axis=1) - np.mean(tokens, axis=1) ** 2

    assert drawn.iid_variance.mean() == pytest.approx(by_token.mean(), rel=0.01)
    judged = llama_cpp(drawn)
    stderr = np.sqrt(drawn.iid_variance / (drawn.counts.sum(axis=1) - 1))
    assert (judged.upper - judged.lower) / 2 / 1.6448536269514722 == pytest.approx(stderr)


def test_a_method_that_takes_tokens_as_independent_breaks_the_promises() -> None:
    points = [point for found in decisions.run([MAIN], (100,), (1.0,), 2000) for point in found]
    kept = list(broken_promises((point for point in points if point.method == OURS), 2000))
    broken = list(broken_promises((point for point in points if point.method == "llama.cpp"), 2000))

    assert kept == []
    assert any("at the tolerance: PASS" in promise for promise in broken)
    assert any("at the tolerance: coverage" in promise for promise in broken)


def test_a_promise_is_broken_from_three_monte_carlo_standard_errors_on() -> None:
    point = next(p for found in decisions.run([MAIN], (10,), (0.0,), 100) for p in found if p.method == OURS)
    # 3 * sqrt(0.05 * 0.95 / 10,000) = 0.00654; 3 * sqrt(0.95 * 0.05 / 10,000) is the same.
    fine = replace(point, passed=0.0565, failed=0.0, covered=0.9435)

    assert list(broken_promises([fine], 10_000)) == []
    assert len(list(broken_promises([replace(fine, passed=0.0566)], 10_000))) == 1
    assert len(list(broken_promises([replace(fine, covered=0.9434)], 10_000))) == 1


def run_script(*arguments: str, python: str = sys.executable) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [python, "-W", "error", "benchmarks/decisions.py", *arguments],
        cwd=ROOT,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
    )


def test_the_small_run_keeps_every_promise_and_writes_the_tables(tmp_path: Path) -> None:
    ran = run_script("--only", "simulated", "--quick", "--no-figure", "--docs", str(tmp_path))

    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert "0 promises broken, 400 repetitions" in ran.stdout
    written = (tmp_path / "decisions.md").read_text(encoding="utf-8")
    assert written.count("\n| 30 | 1.5 |") == 2 * len(NOISES) + len(METHODS) - 2
    assert "0 are broken." in written
    assert "**" in written.partition("## llama.cpp")[2], "what others break is marked"
    assert not (tmp_path / "decisions.svg").exists()


def test_without_matplotlib_the_figure_is_refused_before_anything_runs(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)

    with pytest.raises(SystemExit, match="the figure needs matplotlib: pip install"):
        decisions.main(["--quick", "--docs", str(tmp_path / "figures")])

    assert not (tmp_path / "figures").exists()


def test_the_figure_is_drawn_where_matplotlib_is_installed(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")

    ran = run_script("--only", "simulated", "--quick", "--repetitions", "100", "--docs", str(tmp_path))

    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert "<svg" in (tmp_path / "decisions.svg").read_text(encoding="utf-8")


def test_the_guide_shows_the_summary_that_was_written() -> None:
    written = (DOCS / "figures" / "decisions.md").read_text(encoding="utf-8").splitlines()
    begin = written.index("## All methods") + 4
    summary = written[begin : begin + 2 + len(METHODS)]

    assert summary[-1].startswith("| unpaired z-test |")
    assert "\n".join(summary) in (DOCS / "decisions.md").read_text(encoding="utf-8")


def test_a_resampled_metric_keeps_its_level_and_the_guide_shows_the_table(tmp_path: Path) -> None:
    ran = run_script("--only", "resampled", "--quick", "--repetitions", "1", "--docs", str(tmp_path))

    assert ran.returncode == 0, ran.stdout + ran.stderr
    shown = (DOCS / "figures" / "resampled.md").read_text(encoding="utf-8")
    head = (tmp_path / "resampled.md").read_text(encoding="utf-8").splitlines()[:2]
    assert shown.splitlines()[:2] == head
    assert shown in (DOCS / "decisions.md").read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("part", "table"), [("rows", "right_or_wrong.md"), ("text", "running_text.md"), ("damage", "heavy_damage.md")]
)
def test_a_small_run_of_each_further_part_keeps_its_promises_and_the_guide_shows_its_table(
    part: str, table: str, tmp_path: Path
) -> None:
    ran = run_script("--only", part, "--quick", "--docs", str(tmp_path))

    assert ran.returncode == 0, ran.stdout + ran.stderr
    shown = (DOCS / "figures" / table).read_text(encoding="utf-8")
    assert shown.splitlines()[:2] == (tmp_path / table).read_text(encoding="utf-8").splitlines()[:2]
    assert shown in (DOCS / "decisions.md").read_text(encoding="utf-8")


def test_halves_are_halves_and_the_narrowed_interval_is_that_of_sampling_without_replacement() -> None:
    chosen = halves.halves(30)
    assert len(chosen) == 200
    assert all(len(set(half)) == 15 and set(half) <= set(range(30)) for half in chosen)
    assert len({tuple(half) for half in chosen}) > 190
    rng = np.random.default_rng(7)
    counts = np.full(300, 50)
    found = halves.coverage(halves.Measured(counts * rng.normal(0.01, 0.02, 300), np.zeros(300), counts))

    assert found.holds
    assert found.expected == pytest.approx(0.995, abs=0.001)
    assert found.narrowed < 1


NUMBER = re.compile(r"[-+]?\d+(\.\d+)?(?=%)")


@pytest.mark.torch
def test_real_models_are_judged_as_the_guide_shows(tmp_path: Path) -> None:
    ran = run_script("--only", "real", "--docs", str(tmp_path), python=warm_python(environment()))

    assert ran.returncode == 0, ran.stdout + ran.stderr
    shown = (DOCS / "figures" / "halves.md").read_text(encoding="utf-8")
    found = (tmp_path / "halves.md").read_text(encoding="utf-8")
    assert NUMBER.sub("", found) == NUMBER.sub("", shown)
    for now, then in zip(NUMBER.finditer(found), NUMBER.finditer(shown), strict=True):
        # Another processor rounds otherwise: a share may be off by three halves, a change by a few of its last digits.
        room = 0.005 if len((then[1] or "").lstrip(".")) == 3 else 1.6
        assert float(now[0]) == pytest.approx(float(then[0]), abs=room)
    tables = shown[shown.index("| candidate |") :].strip().split("\n\n")
    assert len(tables) == 2
    assert all(table in (DOCS / "decisions.md").read_text(encoding="utf-8") for table in tables)
