"""The contract: each test that asks for `bench` runs once for each engine, but for the cases that the engine lacks.

``--engine LEG`` chooses the engines of a leg of the Makefile, each of which must be installed; without it, those of
`make test` run.
"""

from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.engines.contract.bench import Bench
from tests.engines.contract.engines import CASES, ENGINES, Engine


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--engine", default="", metavar="LEG", help="run the contract for the engines of make test-LEG")


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "needs(case): leaves out the engines that say why they lack the case")


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "bench" not in metafunc.fixturenames:
        return
    leg = metafunc.config.getoption("engine", default="")
    engines = [each for each in ENGINES if each.leg == leg]
    if absent := {module for each in engines for module in each.modules if not _is_installed(module)}:
        raise pytest.UsageError(f"make test-{leg} needs {', '.join(sorted(absent))}, not installed here")
    if not engines:
        raise pytest.UsageError(f"--engine: expected one of {', '.join(sorted({e.leg for e in ENGINES}))}, got {leg}")
    needed = {mark.args[0] for mark in metafunc.definition.iter_markers("needs")}
    assert CASES.keys() >= needed
    # vLLM takes long to open, so that one worker does it.
    chosen = [
        pytest.param(each, id=each.name, marks=[pytest.mark.xdist_group(each.name)] if leg == "vllm" else [])
        for each in engines
        if not each.lacks.keys() & needed
    ]
    metafunc.parametrize("bench", chosen, indirect=True, scope="session")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Leave out tests of cases that every engine of the leg lacks."""
    here = Path(__file__).parent
    items[:] = [each for each in items if each.path.parent != here or "[NOTSET" not in each.name]


def _is_installed(module: str) -> bool:
    try:
        return find_spec(module) is not None
    except ModuleNotFoundError:  # of a package above
        return False


@pytest.fixture(scope="session", autouse=True)
def _quiet() -> Iterator[None]:
    """Tiny models gain nothing from threads, and workers would wait for each other."""
    import torch

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


_BENCHES: dict[str, Bench] = {}


@pytest.fixture(scope="session")
def bench(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Bench:
    """An engine with its models open, until the session ends: the last test of it may be one without torch."""
    engine: Engine = request.param
    if engine.name not in _BENCHES:
        _BENCHES[engine.name] = Bench(engine, tmp_path_factory.getbasetemp(), tmp_path_factory.mktemp(engine.name))
        request.config.add_cleanup(_BENCHES[engine.name].close)
    return _BENCHES[engine.name]
