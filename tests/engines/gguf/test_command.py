"""The program of docs/howto/command_engine.md over llama-cpp-python has the numbers of the engine llama.cpp."""

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pytest_lmgate.settings.gate_options import WindowProtocol
from tests.engines.command.programs import write_program
from tests.engines.numbers import nll_of
from tests.engines.projects import CONTEXT, described

pytest.importorskip("llama_cpp", reason="llama-cpp-python is NOT installed; make test-gguf runs these tests")


@pytest.mark.parametrize("protocol", [WindowProtocol("sliding", 96, 32), WindowProtocol("lm-eval")], ids=str)
def test_a_program_over_llama_cpp_python_has_the_numbers_of_the_engine(
    opened: Callable[..., Any], files: Path, tmp_path: Path, protocol: WindowProtocol
) -> None:
    program, model = write_program(tmp_path, "score_gguf.py"), files / "f32.gguf"
    entry = {"tokenizer": str(files / "float"), "load": {"context": CONTEXT}}
    runner = described("m", command=f"{sys.executable} {program} {model}", content=[str(model)], **entry).open()
    try:
        found, expected = nll_of(runner, protocol), nll_of(opened("f32.gguf"), protocol)
    finally:
        runner.close()
    assert len(found) > 500
    assert np.abs(found - expected).max() < 1e-4
