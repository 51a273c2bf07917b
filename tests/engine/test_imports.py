"""What the code that comes with a checkpoint imports is found by its files, and nothing is imported to find it."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from pytest_lmgate.engine.imports import imported_code


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder on the path with a package and a module beside it."""
    monkeypatch.syspath_prepend(tmp_path)
    for file, text in {
        "kit/__init__.py": "",
        "kit/ops.py": "from .deep import inner\n",
        "kit/deep/__init__.py": "",
        "kit/deep/inner.py": "import lone\n",
        "kit/other.py": "",
        "lone.py": "",
        "model/modeling.py": "import torch\nfrom kit.ops import scale\nfrom . import configuration\n",
        "model/configuration.py": "import json\nfrom transformers import LlamaConfig\n",
    }.items():
        (tmp_path / file).parent.mkdir(exist_ok=True, parents=True)
        (tmp_path / file).write_text(text)
    return tmp_path


def _found(folder: Path) -> dict[str, str]:
    return imported_code(sorted((folder / "model").glob("*.py")))


def test_what_imports_lead_to_is_known_by_its_files_and_not_imported(folder: Path) -> None:
    before, loaded = _found(folder), set(sys.modules)
    assert before == _found(folder)
    assert before.keys() == {"imported code"}
    assert not {"kit", "lone"} & set(sys.modules)

    for file in ("kit/ops.py", "kit/__init__.py", "kit/deep/inner.py", "lone.py"):
        text = (folder / file).read_text()
        (folder / file).write_text(text + "x = 1\n")
        assert _found(folder) != before, file
        (folder / file).write_text(text)
    assert _found(folder) == before

    (folder / "kit" / "other.py").write_text("x = 1\n")  # which nothing imports
    assert _found(folder) == before
    assert set(sys.modules) == loaded


def test_an_import_is_found_behind_many_names_and_texts_that_warn(folder: Path) -> None:
    names = "".join(f"name{index} = {index}\n" for index in range(300))
    for code in (names + "from kit.ops import scale\n", "'\\d'\nfrom kit.ops import scale\n"):
        (folder / "model" / "modeling.py").write_text(code)
        before = _found(folder)
        assert before
        with (folder / "kit" / "ops.py").open("a") as file:
            file.write("x = 1\n")
        assert _found(folder) != before


def test_a_package_that_is_imported_as_such_counts_whole(folder: Path) -> None:
    (folder / "model" / "modeling.py").write_text("import kit\n")
    before = _found(folder)
    (folder / "kit" / "other.py").write_text("x = 1\n")
    assert _found(folder) != before


def test_code_that_imports_libraries_alone_adds_nothing(folder: Path) -> None:
    (folder / "model" / "modeling.py").write_text("import json, torch.nn\nfrom . import configuration\n")
    assert _found(folder) == {}


def test_an_installed_package_is_known_by_what_is_installed_beside_it(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    installed = folder / "site-packages"
    (installed / "gadget").mkdir(parents=True)
    (installed / "gadget" / "__init__.py").write_text("import no_such_module\n")
    (installed / "gadget-1.0.dist-info").mkdir()
    monkeypatch.syspath_prepend(installed)
    (folder / "model" / "modeling.py").write_text("import gadget\n")
    before = _found(folder)
    assert before == _found(folder)

    (installed / "gadget-1.0.dist-info").rename(installed / "gadget-1.1.dist-info")
    assert _found(folder) != before


@pytest.mark.parametrize(
    ("code", "is_known"),
    [
        ("import no_such_module\n", False),
        ("def forward(self):\n    import no_such_module\n", False),
        ("import contextlib\nwith contextlib.nullcontext():\n    import no_such_module\n", False),
        ("try:\n    import no_such_module\nfinally:\n    pass\n", False),
        ("import kit.no_such_module\n", False),
        ("try:\n    import no_such_module\nexcept ImportError:\n    pass\n", sys.version_info >= (3, 11)),
        ("try:\n    import no_such_module\nexcept ImportError:\n    pass\nimport no_such_module\n", False),
        ("import importlib\nimportlib.import_module('ki' + 't')\n", False),
        ("this is no Python\n", True),
    ],
)
def test_what_is_not_found_is_never_the_same_unless_the_code_goes_on_without_it(
    folder: Path, code: str, is_known: bool
) -> None:
    (folder / "model" / "modeling.py").write_text(code)
    assert (_found(folder) == _found(folder)) == is_known
