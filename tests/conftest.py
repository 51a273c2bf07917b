"""What every test may use: real data where it is there, small deterministic models where not."""

import contextlib
import gc
import os
from collections.abc import Generator
from pathlib import Path

import pytest

from pytest_lmgate.plugin.options import CI_VARIABLES
from tests import torch_guard

# What this test session's own environment says is nothing to the sessions that tests start.
for variable in (*CI_VARIABLES, "LMGATE_CACHE", "LMGATE_OFFLINE", "PYTEST_ADDOPTS"):
    os.environ.pop(variable, None)

with contextlib.suppress(ImportError):  # `make test-bare` is without
    from hypothesis import settings

    # A busy machine is no fault of an example.
    settings.register_profile("lmgate", deadline=None, max_examples=60)
    settings.load_profile("lmgate")

# Begun last, one of these would run alone at the end, for 10 s and more.
SLOW = (
    "tests/measure/test_oracles.py",
    "tests/measure/test_loop.py",
    "tests/measure/test_choices.py",
    "tests/measure/test_against_the_harness.py",
    "tests/end_to_end/test_cache.py",
    "tests/end_to_end/test_untrue_entries.py",
    "tests/example_project/test_runs.py",
)
SHARED = Path(__file__).resolve().parents[2] / "shared" / "data"


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """Folder of real weights, texts and oracle tables, which is not part of the project."""
    if not SHARED.is_dir():
        pytest.skip(f"shared data is absent: no folder {SHARED}; real models and oracles are NOT checked")
    return SHARED


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Leave modules out that only hold tests of torch, since reading them takes 10 s, when no such test is wanted."""
    return (config.option.markexpr == "not torch" and torch_guard.is_marked(collection_path)) or None


def pytest_itemcollected(item: pytest.Item) -> None:
    """Mark the tests of modules that import torch."""
    if torch_guard.is_marked(item.path):
        item.add_marker("torch")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Put the slowest tests first, so that the workers of xdist end together; name groups as xdist 3.8 did.

    Since pytest 9.2 it puts them where nothing reads them, and each worker would open each engine.
    """
    items.sort(key=lambda item: not item.nodeid.startswith(SLOW))
    for item in items if getattr(config.option, "loadgroup", False) else ():
        if (group := item.get_closest_marker("xdist_group")) and "@" not in item.nodeid and hasattr(item, "_id"):
            item._id = type(item._id).parse(f"{item.nodeid}@{group.args[0]}")


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Leave all tests out of garbage collections: each pytest that a test runs in this process has five of these.

    While the tests are read, nearly all that is made stays: to look for garbage there takes a sixth of that time.
    """
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()
        gc.collect()
        gc.freeze()
        gc.set_threshold(20_000, 20, 100)  # what tests import while they run would be searched again and again


_begun: set[Path] = set()  # modules of tests


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    """Refuse torch to a test that is not marked; leave what earlier modules imported out of garbage collections.

    Each model that is closed, and each batch that is halved, has a collection, which would look at all of that again.
    """
    if item.path not in _begun:
        _begun.add(item.path)
        gc.freeze()
    if item.get_closest_marker("torch"):
        return (yield)
    with torch_guard.refused():
        return (yield)
