"""The names that users import, pinned: what is here is promised."""

import importlib

import pytest

import pytest_lmgate


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


@pytest.mark.torch
def test_every_name_that_users_import_has_a_docstring_and_so_have_its_methods() -> None:
    """Ruff asks it of no name, since most are the package's own."""
    public = [getattr(pytest_lmgate, name) for name in pytest_lmgate.__all__ if name != "__version__"]
    for module in (importlib.import_module(f"pytest_lmgate.{name}") for name in ("engines.base", "metrics.texts")):
        own = [each for name, each in vars(module).items() if _is_own(name, each)]
        public += [each for each in own if each.__module__ == module.__name__]
    methods = [
        each for kind in public if isinstance(kind, type) for name, each in vars(kind).items() if _is_own(name, each)
    ]
    assert [each.__qualname__ for each in [*public, *methods] if not (each.__doc__ or "").strip()] == []


def _is_own(name: str, each: object) -> bool:
    if name.startswith("_") or not callable(each) or getattr(each, "__name__", "") == "<lambda>":
        return False
    return str(getattr(each, "__module__", "")).startswith("pytest_lmgate.")
