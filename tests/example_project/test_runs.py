"""The example as its reader runs it: pytest in its folder, in a process of its own; and what the READMEs show of it."""

import json
import re
import subprocess
from pathlib import Path

import pytest

from tests.docs.pages import missing
from tests.end_to_end.projects import environment
from tests.warm import warm_python

ROOT = Path(__file__).parents[2]
SHOWN = {"README.md": 1, "example_project/README.md": 4}
"""Blocks of output in each file."""


@pytest.fixture(scope="module")
def cache(tmp_path_factory) -> Path:
    return tmp_path_factory.mktemp("measurements")


@pytest.fixture(scope="module")
def passing(cache) -> subprocess.CompletedProcess:
    """The gates, measured for the first time."""
    return run_gates(cache, f"--lmgate-report=json:{cache / 'quality.json'}")


@pytest.fixture(scope="module")
def failing(cache) -> subprocess.CompletedProcess:
    return run_gates(cache, "watch_it_fail.py", "-k", "not original")


def run_gates(cache: Path, *arguments: str) -> subprocess.CompletedProcess:
    return subprocess.run(
        [warm_python(environment()), "-m", "pytest", "-p", "no:cacheprovider", f"--lmgate-cache={cache}", *arguments],
        cwd=ROOT / "example_project",
        capture_output=True,
        text=True,
        timeout=300,
        env={**environment(), "LMGATE_OFFLINE": "1", "COLUMNS": "110"},
    )


def gates(report: Path) -> dict[str, dict]:
    return {gate["id"].rpartition("::")[2]: gate for gate in json.loads(report.read_text("utf-8"))["gates"]}


def test_the_gates_pass_and_the_broken_candidates_fail_the_build(passing, failing, cache):
    assert failing.returncode == 1, failing.stdout + failing.stderr
    assert "4 gates: 4 fail" in failing.stdout
    assert passing.returncode == 0, passing.stdout + passing.stderr
    first = gates(cache / "quality.json")
    assert {gate["metric"] for gate in first.values()} >= {*("ppl", "bpb", "bleu", "chrf", "rouge", "accuracy")}
    assert {gate["verdict"] for gate in first.values()} == {"pass", "inconclusive"}
    texts = [gate for name, gate in first.items() if name.endswith("[writer-records]")]
    assert len({gate["fingerprint"] for gate in texts}) == 1
    assert [gate["cached"] for gate in texts] == [False, True, True], "one generation for three metrics"


def test_a_second_run_only_looks_up_and_fails_by_a_text_that_is_too_short_in_strict_mode(cache, passing, tmp_path):
    strict = run_gates(cache, "--lmgate-strict", f"--lmgate-report=json:{tmp_path / 'strict.json'}")
    assert strict.returncode == 1, strict.stdout + strict.stderr
    first, second = gates(cache / "quality.json"), gates(tmp_path / "strict.json")
    assert [(name, gate["value"]) for name, gate in first.items()] == [(n, gate["value"]) for n, gate in second.items()]
    assert all(gate["cached"] for gate in second.values())
    failed = [name for name, gate in second.items() if gate["verdict"] != "pass"]
    assert failed == ["no_regression:ppl[int4-few-bulletins-vs-float]"]


@pytest.mark.parametrize("file", SHOWN)
def test_what_a_readme_shows_is_what_a_run_prints(file, passing, failing):
    fenced = re.findall(r"^```(\w*)\n(.*?)^```$", (ROOT / file).read_text("utf-8"), re.DOTALL | re.MULTILINE)
    blocks = [body for kind, body in fenced if not kind]
    assert len(blocks) == SHOWN[file]
    for block in blocks:
        told = [missing(block, run.stdout) for run in (passing, failing)]
        assert "" in told, "\n".join(told)
