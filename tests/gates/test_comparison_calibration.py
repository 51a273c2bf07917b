"""benchmarks/decisions.py: its vectorized closed form is the package's, and its smoke run keeps every promise."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from benchmarks import decisions
from pytest_lmgate.metrics.noise import clustered_mean

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("noise", list(decisions.NOISES))
@pytest.mark.parametrize("truth", decisions.TRUTHS)
@pytest.mark.parametrize(("documents", "spread"), [(2, 0.0), (10, 1.5), (40, 0.5)])
def test_the_closed_form_for_many_is_that_of_one(noise: str, truth: str, documents: int, spread: float) -> None:
    rng = np.random.default_rng(0)
    pairs = decisions.simulate(rng, decisions.NOISES[noise], documents, spread, truth, 20)

    judged, df = decisions.clustered(pairs), decisions.bell_mccaffrey(pairs.counts)

    for each in range(20):
        one = clustered_mean(pairs.sums[each], pairs.counts[each].astype(np.int64))
        assert judged.change[each] == pytest.approx(one.mean, abs=1e-15)
        assert judged.stderr[each] == pytest.approx(one.stderr, rel=1e-9)
        assert df[each] == pytest.approx(one.df, rel=1e-9)
    decisions.require_same_verdicts(pairs, judged, 20)


def test_a_verdict_that_the_package_would_not_give_is_an_error() -> None:
    rng = np.random.default_rng(0)
    pairs = decisions.simulate(rng, decisions.NOISES[decisions.MAIN], 30, 1.0, decisions.TRUTHS[0], 5)

    with pytest.raises(AssertionError, match="but compare_means says"):
        decisions.require_same_verdicts(pairs, decisions.llama_cpp(pairs), 5)


def test_llama_cpps_error_is_its_formula_over_the_tokens_drawn() -> None:
    """Token by token, for one text: the simulation draws only sums and the squares around them."""
    rng = np.random.default_rng(1)
    noise = decisions.Noise(0.05, 0.2)
    drawn = decisions.simulate(rng, noise, 50, 0.5, decisions.TRUTHS[1], 200)
    counts = drawn.counts[0].astype(int)
    effects = np.repeat(rng.normal(0, noise.documents, (200, 50)), counts, axis=1)
    tokens = effects + rng.normal(0, noise.tokens, effects.shape)

    by_token = np.mean(tokens**2, axis=1) - np.mean(tokens, axis=1) ** 2

    assert drawn.iid_variance.mean() == pytest.approx(by_token.mean(), rel=0.01)
    assert decisions.llama_cpp(drawn).stderr == pytest.approx(
        np.sqrt(drawn.iid_variance / (drawn.counts.sum(axis=1) - 1))
    )


def test_the_smoke_run_keeps_every_promise_and_writes_the_table(tmp_path: Path) -> None:
    command = [
        sys.executable,
        "-W",
        "error",
        "benchmarks/decisions.py",
        "--quick",
        "--no-figure",
        "--docs",
        str(tmp_path),
    ]

    ran = subprocess.run(
        command, cwd=ROOT, env={**os.environ, "PYTHONPATH": str(ROOT)}, capture_output=True, text=True, check=False
    )

    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert "0 promises broken, 400 repetitions" in ran.stdout
    table = (tmp_path / "decisions.md").read_text(encoding="utf-8")
    assert table.count("\n| 30 | 1.5 |") == len(decisions.NOISES) + 5
    assert not (tmp_path / "decisions.svg").exists()


def test_a_method_that_takes_tokens_as_independent_breaks_the_promises() -> None:
    points = [point for found in decisions.run([decisions.MAIN], (100,), (1.0,), 2000) for point in found]
    as_ours = [replace(point, method=decisions.OURS) for point in points if point.method == "llama.cpp"]

    kept = decisions.broken_promises(points, 2000)
    broken = decisions.broken_promises(as_ours, 2000)

    assert kept == []
    assert any("at the tolerance: PASS" in promise for promise in broken)
    assert any("at the tolerance: coverage" in promise for promise in broken)


def test_without_matplotlib_the_figure_is_refused_before_anything_runs(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)

    with pytest.raises(SystemExit, match="the figure needs matplotlib: pip install matplotlib"):
        decisions.main(["--quick", "--docs", str(tmp_path / "figures")])

    assert not (tmp_path / "figures").exists()
