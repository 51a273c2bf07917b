"""The names that users import, pinned: what is here is promised."""

import importlib
import subprocess
import sys
from pathlib import Path

import pytest

import pytest_lmgate

PACKAGE = Path(pytest_lmgate.__file__).parent


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
    assert dir(pytest_lmgate) == sorted(pytest_lmgate.__all__)


def test_a_name_that_is_not_there_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="module 'pytest_lmgate' has no attribute 'Scoer'"):
        pytest_lmgate.Scoer  # noqa: B018 - looked up for its error


def test_the_types_are_marked_as_shipped() -> None:
    assert (PACKAGE / "py.typed").is_file()


@pytest.mark.torch
def test_every_name_that_users_import_has_a_docstring_and_so_have_its_methods() -> None:
    """Ruff asks it of no name, since most are the package's own."""
    public = [getattr(pytest_lmgate, name) for name in pytest_lmgate.__all__ if name != "__version__"]
    modules = [importlib.import_module(f"pytest_lmgate.{name}") for name in ("engines.base", "metrics.texts")]
    public += [
        each
        for module in modules
        for name, each in vars(module).items()
        if _is_own(name, each) and each.__module__ == module.__name__
    ]
    methods = [
        each for kind in public if isinstance(kind, type) for name, each in vars(kind).items() if _is_own(name, each)
    ]
    assert [each.__qualname__ for each in [*public, *methods] if not (each.__doc__ or "").strip()] == []


def _is_own(name: str, each: object) -> bool:
    if name.startswith("_") or not callable(each) or getattr(each, "__name__", "") == "<lambda>":
        return False
    return str(getattr(each, "__module__", "")).startswith("pytest_lmgate.")


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
