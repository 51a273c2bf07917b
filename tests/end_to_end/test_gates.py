"""Markers: what a gate decides, how it fails a test, and what it says."""

from __future__ import annotations

import math
import re

import pytest

from tests.end_to_end.projects import BROKEN_GATE, FACES, Project


def test_a_test_fails_when_its_model_is_above_the_limit_and_passes_when_it_is_not(measured: Project) -> None:
    measured.write(
        test_gates="""
            import pytest

            @pytest.mark.ppl_max("die", "words", 60.01)
            def test_ppl_within(): pass

            @pytest.mark.ppl_max("die", "words", 59.99)
            def test_ppl_above(): pass

            @pytest.mark.bpb_max("die", "words", 5.9)
            def test_bpb_within(): pass

            @pytest.mark.bpb_max("die", "words", 0.5)
            def test_bpb_above(): pass
        """
    )
    outcome = measured.run("--lmgate-report", "json:report.json").expect(1, passed=2, failed=2)
    outcome.says("FAILED test_gates.py::test_ppl_above", "FAILED test_gates.py::test_bpb_above")
    ppl, _, bpb, _ = measured.report()["gates"]
    assert ppl["value"] == pytest.approx(FACES, rel=1e-6)
    assert bpb["value"] == pytest.approx(ppl["n"] * math.log2(FACES) / bpb["n"], rel=1e-6)


def test_the_limit_itself_passes_and_the_next_number_below_fails(measured: Project) -> None:
    measured.write(test_gate=BROKEN_GATE).run("--lmgate-report", "json:report.json").expect(1, failed=1)
    value = measured.report()["gates"][0]["value"]
    measured.write(
        test_gate=f"""
            import pytest

            @pytest.mark.ppl_max("die", "words", {value!r})
            def test_equal(): pass

            @pytest.mark.ppl_max("die", "words", {math.nextafter(value, 0)!r})
            def test_one_ulp_below(): pass
        """
    )
    outcome = measured.run().expect(1, passed=1, failed=1).says("FAILED test_gate.py::test_one_ulp_below")
    shown = re.search(r"perplexity (\S+) .* is above the limit (\S+)", outcome.out)
    assert shown is not None
    assert shown[1] != shown[2], f"a failure must not read as 'x is above the limit x': {shown[0]}"


@pytest.mark.parametrize(
    "options",
    [
        (),
        ("--assert=plain",),
        ("-n", "2"),
        ("-p", "no:xdist"),
        # Of several lines, older versions show the first.
        pytest.param(("-s", "--tb=line"), marks=pytest.mark.skipif(pytest.version_tuple < (9,), reason="pytest 9")),
    ],
)
def test_the_failure_says_all_that_is_needed_to_believe_it(measured: Project, options: tuple[str, ...]) -> None:
    measured.write(
        test_gate="""
            import pytest

            @pytest.mark.ppl_max("sure", "words", 59.5)
            def test_gate(): pass
        """
    )
    outcome = measured.run(*options).expect(1, failed=1)
    outcome.says(
        "ppl_max: perplexity",
        "of 'sure' on 'words'",
        "is above the limit 59.5",
        "protocol:sliding|max_length:32|stride:16|",
        "399 tokens, standard error",
        "interval at 95%",
        "earlier, from the cache (fingerprint",
        "reproduce  pytest test_gate.py::test_gate\n",
        "accept     set another limit in test_gate.py:3\n",
    )
    found = re.search(r"perplexity (\S+) \[(\S+), (\S+)\].*\n\s+by\s+\+(\S+) \(\+(\S+)%\)", outcome.out)
    assert found is not None, outcome.out
    value, low, high, excess, percent = map(float, found.groups())
    assert low < value < high
    assert excess == pytest.approx(value - 59.5, rel=1e-3)
    assert percent == pytest.approx(100 * (value - 59.5) / 59.5, rel=1e-3)


def test_all_gates_of_a_test_are_judged_and_all_failures_shown(measured: Project) -> None:
    measured.write(
        test_gate="""
            import pytest

            @pytest.mark.ppl_max("die", "words", 59)
            @pytest.mark.ppl_max("die", "words", 61)
            @pytest.mark.ppl_max("sure", "words", 58)
            @pytest.mark.bpb_max("die", "words", 0.5)
            def test_many():
                raise AssertionError("the body runs only when every gate holds")
        """
    )
    outcome = measured.run().expect(1, failed=1)
    outcome.says("is above the limit 59\n", "is above the limit 58\n", "is above the limit 0.5\n")
    outcome.says("bits per byte", "4 gates: 1 pass, 3 fail")
    outcome.is_silent_on("the limit 61\n", "the body runs only")


def test_a_gate_that_cannot_be_measured_hides_no_other(measured: Project) -> None:
    measured.write(
        test_gate="""
            import pytest
            import pytest_lmgate as lmgate

            class Exploding:
                tokenizer = None

                @property
                def model(self):
                    raise ZeroDivisionError("a bug of the user's own")

            @pytest.fixture
            def exploding():
                return Exploding()

            @pytest.mark.ppl_max("die", "words", 59)
            @pytest.mark.ppl_max("./no_such_folder", "words", 60)
            def test_missing(): pass

            @pytest.mark.ppl_max("die", "words", 58)
            @pytest.mark.ppl_max(lmgate.fixture("exploding"), "words", 60)
            def test_exploding(): pass
        """
    )
    outcome = measured.run("--lmgate-report", "json:report.json").expect(1, error=2)
    outcome.says("no such folder", "is above the limit 59\n", "is above the limit 58\n")
    outcome.says("ZeroDivisionError: a bug of the user's own", "raise ZeroDivisionError", "4 gates: 2 fail, 2 error")
    assert [gate["verdict"] for gate in measured.report()["gates"]] == ["fail", "error", "fail", "error"]


def test_marks_on_classes_modules_and_parameters_are_gates(measured: Project) -> None:
    measured.write(
        test_gate="""
            import pytest

            pytestmark = pytest.mark.ppl_max("die", "words", 61)

            @pytest.mark.bpb_max("die", "words", 9)
            class TestClass:
                @pytest.mark.parametrize("limit", [
                    pytest.param(60.5, marks=pytest.mark.ppl_max("die", "words", 60.5)),
                    pytest.param(59.5, marks=pytest.mark.ppl_max("die", "words", 59.5)),
                ])
                def test_parameter(self, limit): pass
        """
    )
    measured.run("--lmgate-report", "json:report.json").expect(1, passed=1, failed=1).says("6 gates: 5 pass, 1 fail")
    gates = measured.report()["gates"]
    assert [(gate["id"].rpartition("::")[2], gate["limit"], gate["verdict"]) for gate in gates] == [
        ("ppl_max[die-words]", 61, "pass"),
        ("bpb_max[die-words]", 9, "pass"),
        ("ppl_max[die-words#2]", 60.5, "pass"),
        ("ppl_max[die-words]", 61, "pass"),
        ("bpb_max[die-words]", 9, "pass"),
        ("ppl_max[die-words#2]", 59.5, "fail"),
    ]
    assert len({gate["id"] for gate in gates}) == 6


def test_methods_of_unittest_can_carry_gates(measured: Project) -> None:
    measured.write(
        test_gate="""
            import unittest
            import pytest
            import pytest_lmgate as lmgate

            @pytest.fixture
            def model():
                return "die"

            class Tests(unittest.TestCase):
                @pytest.mark.ppl_max("die", "words", 60.5)
                def test_within(self): pass

                @pytest.mark.ppl_max("die", "words", 59.5)
                def test_above(self): pass

                @pytest.mark.ppl_max(lmgate.fixture("model"), "words", 59.5)
                def test_fixture(self): pass
        """
    )
    outcome = measured.run().expect(1, passed=1, failed=2)
    outcome.says("FAILED test_gate.py::Tests::test_above", "FAILED test_gate.py::Tests::test_fixture")


def test_a_gate_names_fixtures_for_model_and_dataset(measured: Project) -> None:
    measured.write(
        test_gate="""
            import pytest
            import pytest_lmgate as lmgate

            @pytest.fixture(scope="session")
            def model():
                return "die"

            @pytest.fixture(params=[60.5])
            def dataset(request, model):
                assert model == "die"
                return "words"

            @pytest.mark.ppl_max(lmgate.fixture("model"), lmgate.fixture("dataset"), 60.5)
            def test_within(dataset): pass

            @pytest.mark.ppl_max(lmgate.fixture("model"), "words", 59.5)
            def test_above(): pass
        """
    )
    measured.run().expect(1, passed=1, failed=1).says("of 'model' on 'words' is above the limit 59.5")


def test_xfail_expects_a_failing_gate_and_strict_xfail_fails_when_the_gate_holds(measured: Project) -> None:
    measured.write(
        test_gate="""
            import pytest

            @pytest.mark.xfail(strict=True)
            @pytest.mark.ppl_max("die", "words", 59.5)
            def test_known_bad(): pass

            @pytest.mark.xfail(strict=True)
            @pytest.mark.ppl_max("die", "words", 60.5)
            def test_no_longer_bad(): pass
        """
    )
    measured.run().expect(1, xfailed=1, failed=1).says("[XPASS(strict)]", "FAILED test_gate.py::test_no_longer_bad")


def test_nothing_that_skips_in_the_body_hides_a_failing_gate(measured: Project) -> None:
    measured.write(
        test_gate="""
            import unittest
            import pytest

            @pytest.mark.ppl_max("die", "words", 59.5)
            def test_skips():
                pytest.skip("not today")

            @pytest.mark.ppl_max("die", "words", 59.5)
            def test_imports():
                pytest.importorskip("no_such_module")

            @pytest.mark.ppl_max("die", "words", 59.5)
            def test_expects():
                pytest.xfail("known")

            class Tests(unittest.TestCase):
                @pytest.mark.ppl_max("die", "words", 59.5)
                def test_skips(self):
                    self.skipTest("not today")
        """
    )
    measured.run().expect(1, failed=4)


@pytest.mark.parametrize("way_out", ["pytest.skip('no')", "pytest.xfail('no')", "raise_skip_test()"])
@pytest.mark.parametrize("workers", [(), ("-n", "2")])
def test_a_gate_that_is_skipped_while_it_is_measured_hides_no_failing_gate(
    measured: Project, way_out: str, workers: tuple[str, ...]
) -> None:
    measured.write(
        test_gate=f"""
            import unittest
            import pytest
            import pytest_lmgate as lmgate

            def raise_skip_test():
                raise unittest.SkipTest("no")

            @pytest.fixture
            def system():
                return lambda prompts: {way_out}

            @pytest.fixture
            def rows(): return [{{"source": "a", "references": "b"}}]

            skips = pytest.mark.exact_min(lmgate.fixture("system"), lmgate.fixture("rows"), 0.5)
            fails = pytest.mark.ppl_max("die", "words", 59.5)
            cannot = pytest.mark.ppl_max("./no_such_folder", "words", 59.5)
            passes = pytest.mark.ppl_max("die", "words", 60.5)

            @skips
            @fails
            def test_after(): pass

            @fails
            @skips
            def test_before(): pass

            @skips
            @cannot
            def test_error(): pass

            @skips
            @passes
            def test_skipped(): pass
        """
    )
    last = {"xfailed": 1} if "xfail" in way_out else {"skipped": 1}
    outcome = measured.run(*workers).expect(1, failed=2, error=1, **last)
    outcome.says("FAIL     test_gate.py::test_after::ppl_max[die-words]", "4 gates: 1 pass, 2 fail, 1 error")


def test_a_test_that_is_skipped_by_its_mark_measures_nothing_and_is_not_missed(project: Project) -> None:
    project.write(
        test_gate="""
            import pytest

            @pytest.mark.skipif(True, reason="not here")
            @pytest.mark.ppl_max("die", "words", 59.5)
            def test_skipif(): pass

            @pytest.fixture
            def unavailable():
                pytest.skip("no such device")

            @pytest.mark.ppl_max("die", "words", 59.5)
            def test_fixture(unavailable): pass

            @pytest.mark.xfail(run=False)
            @pytest.mark.ppl_max("die", "words", 59.5)
            def test_not_run(): pass
        """
    )
    project.run().expect(0, skipped=2, xfailed=1)
    assert not project.cache.exists()


def test_a_gate_fails_the_call_and_not_the_setup_or_the_teardown(measured: Project) -> None:
    measured.write(
        test_gate=BROKEN_GATE,
        conftest="""
            def pytest_runtest_logreport(report):
                print(f"<{report.when} {report.outcome}>")
        """,
    )
    measured.run("-s").expect(1, failed=1).says("<setup passed>", "<call failed>", "<teardown passed>")


@pytest.mark.parametrize("workers", [(), ("-n", "2")])
def test_a_gate_that_a_fixture_adds_to_its_own_test_is_judged(measured: Project, workers: tuple[str, ...]) -> None:
    measured.write(
        test_gate="""
            import pytest

            @pytest.fixture(params=[60.5, 59.5, -1])
            def gated(request):
                request.node.add_marker(pytest.mark.ppl_max("die", "words", request.param))

            @pytest.mark.bpb_max("die", "words", 9)
            def test_late(gated): pass
        """
    )
    outcome = measured.run(*workers).expect(1, passed=1, failed=1, error=1)
    outcome.says(
        "is above the limit 59.5",
        "limit: expected a positive finite number, got -1",
        "5 gates: 3 pass, 1 fail, 1 error",
    )
    measured.run("--no-lmgate", *workers).expect(0, skipped=3)


@pytest.mark.parametrize("workers", [(), ("-n", "2")])
def test_a_gate_that_is_added_after_the_setup_fails_its_test(measured: Project, workers: tuple[str, ...]) -> None:
    measured.write(
        test_gate="""
            import pytest

            BAD = pytest.mark.ppl_max("sure", "words", 60.5)

            @pytest.fixture
            def adds(request):
                request.node.add_marker(BAD)

            @pytest.fixture
            def adds_at_its_end(request):
                yield
                request.node.add_marker(BAD)

            def test_body(request):
                request.node.add_marker(BAD)

            def test_body_that_skips(request):
                request.node.add_marker(BAD)
                pytest.skip("enough")

            @pytest.mark.ppl_max("die", "words", 60.5)
            def test_second(request):
                request.node.add_marker(BAD)

            def test_fixture(request):
                request.getfixturevalue("adds")

            def test_teardown(adds_at_its_end): pass

            def test_plain(adds_at_its_end, request):
                pytest.skip("a skip alone hides nothing but itself")
        """
    )
    outcome = measured.run(*workers).expect(1, failed=4, passed=1, skipped=1, error=2)
    outcome.says("test_body: a gate was added too late", "test_teardown: a gate was added too late (ppl_max)")
    measured.run("--no-lmgate", *workers).expect(0, passed=3, skipped=3)
