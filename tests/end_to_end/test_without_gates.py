"""Sessions without a gate pay nothing for the plugin: no import, no file, no word, no variable."""

from __future__ import annotations

import re

import pytest

from tests.end_to_end.dice import DiceProject
from tests.end_to_end.projects import Project

HEAVY = ("torch", "transformers", "datasets", "numpy", "pyarrow", "msgspec", "yaml", "safetensors", "filelock", "scipy")

PLAIN = """
    import pytest

    def test_plain(): pass

    @pytest.mark.skip
    def test_skipped(): pass
"""


def test_a_session_without_gates_imports_nothing_heavy_and_leaves_the_environment_alone(project: Project) -> None:
    project.write(
        test_plain=PLAIN,
        conftest=f"""
            import os, sys

            before = dict(os.environ)

            def pytest_unconfigure():
                loaded = set({HEAVY!r}) & set(sys.modules)
                assert not loaded, loaded
                assert {{k: v for k, v in os.environ.items() if k != "PYTEST_CURRENT_TEST"}} == before
                assert "pytest_lmgate.plugin" in sys.modules
        """,
    )
    project.run(fresh=True).expect(0, passed=1, skipped=1)
    project.run("-n", "2", fresh=True).expect(0, passed=1, skipped=1)


def test_a_session_without_gates_prints_and_writes_the_same_as_without_the_plugin(project: Project) -> None:
    project.write(test_plain=PLAIN)

    def said(*options: str) -> str:
        outcome = project.run("-p", "no:cacheprovider", "-v", *options, fresh=True).expect(0)
        return re.sub(r"in \d+\.\d\ds|, lmgate-[\d.]+|lmgate-[\d.]+, |plugins: lmgate-[\d.]+\n", "", outcome.text)

    before = set(project.folder.rglob("*"))
    assert said() == said("-p", "no:lmgate")
    assert set(project.folder.rglob("*")) == before


@pytest.mark.parametrize("text", ["models: [", "models: {die: {path: /no/such/folder}}"])
def test_a_session_without_gates_does_not_even_read_lmgate_yaml(project: Project, text: str) -> None:
    project.write(test_plain=PLAIN, lmgate_yaml=text)
    project.run(fresh=True).expect(0, passed=1, skipped=1)


def test_a_cached_gate_imports_no_torch_and_asks_no_network(measured: Project) -> None:
    measured.write(
        test_gate="""
            import sys
            import pytest

            @pytest.mark.ppl_max("die", "words", 60.5)
            @pytest.mark.bpb_max("sure", "words", 99)
            def test_gate(ppl_of):
                assert ppl_of("die", "words", unit="word").cached
                assert not {"torch", "transformers", "datasets", "pyarrow", "huggingface_hub"} & set(sys.modules)
        """,
        conftest="""
            import socket

            def refuse(*args, **kwargs):
                raise AssertionError("the network was asked")

            socket.socket.connect = socket.create_connection = socket.getaddrinfo = refuse
        """,
    )
    measured.run(fresh=True).expect(0, passed=1)


ODD_PROPERTIES = """
    import pytest

    class Odd:
        def __eq__(self, other): raise ValueError("no comparison")
        __hash__ = None

    def test_recorded(record_property):
        record_property("lmgate", "theirs")

    @pytest.mark.parametrize("text", ["{", "[" * 9000, "null", "[]", '{"a": 1}', '{"a": "1"}', '{"a": "{}"}'])
    def test_ours_by_chance(record_property, text):
        record_property("lmgate:verdicts", text)

    @pytest.mark.parametrize("given", [(), "text", None, ("one",), (1, 2, 3), ("x", Odd()), (Odd(), "x"), 3])
    def test_no_pair(request, given):
        request.node.user_properties.append(given)
"""


@pytest.mark.parametrize("workers", [(), ("-n", "2")])
def test_properties_of_other_plugins_may_be_what_they_like(project: Project, workers: tuple[str, ...]) -> None:
    text = ODD_PROPERTIES
    if workers:  # xdist takes builtins only
        text = text.replace('("x", Odd()), (Odd(), "x"), ', "")
    project.write(test_odd=text)
    passed = 14 if workers else 16
    project.run(*workers).expect(0, passed=passed).is_silent_on("lmgate:verdicts", "= lmgate =")


def test_a_property_named_as_the_plugin_is_shown_as_it_is(project: Project) -> None:
    project.write(test_odd="def test_recorded(record_property): record_property('lmgate', 'theirs')")
    project.run("--junitxml", "junit.xml", "-o", "junit_family=xunit1").expect(0, passed=1)
    assert '<property name="lmgate" value="theirs"' in (project.folder / "junit.xml").read_text(encoding="utf-8")


def test_a_history_at_an_address_is_looked_at_by_sessions_with_gates_only(dice: DiceProject) -> None:
    dice.models(red={})
    dice.write(pytest_ini="[pytest]\nlmgate_history = nosuch://bucket/runs\n", test_plain="def test_plain(): pass")
    dice.run().expect(0, passed=1).is_silent_on("lmgate-history")
    dice.gates([("red", "one")])
    for arguments in ((), ("-n", "2")):
        dice.run(*arguments).expect(4).says("--lmgate-history: expected a usable address such as")
