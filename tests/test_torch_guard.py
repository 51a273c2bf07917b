"""``-m "not torch"`` leaves out what needs torch, since a test that is not marked cannot import it."""

from __future__ import annotations

import importlib
import importlib.util
import sys

import pytest

from tests import torch_guard


@pytest.mark.parametrize("library", torch_guard.LIBRARIES)
def test_a_test_that_is_not_marked_fails_when_it_imports_the_library(library: str) -> None:
    with pytest.raises(pytest.fail.Exception, match=f"this test imports {library}: mark it with @pytest.mark.torch"):
        importlib.import_module(library)
    assert library not in sys.modules


@pytest.mark.parametrize("library", torch_guard.LIBRARIES)
def test_the_library_is_still_known_to_be_installed(library: str) -> None:
    assert importlib.util.find_spec(library) is not None


@pytest.mark.torch
def test_a_marked_test_has_the_module_that_was_imported_before() -> None:
    import torch

    with torch_guard.refused():
        assert "torch" not in sys.modules
        with pytest.raises(pytest.fail.Exception):
            importlib.import_module("torch")
    assert sys.modules["torch"] is torch


def test_the_modules_that_are_marked_as_a_whole_are_there() -> None:
    assert [module for module in torch_guard.MODULES if not module.exists()] == []
    assert torch_guard.is_marked(torch_guard.HERE / "engine" / "test_head.py")
    assert not torch_guard.is_marked(torch_guard.HERE / "gates" / "comparisons" / "test_holm.py")
