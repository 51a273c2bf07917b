"""benchmarks/generation.py runs, compares equal texts, and fails where the speed-up is not reached."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

from tests.end_to_end.projects import environment
from tests.warm import warm_python

ROOT = Path(__file__).parents[2]


def _run(*arguments: str) -> subprocess.CompletedProcess[str]:
    how = environment() | {"PYTHONPATH": str(ROOT)}
    python = warm_python(environment())
    command = [python, "-W", "error", "benchmarks/generation.py", "--max-new-tokens", "24", "--threads", "1"]
    return subprocess.run(
        [*command, *arguments],
        cwd=ROOT,
        env=how,
        capture_output=True,
        text=True,
        check=False,
    )


def test_a_small_run_compares_equal_texts_and_prints_the_ratio() -> None:
    ran = _run("--rows", "6", "--rounds", "1", "--no-check")
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert re.search(r"texts equal +6 of 6 +all +ok", ran.stdout)
    assert re.search(r"speed-up +\d+\.\d\dx +>= 4x", ran.stdout)


def test_one_row_alone_is_no_faster_and_breaks_what_is_required() -> None:
    ran = _run("--rows", "1", "--rounds", "3")
    assert ran.returncode == 1, ran.stdout + ran.stderr
    assert re.search(r"speed-up +[012]\.\d\dx +>= 4x +BROKEN", ran.stdout), ran.stdout
    assert re.search(r"texts equal +1 of 1 +all +ok", ran.stdout)
