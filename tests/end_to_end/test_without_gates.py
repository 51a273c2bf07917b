"""Sessions without a gate pay nothing for the plugin: no import, no file, no word, no variable."""

from tests.end_to_end.projects import Project

HEAVY = ("torch", "transformers", "datasets", "numpy", "pyarrow", "msgspec", "yaml", "safetensors", "filelock", "scipy")

PLAIN = """
    import pytest

    def test_plain(): pass

    @pytest.mark.skip
    def test_skipped(): pass
"""


def test_a_session_without_gates_imports_nothing_heavy_and_leaves_the_environment_alone(project: Project) -> None:
    (project.folder / "lmgate.yaml").unlink()
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
                ours = [name for name in sys.modules if name.startswith("pytest_lmgate")]
                assert len(ours) <= 15, ours
        """,
    )
    project.run("-n", "2", fresh=True).expect(0, passed=1, skipped=1)


def test_a_cached_gate_imports_no_torch_and_asks_no_network(measured: Project) -> None:
    heavy = {"torch", "transformers", "datasets", "pyarrow", "huggingface_hub", "scipy"}
    measured.write(
        test_gate=f"""
            import sys
            import pytest

            @pytest.mark.bpb_max("sure", "words", 99)
            @pytest.mark.no_regression("ppl", "die", "words", "1%")
            def test_gate(ppl_of): assert ppl_of("die", "words", unit="word").cached

            def test_imports():
                assert "--lmgate-update" in sys.argv or not {heavy} & set(sys.modules)
        """
    ).run("--lmgate-update").expect(0, passed=2)
    no_network = "import socket\n\nsocket.socket.connect = socket.create_connection = socket.getaddrinfo = None\n"
    measured.write(conftest=no_network).run(torch_free=True).expect(0, passed=2)


ODD_PROPERTIES = """
    import pytest

    class Odd:
        def __eq__(self, other): raise ValueError("no comparison")
        __hash__ = None

    def test_recorded(record_property):
        record_property("lmgate", "theirs")

    @pytest.mark.parametrize("text", ["{", "null", {}, {"a": 1}, {"a": "1"}, {"a": "[" * 9000}, {1: "{}"}])
    def test_ours_by_chance(record_property, text):
        record_property("lmgate:verdicts", text)

    @pytest.mark.parametrize("given", [(), "text", None, ("one",), (1, 2, 3), ("x", Odd()), (Odd(), "x"), 3])
    def test_no_pair(request, given):
        request.node.user_properties.append(given)
"""


def test_properties_of_other_plugins_may_be_what_they_like(unmeasured: Project) -> None:
    unmeasured.write(test_odd=ODD_PROPERTIES).run().expect(0, passed=16).is_silent_on("lmgate:verdicts", "= lmgate =")
