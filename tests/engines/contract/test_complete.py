"""Each engine of the package runs every case of the contract, or says why not."""

import ast
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
    legs = set(re.findall(r"^ENGINES := (.*)$", makefile, re.MULTILINE)[0].split())
    assert {each.leg for each in ENGINES} == {"", *legs}
    assert "tests/engines/contract --engine" in makefile


def test_every_test_is_for_every_engine_but_for_cases_that_engines_lack() -> None:
    marks: set[str] = set()
    for file in HERE.glob("test_*.py"):
        for test in ast.parse(file.read_text("utf-8")).body:
            if not isinstance(test, ast.FunctionDef) or not test.name.startswith("test_"):
                continue
            assert file == Path(__file__) or test.args.args[0].arg == "bench", test.name
            calls = [each for each in test.decorator_list if isinstance(each, ast.Call)]
            marks |= {ast.literal_eval(each.args[0]) for each in calls if ast.unparse(each.func) == "pytest.mark.needs"}
    lacked = {case for engine in ENGINES for case in engine.lacks}
    assert marks | {"bos", "any target", "whole characters", "damaged"} == CASES.keys()
    assert lacked <= CASES.keys()
    for case in CASES:
        assert any(case not in engine.lacks for engine in ENGINES), f"no engine runs {case}"
