"""Runs the gates of the example that need an engine, and compares what they print with what its README shows."""

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.engines.projects import warm

EXAMPLE = Path(__file__).parents[2] / "example_project"
_FIGURES = re.compile(r"(\w+\[[\w-]+\])\s+(\S+)")


def require_shown(gates: str, cache: Path) -> None:
    """Run a file of gates, which have to pass and to print the figures of the README's block below its link."""
    command = [warm(), "-m", "pytest", "-p", "no:cacheprovider", f"--lmgate-cache={cache}", gates]
    inherited = {name: value for name, value in os.environ.items() if not name.startswith(("PYTEST_", "LMGATE_"))}
    environment = {**inherited, "HF_HUB_OFFLINE": "1", "COLUMNS": "110"}
    ran = subprocess.run(command, cwd=EXAMPLE, capture_output=True, text=True, check=False, env=environment)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    (passed,) = re.findall(r"(\d+) gates: \1 pass", ran.stdout)
    text = (EXAMPLE / "README.md").read_text("utf-8").partition(f"[{gates}]({gates})")[2]
    block = re.search(r"^```console\n(.*?)^```$", text, re.DOTALL | re.MULTILINE)
    figures = _FIGURES.findall(block[1])
    assert len(figures) == int(passed) - 1, "all but no_regression, which has a table of its own"
    printed = {gate: float(value) for gate, value in _FIGURES.findall(ran.stdout) if value[0].isdigit()}
    for gate, value in figures:
        # A divergence of nearly nothing is what rounding makes of it.
        near = {"rel": 0.05, "abs": 1e-8} if gate.startswith("kl") else {"rel": 1e-3}
        assert printed[gate] == pytest.approx(float(value), **near), gate


def require_same_bytes(script: str, folder: Path, *files: str) -> None:
    """Run a script of the example on a copy of its float model: it writes these files of ``models`` again."""
    shutil.copy(EXAMPLE / script, folder)
    shutil.copytree(EXAMPLE / "models" / "float", folder / "models" / "float")
    subprocess.run([warm(), script], cwd=folder, check=True, capture_output=True)
    for name in files:
        assert (folder / "models" / name).read_bytes() == (EXAMPLE / "models" / name).read_bytes(), name
