"""A gate that fails, or cannot be measured, fails the session unless a later attempt of its test passes the gate."""

import re

import pytest

from tests.end_to_end.dice import DiceProject

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
    workers = ("-n", "2")
    name, option, hidden, hook = _PLUGINS[plugin]
    (dice.folder / "hidden").mkdir()
    dice.models(die={}, worse={"sides": 7}).write(
        test_right=_BEGIN + _RIGHT, **{"hidden/test_hidden": _BEGIN + hidden, "hidden/conftest": hook}
    )

    right = dice.run("-p", name, option, "test_right.py", *workers).expect(0).says("2 passed, 1 xfailed, 2 re")
    right.is_silent_on("did not fail")

    outcome = dice.run("-p", name, option, "hidden", *workers).expect(1)
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
