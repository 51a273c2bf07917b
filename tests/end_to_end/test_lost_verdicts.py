"""A gate never lies: whatever keeps a verdict from arriving, or from counting, fails the session."""

import re

import pytest

from tests.end_to_end.dice import DiceProject
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
    "neither": (A_PATH.replace("ppl_of, ", "").replace("ppl_of('sure', 'words')", "99"), ""),
}


@pytest.mark.parametrize("what", LOST)
def test_a_path_in_user_properties_cannot_end_green_under_xdist(measured: Project, what: str) -> None:
    # execnet takes builtins only: the worker dies of it, and pytest may say "no tests ran" with exit code 0.
    text, sentence = LOST[what]
    outcome = measured.write(test_it=text).run("-n", "2").says(sentence)
    assert outcome.code not in (0, 5), outcome.text


KILLED = """
    import os, signal

    def pytest_collection_modifyitems(config):
        if hasattr(config, "workerinput"):
            os.kill(os.getpid(), signal.SIGKILL)
"""


def test_workers_that_are_killed_while_they_collect_fail_the_session(measured: Project) -> None:
    # For pytest that is a session without tests, whose exit code 5 some scripts let pass.
    outcome = measured.write(test_gate=GATE, conftest=KILLED).run("-n", "2", "--max-worker-restart=1").expect(3)
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
    measured.write(test_gate=BROKEN_GATE, test_before=before)
    measured.run("test_before.py", "test_gate.py").expect(1).says(NEVER)


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


_BEGIN = """
    import collections
    import pathlib

    import pytest
    import pytest_lmgate as lmgate

    attempts = collections.Counter()

    @pytest.fixture(autouse=True)
    def attempt(request):
        attempts[request.node.name] += 1
        return attempts[request.node.name]

    @pytest.fixture
    def model(attempt):
        return str(pathlib.Path(__file__).with_name("worse.die" if attempt == 1 else "die.die"))
"""
_HIDDEN = """
    @pytest.fixture
    def skipped_later(attempt):
        if attempt > 1:
            pytest.skip("enough")

    @pytest.fixture
    def xfailed_later(attempt):
        if attempt > 1:
            pytest.xfail("enough")

    @pytest.mark.ppl_max("die", "one", 5.9)
    def test_skipped_by_a_fixture(skipped_later): pass

    @pytest.mark.ppl_max("die", "one", 5.9)
    def test_xfailed_by_a_fixture(xfailed_later): pass

    @pytest.mark.skipif("attempts['test_skipped_by_a_mark'] > 0", reason="enough")
    @pytest.mark.ppl_max("die", "one", 5.9)
    def test_skipped_by_a_mark(): pass

    @pytest.mark.ppl_max("./no_such_file.die", "one", 5.9)
    def test_error_skipped_by_a_fixture(skipped_later): pass

    @pytest.fixture
    def broken_once(attempt):
        assert attempt > 1

    @pytest.mark.ppl_max("die", "one", 6.1)
    def test_not_measured(broken_once, skipped_later): pass
"""
_HIDDEN_BY_RETRY = """
    @pytest.mark.ppl_max("die", "one", 5.9)
    def test_skipped_by_a_hook(): pass
"""
_HOOK = """
    import pytest

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_call(item):
        try:
            return (yield)
        except BaseException:
            if item.module.attempts[item.name] > 1:
                pytest.skip("enough")
            raise
"""
_RIGHT = """
    @pytest.mark.ppl_max(lmgate.fixture("model"), "one", 6.1)
    def test_passes_later(): pass

    @pytest.mark.ppl_max("die", "one", 6.1)
    def test_body_passes_later(attempt):
        assert attempt > 1

    @pytest.mark.xfail(reason="known")
    @pytest.mark.ppl_max("die", "one", 5.9)
    def test_marked(): pass
"""
_PLUGINS = {
    "pytest_rerunfailures": ("rerunfailures", "--reruns=1", _HIDDEN, ""),
    "pytest_retry": ("pytest-retry", "--retries=1", _HIDDEN_BY_RETRY, _HOOK),
}


@pytest.mark.parametrize("plugin", _PLUGINS)
def test_a_rerun_hides_no_failure_unless_it_passes(dice: DiceProject, plugin: str) -> None:
    pytest.importorskip(plugin)
    name, option, hidden, hook = _PLUGINS[plugin]
    (dice.folder / "hidden").mkdir()
    dice.models(die={}, worse={"sides": 7}).write(
        test_right=_BEGIN + _RIGHT, **{"hidden/test_hidden": _BEGIN + hidden, "hidden/conftest": hook}
    )
    right = dice.run("-p", name, option, "test_right.py", "-n", "2").expect(0).says("2 passed, 1 xfailed, 2 re")
    right.is_silent_on("did not fail")

    outcome = dice.run("-p", name, option, "hidden", "-n", "2").expect(1)
    assert not {"passed", "failed", "error"} & outcome.counts.keys(), outcome.text  # so that pytest alone is content
    for test in re.findall(r"def (test_\w+)", hidden):
        outcome.says(f"test_hidden.py::{test} did not fail although a gate of it did")


def test_a_rerun_that_is_skipped_after_a_worker_died_hides_no_lost_gate(dice: DiceProject) -> None:
    pytest.importorskip("pytest_rerunfailures")
    dice.models(die={"kills_after": 0}).write(
        test_gate="""
            import pathlib
            import pytest

            @pytest.fixture
            def skipped_later():
                if pathlib.Path(__file__).with_name("killed.txt").exists():
                    pytest.skip("enough")

            @pytest.mark.ppl_max("die", "one", 6.1)
            def test_killed(skipped_later): pass
        """
    )
    outcome = dice.run("-p", "rerunfailures", "--reruns=1", "-n", "1").expect(1, skipped=1, rerun=1)
    outcome.says("ERROR: the verdict of test_gate.py::test_killed never arrived: the session fails")
