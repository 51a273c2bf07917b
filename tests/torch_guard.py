"""Tests marked `torch` may import torch and transformers; any other that does fails.

So ``-m "not torch"`` leaves out exactly the tests that wait for these libraries. The modules named in MODULES import
them when they are collected, or start processes that do: all their tests are marked, and ``-m "not torch"`` does not
even read them. Elsewhere ``@pytest.mark.torch`` marks a test that imports them while it runs.
"""

import functools
import importlib.abc
import importlib.machinery
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType

import pytest

LIBRARIES = ("torch", "transformers")
HERE = Path(__file__).parent
MODULES = [
    HERE / name
    for name in (
        "tools/drill",
        "tools/fix/test_command.py",
        "tools/fix/test_costs.py",
        "tools/fix/test_hybrids.py",
        "cli/test_measure.py",
        "docs/test_pages.py",
        "windows/test_lost_text.py",
        "windows/test_rows.py",
        "end_to_end",
        "engines/command",
        "engines/contract",
        "engines/gguf",
        "engines/onnx",
        "engines/server",
        "engines/transformers",
        "engines/vllm",
        "gpu",
        "measure",
        "tools/tasks/test_equal.py",
        "tools/judge_results/test_equal_gates.py",
        "tools/tasks/test_import.py",
        "identity/test_replaced.py",
        "example_project/test_runs.py",
        "warm",
    )
]


@functools.cache  # it is asked for each test
def is_marked(path: Path) -> bool:
    """Return whether all tests of a module, or a folder of modules, are marked."""
    return any(path.is_relative_to(module) for module in MODULES)


@contextmanager
def refused() -> Iterator[None]:
    """Let imports of the libraries fail, also where another test has imported them before."""
    hidden = {name: sys.modules.pop(name) for name in LIBRARIES if name in sys.modules}
    finder = _Refusal()
    sys.meta_path.insert(0, finder)
    try:
        yield
    finally:
        sys.meta_path.remove(finder)
        sys.modules.update(hidden)


class _Refusal(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Finds the libraries, as one that asks whether they are installed expects, and refuses to load them."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if fullname not in LIBRARIES:
            return None
        spec = importlib.machinery.PathFinder.find_spec(fullname, path)
        if spec is not None:
            spec.loader = self
        return spec

    def exec_module(self, module: ModuleType) -> None:
        # No ImportError, which many a library takes for "not installed".
        pytest.fail(f"this test imports {module.__name__}: mark it with @pytest.mark.torch (see tests/torch_guard.py)")
