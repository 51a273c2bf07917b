"""The GGUF files of the example: its gates pass, its README shows what they print, and its script makes them again."""

from pathlib import Path

import pytest

pytest.importorskip("llama_cpp", reason="llama-cpp-python is NOT installed; make test-gguf runs these tests")

from tests.engines.example import require_same_bytes, require_shown


def test_its_gates_pass_and_print_what_the_readme_shows(tmp_path: Path) -> None:
    require_shown("test_gguf.py", tmp_path)


def test_its_script_writes_the_same_bytes_again(tmp_path: Path) -> None:
    require_same_bytes("to_gguf.py", tmp_path, "float-f16.gguf", "float-q8_0.gguf")
