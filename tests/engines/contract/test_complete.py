"""Each engine of the package runs every case of the contract, or says why not."""

import re
from pathlib import Path

from pytest_lmgate.engines.registry import BACKENDS
from tests.engines.contract.engines import CASES, ENGINES

HERE = Path(__file__).parent


def test_every_engine_of_the_package_is_there() -> None:
    named = {"gguf": "llama.cpp"}
    assert {named.get(each.name, each.name) for each in ENGINES} >= BACKENDS.keys()


def test_every_leg_of_an_engine_runs_its_contract() -> None:
    makefile = (HERE.parents[2] / "Makefile").read_text("utf-8")
    legs = re.findall(r"call engine,(\w+)|tests/engines/contract --engine (\w+)", makefile)
    assert {engine.leg for engine in ENGINES} == {"", *(name for pair in legs for name in pair if name)}


def test_some_engine_runs_each_case() -> None:
    assert [case for case in CASES if all(case in engine.lacks for engine in ENGINES)] == []
