"""The example as its reader runs it: pytest in its folder, in a process of its own."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest


@pytest.fixture(scope="module")
def cache(tmp_path_factory) -> Path:
    return tmp_path_factory.mktemp("measurements")


def run_in(folder: Path, *arguments: str) -> subprocess.CompletedProcess:
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("PYTEST_", "LMGATE_"))}
    return subprocess.run(
        [sys.executable, "-m", *arguments],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=300,
        env={**environment, "HF_HUB_OFFLINE": "1", "COLUMNS": "110"},
    )


def steady(output: str) -> list[str]:
    """Return the lines without what differs between runs and releases."""
    lines = re.sub(r"\|version:\S+", "", output).splitlines()
    return [line for line in lines if not line.startswith("  measured")]


def test_the_gates_pass(example, cache, tmp_path):
    report = tmp_path / "quality.json"
    ran = run_in(
        example, "pytest", "-p", "no:cacheprovider", f"--lmgate-cache={cache}", f"--lmgate-report=json:{report}"
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert re.search(r"\b7 passed", ran.stdout)
    gates = {gate["id"].rpartition("::")[2]: gate for gate in json.loads(report.read_text("utf-8"))["gates"]}
    assert {name: gate["verdict"] for name, gate in gates.items()} == {
        "ppl_max[int8-bulletins]": "pass",
        "ppl_max[float-bulletins]": "pass",
        "bpb_max[float-bulletins]": "pass",
    }
    for gate in gates.values():
        assert f"{gate['value']:.6g}" in (example / "README.md").read_text("utf-8")


def test_the_broken_candidate_fails_the_build_as_the_readme_shows(example, cache):
    ran = run_in(
        example,
        *("pytest", "watch_it_fail.py", "-k", "not original", "-p", "no:cacheprovider", f"--lmgate-cache={cache}"),
    )
    assert ran.returncode == 1, ran.stdout + ran.stderr
    shown = re.search(r"```\n(ppl_max: .*?)```", (example / "README.md").read_text("utf-8"), re.DOTALL).group(1)
    assert len(steady(shown)) == 5
    assert set(steady(shown)) <= set(steady(ran.stdout))


def test_the_readme_shows_the_optimum_as_it_is_printed(example):
    ran = run_in(example, "weather.optimum")
    assert ran.returncode == 0, ran.stderr
    for line in ran.stdout.splitlines():
        assert f"    {line}\n" in (example / "README.md").read_text("utf-8")
