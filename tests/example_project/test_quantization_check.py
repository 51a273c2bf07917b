"""The example's quantization check, as its reader runs it: 8 bits pass, 4 depend on the text, 3 fail."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest

from tests.end_to_end.projects import environment
from tests.warm import warm_python

CHECK = (
    "test_quantization.py",
    "watch_it_fail.py",
    "-k",
    "test_eight_bits or test_four_bits or test_twelve or test_three_bits",
)


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("measurements")


def run(example: Path, cache: Path, *arguments: str) -> tuple[int, dict[str, dict], str]:
    """Run pytest; return its exit code, the gates of its report by name, and what it printed."""
    report = cache / "report.json"
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("PYTEST_", "LMGATE_"))}
    ran = subprocess.run(
        [
            *(warm_python(environment(), "torch"), "-m", "pytest", "-p", "no:cacheprovider", *CHECK, *arguments),
            *(f"--lmgate-cache={cache}", f"--lmgate-report=json:{report}"),
        ],
        cwd=example,
        capture_output=True,
        text=True,
        timeout=300,
        env={**kept, "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"},
    )
    gates = {gate["id"].rpartition("::")[2]: gate for gate in json.loads(report.read_text("utf-8"))["gates"]}
    return ran.returncode, gates, ran.stdout + ran.stderr


def test_eight_bits_pass_three_fail_and_four_need_the_whole_text(example: Path, cache: Path) -> None:
    code, gates, said = run(example, cache)

    assert code == 1, said
    assert {name: gate["verdict"] for name, gate in gates.items()} == {
        "no_regression:ppl[int8-bulletins-vs-float]": "pass",
        "no_regression:ppl[int4-bulletins-vs-float]": "pass",
        "no_regression:ppl[int4-few-bulletins-vs-float]": "inconclusive",
        "no_regression:ppl[int3-bulletins-vs-float]": "fail",
    }, said
    assert "1 failed, 3 passed" in said, "what is inconclusive within the tolerance lets the build go on"

    code, strict, said = run(example, cache, "--lmgate-strict")
    assert code == 1
    assert "2 failed, 2 passed" in said, "but not in strict mode"
    assert {name: gate["verdict"] for name, gate in strict.items()} == {
        name: gate["verdict"] for name, gate in gates.items()
    }
    assert all(gate["cached"] for gate in strict.values())
