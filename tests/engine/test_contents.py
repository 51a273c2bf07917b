"""A checkpoint is known by each file that its entry or its own code may open, and by packages that its code imports."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from pytest_lmgate.backends.base import Entry
from pytest_lmgate.backends.hf.models.contents import Contents, contents_of
from pytest_lmgate.config.specs import ModelSpec
from pytest_lmgate.identity import libraries

_CACHES = (libraries.home_of_file, libraries._site_folders, libraries.installed_packages)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "model" / "inner").mkdir(parents=True)
    (tmp_path / "model" / "config.json").write_text("{}")
    return tmp_path / "model"


def contents(folder: Path, **spec: Any) -> Contents:
    entry = Entry(
        name="m",
        spec=ModelSpec(path="m", **spec),
        path=Path,
        hub_id=lambda _: None,
        digest=lambda path: path.read_text(),
    )
    return contents_of(entry, model=folder, tokenizer=folder)


@pytest.mark.parametrize("absolute", [False, True])
def test_a_file_that_an_option_names_is_part_of_a_model(folder: Path, absolute: bool) -> None:
    weights = folder / "inner" / "weights.gguf"
    weights.write_text("first")
    named = str(weights) if absolute else "inner/weights.gguf"

    before = contents(folder, load={"gguf_file": named, "device_map": "cpu"})
    weights.write_text("second")

    assert before.ingredients[f"load/{named}"] == "first"
    assert before.changed() == [str(weights)]
    assert contents(folder, load={"gguf_file": named}).ingredients[f"load/{named}"] == "second"
    assert f"load/{named}" not in contents(folder).ingredients


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder of installed packages, of which one is ``gadget``."""
    packages = tmp_path / "site-packages"
    (packages / "gadget").mkdir(parents=True)
    (packages / "gadget" / "__init__.py").touch()
    monkeypatch.syspath_prepend(packages)
    for each in _CACHES:
        each.cache_clear()
    yield packages
    for each in _CACHES:
        each.cache_clear()


@pytest.mark.parametrize("suffix", ["dist-info", "egg-info"])
def test_code_of_a_checkpoint_that_imports_a_package_is_known_by_the_packages_versions(
    folder: Path, installed: Path, suffix: str
) -> None:
    (folder / "modeling.py").write_text("import gadget\n")
    (installed / f"gadget-1.0.{suffix}").mkdir()

    first = contents(folder, trust_remote_code=True)
    (installed / f"gadget-1.0.{suffix}").rename(installed / f"gadget-2.0.{suffix}")
    libraries.installed_packages.cache_clear()  # a session later
    second = contents(folder, trust_remote_code=True)

    assert first.unknown == second.unknown == ""
    assert first.ingredients != second.ingredients
    assert f"gadget-2.0.{suffix}" in second.ingredients["installed packages"].split(" ")
    assert "gadget" not in sys.modules
    (folder / "modeling.py").write_text("import torch\n")
    assert "installed packages" not in contents(folder, trust_remote_code=True).ingredients
