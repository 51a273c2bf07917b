"""Which package a source file belongs to, and its version."""

import json
from pathlib import Path

import numpy as np

from pytest_lmgate.identity import home_of_file


def test_a_file_belongs_to_an_installed_package_to_python_or_to_the_user(tmp_path: Path) -> None:
    assert home_of_file(str(np.__file__)) == "numpy"
    assert home_of_file(str(json.__file__)) == "json"
    assert home_of_file(str(tmp_path / "conftest.py")) is None
    assert home_of_file("<string>") is None
