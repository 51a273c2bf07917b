"""A gate never lies: whatever keeps a verdict from arriving, or from counting, fails the session."""

from __future__ import annotations

import pytest

from tests.end_to_end.projects import BROKEN_GATE, GATE, Project

FOUR = """
    import pytest

    @pytest.mark.parametrize("n", range(4))
    @pytest.mark.ppl_max("die", "words", 60.5)
    def test_gate(n): pass
"""


def test_a_path_in_user_properties_cannot_end_green_under_xdist(measured: Project) -> None:
    # execnet takes builtins only: the worker dies of it, and pytest may say "no tests ran" with exit code 0.
    measured.write(
        test_gate=FOUR,
        conftest="""
            import pathlib

            def pytest_runtest_setup(item):
                item.user_properties.append(("where", pathlib.Path("x")))
        """,
    )
    outcome = measured.run("-n", "2")
    assert outcome.code != 0, outcome.text
    outcome.says("the verdict of test_gate.py::test_gate[0] never arrived")


@pytest.mark.parametrize("when", ["fixture", "collection"])
def test_a_worker_that_is_killed_fails_the_session_and_the_other_verdicts_are_kept(
    measured: Project, when: str
) -> None:
    measured.write(
        test_gate=FOUR,
        test_killer="""
            import pytest

            @pytest.mark.ppl_max("die", "words", 60.5)
            def test_killed(killer): pass
        """,
        conftest=f"""
            import os, signal
            import pytest

            def kill():
                os.kill(os.getpid(), signal.SIGKILL)

            @pytest.fixture
            def killer():
                kill()

            def pytest_collection_modifyitems(config):
                if {when == "collection"} and hasattr(config, "workerinput"):
                    kill()
        """,
    )
    outcome = measured.run("-n", "2")
    assert outcome.code != 0, outcome.text
    if when == "fixture":
        outcome.says("4 gates: 4 pass", "crashed while running 'test_killer.py::test_killed'")


@pytest.mark.parametrize(
    ("hook", "sentence"),
    [
        (
            "@pytest.hookimpl(tryfirst=True)\ndef pytest_runtest_protocol(item):\n    return True",
            "the verdict of test_gate.py::test_gate never arrived",
        ),
        (
            "@pytest.hookimpl(wrapper=True)\ndef pytest_runtest_makereport():\n    report = yield\n"
            "    report.user_properties = []\n    return report",
            "the verdict of test_gate.py::test_gate never arrived",
        ),
        (
            "@pytest.hookimpl(wrapper=True)\ndef pytest_runtest_makereport():\n    report = yield\n"
            "    report.outcome = 'passed'\n    return report",
            "test_gate.py::test_gate did not fail although a gate of it did",
        ),
        (
            "@pytest.hookimpl(wrapper=True, tryfirst=True)\ndef pytest_runtest_call():\n    try:\n        yield\n"
            "    except BaseException:\n        pytest.skip('flaky')",
            "test_gate.py::test_gate did not fail although a gate of it did",
        ),
    ],
    ids=["not run", "verdict dropped", "made to pass", "made to skip"],
)
def test_no_other_plugin_can_make_a_gate_vanish(measured: Project, hook: str, sentence: str) -> None:
    text = BROKEN_GATE if "although" in sentence else GATE
    measured.write(test_gate=text, conftest=f"import pytest\n\n{hook}\n")
    measured.run().expect(1).says(f"ERROR: {sentence}: the session fails by it")
    measured.run("-p", "no:terminal").expect(1).says(f"ERROR: {sentence}: the session fails by it")


def test_an_early_exit_that_claims_success_is_not_believed(measured: Project) -> None:
    measured.write(
        test_gate=BROKEN_GATE,
        test_before="import pytest\n\ndef test_leaves():\n    pytest.exit('enough', returncode=0)\n",
    )
    measured.run("test_before.py", "test_gate.py").expect(1).says(
        "the verdict of test_gate.py::test_gate never arrived"
    )


def test_a_report_that_cannot_be_written_fails_the_session_and_hides_no_verdict(measured: Project) -> None:
    measured.write(test_gate=GATE)
    (measured.folder / "file").write_text("")
    options = ("--lmgate-report", "json:file/report.json", "--lmgate-report", "json:report.json")
    outcome = measured.run(*options).expect(1, passed=1)
    outcome.says("1 gate: 1 pass", "ERROR: --lmgate-report json:file/report.json: cannot be written")
    assert measured.report()["gates"][0]["verdict"] == "pass"
    measured.run(*options, "-p", "no:terminal").expect(1).says("cannot be written")


def test_a_report_sent_to_a_device_or_a_link_leaves_it_what_it_is(measured: Project) -> None:
    measured.write(test_gate=GATE)
    link = measured.folder / "link.json"
    link.symlink_to(measured.folder / "target.json")
    measured.run("--lmgate-report", "json:/dev/stdout", "--lmgate-report", "json:link.json").expect(0).says(
        '"schema": 1'
    )
    assert link.is_symlink()
    assert measured.report("target.json")["schema"] == 1
