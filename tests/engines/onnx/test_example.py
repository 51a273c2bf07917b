"""The ONNX export of the example: its gates pass, its README shows what they print, and its script makes it again."""

from pathlib import Path

import pytest

pytest.importorskip("onnxruntime", reason="onnxruntime is NOT installed; make test-onnx runs these tests")

from tests.engines.example import EXAMPLE, require_same_bytes, require_shown


def test_its_gates_pass_and_print_what_the_readme_shows(tmp_path: Path) -> None:
    require_shown("test_onnx.py", tmp_path)


def test_its_script_writes_the_same_bytes_again(tmp_path: Path) -> None:
    files = sorted(path.name for path in (EXAMPLE / "models" / "float-onnx").iterdir())
    assert "model.onnx" in files
    require_same_bytes("to_onnx.py", tmp_path, *(f"float-onnx/{name}" for name in files))
