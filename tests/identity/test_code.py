"""Which package a source file belongs to, and its version."""

import json
from pathlib import Path

import numpy as np
import pytest

from pytest_lmgate.identity.code import home_of_file, is_library, versions


def test_versions_are_those_installed_and_absent_packages_are_said_to_be() -> None:
    found = versions(["pytest", "no-such-package-of-that-name"])
    assert found == {"pytest": pytest.__version__, "no-such-package-of-that-name": "absent"}


def test_a_file_belongs_to_an_installed_package_to_python_or_to_the_user(tmp_path: Path) -> None:
    assert home_of_file(str(np.__file__)) == "numpy"
    assert home_of_file(str(json.__file__)) == "json"
    assert home_of_file(str(tmp_path / "conftest.py")) is None
    assert home_of_file("<string>") is None


def test_libraries_are_known_by_their_first_name() -> None:
    assert is_library("torch.nn.modules")
    assert is_library("json")
    assert not is_library("torchlike")
    assert not is_library("conftest")
