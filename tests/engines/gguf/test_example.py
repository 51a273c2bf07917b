"""The GGUF files of the example: its gates pass, its README shows what they print, and its script makes them again."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("llama_cpp", reason="llama-cpp-python is NOT installed; make test-gguf runs these tests")

EXAMPLE = Path(__file__).parents[3] / "example_project"
FIGURES = re.compile(r"(\w+\[[\w-]+\])\s+(\S+)")


def test_its_gates_pass_and_print_what_the_readme_shows(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", f"--lmgate-cache={tmp_path}", "test_gguf.py"]
    inherited = {name: value for name, value in os.environ.items() if not name.startswith(("PYTEST_", "LMGATE_"))}
    environment = {**inherited, "HF_HUB_OFFLINE": "1", "COLUMNS": "110"}
    ran = subprocess.run(command, cwd=EXAMPLE, capture_output=True, text=True, check=False, env=environment)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert "5 gates: 5 pass" in ran.stdout
    (shown,) = re.findall(
        r"^```console\n(.*?)^```$", (EXAMPLE / "README.md").read_text("utf-8"), re.DOTALL | re.MULTILINE
    )
    printed = {gate: float(value) for gate, value in FIGURES.findall(ran.stdout) if value[0].isdigit()}
    figures = FIGURES.findall(shown)
    assert len(figures) == 4
    for gate, value in figures:
        # A divergence of nearly nothing is what rounding makes of it.
        assert printed[gate] == pytest.approx(float(value), rel=0.05 if gate.startswith("kl") else 1e-3), gate


def test_its_script_writes_the_same_bytes_again(tmp_path: Path) -> None:
    shutil.copy(EXAMPLE / "to_gguf.py", tmp_path)
    shutil.copytree(EXAMPLE / "models" / "float", tmp_path / "models" / "float")
    subprocess.run([sys.executable, "to_gguf.py"], cwd=tmp_path, check=True, capture_output=True)
    for name in ("float-f16.gguf", "float-q8_0.gguf"):
        assert (tmp_path / "models" / name).read_bytes() == (EXAMPLE / "models" / name).read_bytes(), name
