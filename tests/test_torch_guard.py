"""``-m "not torch"`` leaves out what needs torch, since a test that is not marked cannot import it."""

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
    assert importlib.util.find_spec(library) is not None, "but it is known to be installed"


def test_the_modules_that_are_marked_as_a_whole_are_there() -> None:
    assert [module for module in torch_guard.MODULES if not module.exists()] == []
