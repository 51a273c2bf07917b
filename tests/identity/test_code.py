"""Which package a source file belongs to, its version, and whether files of Python code identify what runs."""

import json
import sys
import types
from pathlib import Path

import numpy as np
import pytest

from pytest_lmgate.identity.code import STANDARD_LIBRARY, find_unknown_import, home_of_file, is_library, versions


def test_versions_are_those_installed_and_absent_packages_are_said_to_be() -> None:
    found = versions(["pytest", "no-such-package-of-that-name"])
    assert found == {"pytest": pytest.__version__, "no-such-package-of-that-name": "absent"}


def test_a_file_belongs_to_an_installed_package_to_python_or_to_the_user(tmp_path: Path) -> None:
    assert home_of_file(str(np.__file__)) == "numpy"
    assert home_of_file(str(json.__file__)) == STANDARD_LIBRARY
    assert home_of_file("<frozen importlib._bootstrap>") == STANDARD_LIBRARY
    assert home_of_file(str(tmp_path / "conftest.py")) is None
    assert home_of_file("<string>") is None


def test_libraries_are_known_by_their_first_name() -> None:
    assert is_library("torch.nn.modules")
    assert is_library("json")
    assert not is_library("torchlike")
    assert not is_library("conftest")


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder on the path with a package of the project's and a model."""
    for file, text in {
        "kit/__init__.py": "",
        "kit/ops.py": "",
        "lone.py": "",
        "model/modeling.py": "import torch\nfrom . import configuration\n",
        "model/configuration.py": "import json\nfrom transformers import LlamaConfig\n",
    }.items():
        (tmp_path / file).parent.mkdir(exist_ok=True, parents=True)
        (tmp_path / file).write_text(text)
    monkeypatch.syspath_prepend(tmp_path)
    return tmp_path


def _found(folder: Path, code: str | None = None) -> str:
    if code is not None:
        (folder / "model" / "modeling.py").write_text(code)
    return find_unknown_import(sorted((folder / "model").glob("*.py")))


def test_code_that_imports_libraries_and_its_own_files_is_known(folder: Path) -> None:
    assert _found(folder) == ""
    assert _found(folder, "import json, torch.nn\nfrom .configuration import x\n") == ""


@pytest.mark.parametrize(
    ("code", "unknown"),
    [
        ("import pytest\n", "modeling.py imports pytest, "),
        ("import kit\n", "modeling.py imports kit, whose version is not part of the cache key"),
        ("from kit.ops import scale\n", "modeling.py imports kit, whose version is not part of the cache key"),
        ("def forward(self):\n    import lone\n", "modeling.py imports lone, "),
        ("class A:\n    def b(self):\n        if 1:\n            from kit import ops\n", "modeling.py imports kit, "),
        ("try:\n    import kit\nexcept ImportError:\n    pass\n", "modeling.py imports kit, "),
        ("import importlib\nimportlib.import_module('ki' + 't')\n", "modeling.py imports by import_module, "),
        ("__import__('kit')\n", "modeling.py imports by __import__, "),
        ("exec('import kit')\n", "modeling.py imports by exec, "),
        ("this is no Python\n", "modeling.py cannot be read as Python: "),
    ],
)
def test_code_that_no_file_or_package_tells_of_is_unknown(folder: Path, code: str, unknown: str) -> None:
    assert _found(folder, code).startswith(unknown)
    names = "".join(f"name{index} = {index}\n" for index in range(300))
    assert _found(folder, names + "x = '\\d'\n" + code).startswith(unknown)


def test_code_that_imports_a_module_made_by_the_session_is_unknown(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "made_up", types.ModuleType("made_up"))
    assert _found(folder, "import made_up\n").startswith("modeling.py imports made_up, ")


def test_a_package_that_is_absent_cannot_run(folder: Path) -> None:
    assert _found(folder, "try:\n    import no_such_module\nexcept ImportError:\n    pass\n") == ""


def test_nothing_is_imported_to_find_out(folder: Path) -> None:
    _found(folder, "import kit, lone\n")
    assert not {"kit", "lone"} & sys.modules.keys()
