"""The names that users import, pinned: what is here is promised."""

from __future__ import annotations

import importlib
import pkgutil
import subprocess
import sys
from pathlib import Path

import pytest

import pytest_lmgate

ENGINES = ("pytest_lmgate.backends", "pytest_lmgate.engine")
PACKAGE = Path(pytest_lmgate.__file__).parent
# Importing the plugin is left to pytest: it registers options once.
MODULES = sorted(
    module.name
    for module in pkgutil.walk_packages([str(PACKAGE)], "pytest_lmgate.")
    if not module.name.startswith("pytest_lmgate.plugin")
)


def test_the_public_names_are_these() -> None:
    assert pytest_lmgate.__all__ == [
        "CacheWarning",
        "Divergence",
        "FixtureReference",
        "LmgateError",
        "LmgateWarning",
        "Score",
        "TextMetric",
        "__version__",
        "fixture",
        "model",
    ]
    for name in pytest_lmgate.__all__:
        assert getattr(pytest_lmgate, name) is not None


def test_a_name_that_is_not_there_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="module 'pytest_lmgate' has no attribute 'Scoer'"):
        pytest_lmgate.Scoer  # noqa: B018 - looked up for its error


def test_the_types_are_marked_as_shipped() -> None:
    assert (PACKAGE / "py.typed").is_file()


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.torch] * name.startswith(ENGINES)) for name in MODULES]
)
def test_a_module_says_what_lives_in_it_and_has_what_it_offers(name: str) -> None:
    module = importlib.import_module(name)
    assert (module.__doc__ or "").strip()
    offered = getattr(module, "__all__", [])
    assert offered or hasattr(module, "__path__"), "every module but a package lists what it offers"
    assert [each for each in offered if not hasattr(module, each)] == []
    assert len(set(offered)) == len(offered)


_HEAVY = """
import sys
import {module}
heavy = {{"torch", "transformers", "datasets", "numpy", "pyarrow", "scipy", "msgspec", "yaml", "safetensors"}}
print(sorted(heavy & set(sys.modules)))
"""


@pytest.mark.parametrize("module", ["pytest_lmgate", "pytest_lmgate.plugin"])
def test_importing_the_package_or_its_plugin_loads_nothing_heavy(module: str) -> None:
    run = subprocess.run(
        [sys.executable, "-c", _HEAVY.format(module=module)], capture_output=True, text=True, check=True
    )
    assert run.stdout.strip() == "[]"
