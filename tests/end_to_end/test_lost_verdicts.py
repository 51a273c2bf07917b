"""A gate never lies: whatever keeps a verdict from arriving, or from counting, fails the session."""

import pytest

from tests.end_to_end.projects import BROKEN_GATE, GATE, Project

FOUR = """
    import pytest

    @pytest.mark.parametrize("n", range(4))
    @pytest.mark.ppl_max("die", "words", 60.5)
    def test_gate(n): pass
"""
SCORES = """
    import pathlib
    import pytest

    def test_plain(): pass

    def test_record(ppl_of, record_property):
        score = ppl_of("sure", "words")
        record_property("ppl", WHAT)
        assert score < 60.5
"""
A_PATH = SCORES.replace("WHAT", "pathlib.Path('x')")
AUTOUSED = """
    @pytest.fixture(autouse=True)
    def where(record_property): record_property("where", __import__("pathlib").Path("x"))
"""
LOST = {
    "a gate": (FOUR + AUTOUSED, "the verdict of test_it.py::test_gate[0] never arrived"),
    "a measurement": (A_PATH, "the report of test_it.py::test_record never arrived"),
    "both": (
        A_PATH.replace("    def test_rec", "    @pytest.mark.ppl_max('die', 'words', 60.5)\n    def test_rec"),
        "the report of test_it.py::test_record never arrived",
    ),
    "neither": (A_PATH.replace("ppl_of, ", "").replace("ppl_of('sure', 'words')", "99"), ""),
}


@pytest.mark.parametrize("what", LOST)
def test_a_path_in_user_properties_cannot_end_green_under_xdist(measured: Project, what: str) -> None:
    # execnet takes builtins only: the worker dies of it, and pytest may say "no tests ran" with exit code 0.
    text, sentence = LOST[what]
    outcome = measured.write(test_it=text).run("-n", "2").says(sentence)
    assert outcome.code not in (0, 5), outcome.text


@pytest.mark.parametrize("when", ["fixture", "collection"])
def test_a_worker_that_is_killed_fails_the_session_and_other_verdicts_are_kept(measured: Project, when: str) -> None:
    measured.write(
        test_gate=FOUR,
        test_killer=GATE.replace("test_gate()", "test_killed(killer)"),
        conftest=f"""
            import os, signal
            import pytest

            @pytest.fixture
            def killer(): os.kill(os.getpid(), signal.SIGKILL)

            def pytest_collection_modifyitems(config):
                if {when == "collection"} and hasattr(config, "workerinput"):
                    os.kill(os.getpid(), signal.SIGKILL)
        """,
    )
    if when == "fixture":
        outcome = measured.run("-n", "2").expect(1)
        outcome.says("4 gates: 4 pass", "crashed while running 'test_killer.py::test_killed'")
    else:  # for pytest that is a session without tests, whose exit code 5 some scripts let pass
        outcome = measured.run("-n", "2", "--max-worker-restart=1").expect(3)
        outcome.says("ERROR: the xdist workers ended before they had collected the tests, so no gate ran")


NEVER, DID_NOT_FAIL = "the verdict of test_gate.py::test_gate never arrived", "test_gate.py::test_gate did not fail"
FIRST, AROUND = "@pytest.hookimpl(tryfirst=True)\n", "@pytest.hookimpl(wrapper=True, tryfirst=True)\n"
MADE = "@pytest.hookimpl(wrapper=True)\ndef pytest_runtest_makereport():\n    report = yield\n"
CALL = f"{AROUND}def pytest_runtest_call():\n    try:\n        yield\n    except BaseException:\n        pytest."
HOOKS = {
    "not run": (NEVER, f"{FIRST}def pytest_runtest_protocol(item):\n    return True"),
    "verdict dropped": (
        NEVER,
        f"{AROUND}def pytest_runtest_makereport():\n    report = yield\n    vars(report).pop('lmgate', None)\n"
        "    return report",
    ),
    "made to pass": (DID_NOT_FAIL, f"{MADE}    report.outcome = 'passed'\n    return report"),
    "made to skip": (DID_NOT_FAIL, f"{CALL}skip('flaky')"),
    "made to xfail": (DID_NOT_FAIL, f"{CALL}xfail('flaky')"),
    "called known": (
        DID_NOT_FAIL,
        f"{MADE}    if report.failed:\n        report.outcome, report.wasxfail = 'skipped', 'known'\n    return report",
    ),
    "to be retried": (
        DID_NOT_FAIL,
        "@pytest.hookimpl(wrapper=True)\ndef pytest_runtest_logreport(report):\n"
        "    if report.failed:\n        report.outcome = 'retried'\n    return (yield)",
    ),
}


@pytest.mark.parametrize("name", HOOKS)
def test_no_other_plugin_can_make_a_gate_vanish(measured: Project, name: str) -> None:
    sentence, hook = HOOKS[name]
    score = "def test_score(ppl_of): assert ppl_of('die', 'words') < 60.5\n"
    measured.write(
        test_gate=GATE if sentence == NEVER else BROKEN_GATE, test_score=score, conftest=f"import pytest\n\n{hook}\n"
    )
    outcome = measured.run("-p", "no:terminal").expect(1).says(f"ERROR: {sentence}")
    discard_note = "ERROR: the report of test_score.py::test_score never arrived"
    assert (discard_note in outcome.text) == (name == "not run"), outcome.text


def test_an_early_exit_that_claims_success_is_not_believed(measured: Project) -> None:
    before = "import pytest\n\ndef test_leaves():\n    pytest.exit('enough', returncode=0)\n"
    measured.write(test_gate=BROKEN_GATE, test_before=before).run("test_before.py", "test_gate.py").expect(1).says(
        NEVER
    )


LENIENT = {
    "exit after a test": "def pytest_runtest_logfinish(): pytest.exit('no time left', returncode=0)",
    "exit at the end": "def pytest_sessionfinish(): pytest.exit('all is well', returncode=0)",
    "leave at the end": "import sys\ndef pytest_sessionfinish(): sys.exit(0)",
    "a status": "def pytest_sessionfinish(session): session.exitstatus = 0",
    "a late status": "@pytest.hookimpl(trylast=True)\ndef pytest_sessionfinish(session): session.exitstatus = 0",
    "a later status": """
@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_sessionfinish(session):
    yield
    session.exitstatus = 0
""",
}


@pytest.mark.parametrize("how", LENIENT)
def test_a_failed_gate_fails_the_session_whatever_status_the_project_sets(measured: Project, how: str) -> None:
    measured.write(test_gate=BROKEN_GATE, conftest=f"import pytest\n\n{LENIENT[how]}\n")
    measured.run().expect(1).says("a gate failed, so" if how.endswith("at the end") else "1 gate: 1 fail")
    score = "def test_score(ppl_of): assert ppl_of('die', 'words') < 59.5\n"
    measured.write(test_gate="", test_score=score).run().expect(1)
    if how == "a status":
        measured.write(test_score="def test_other(): assert 0").run().expect(0)
        measured.write(test_gate=GATE, test_score="").run().expect(0)
