"""Markers: what a gate decides, how it fails a test, and what it says."""

import math
import re

import pytest

from tests.end_to_end.projects import FACES, Project, marked


def test_a_test_fails_when_its_model_is_above_the_limit_and_passes_when_it_is_not(measured: Project) -> None:
    measured.write(
        test_plain=marked(
            ppl_within="ppl_max('die', 'words', 60.01)",
            ppl_above="ppl_max('die', 'words', 59.99)",
            bpb_above="bpb_max('die', 'words', 0.5)",
        ),
        test_given="""
            import unittest
            import pytest
            import pytest_lmgate as lmgate

            @pytest.fixture(scope="session")
            def model(): return "die"

            @pytest.fixture(params=[1])
            def dataset(request, model): return "words"

            @pytest.mark.ppl_max(lmgate.fixture("model"), lmgate.fixture("dataset"), 60.5)
            def test_fixtures_within(dataset): pass

            class Tests(unittest.TestCase):
                @pytest.mark.ppl_max("die", "words", 60.5)
                def test_method_within(self): pass

                @pytest.mark.ppl_max(lmgate.fixture("model"), "words", 59.5)
                def test_method_above(self): pass
        """,
    )
    outcome = measured.run("--lmgate-report", "json:report.json").expect(1, passed=3, failed=3)
    assert len(re.findall(r"^FAILED test_\w+.py::(?:Tests::)?test_\w+_above", outcome.out, re.MULTILINE)) == 3
    outcome.says("of 'model' on 'words'")
    *_, ppl, bpb = measured.report()["gates"]
    assert ppl["value"] == pytest.approx(FACES, rel=1e-6)
    assert bpb["value"] == pytest.approx(ppl["n"] * math.log2(FACES) / bpb["n"], rel=1e-6)


def test_all_failures_of_a_test_are_shown_and_a_gate_that_cannot_be_measured_hides_no_other(measured: Project) -> None:
    measured.write(
        test_gate="""
            import pytest
            import pytest_lmgate as lmgate

            class Exploding:
                tokenizer = None

                @property
                def model(self): raise ZeroDivisionError("a bug of the user's own")

            @pytest.fixture
            def exploding(): return Exploding()

            @pytest.fixture
            def broken(): raise OSError("no such bucket")

            @pytest.mark.ppl_max("die", "words", 59)
            @pytest.mark.ppl_max("die", "words", 61)
            @pytest.mark.ppl_max("sure", "words", 58)
            @pytest.mark.bpb_max("die", "words", 0.5)
            def test_many(): raise AssertionError("the body runs only when every gate holds")

            @pytest.mark.ppl_max("die", "words", 57)
            @pytest.mark.ppl_max("./no_such_folder", "words", 60)
            def test_missing(): pass

            @pytest.mark.ppl_max("die", "words", 56)
            @pytest.mark.ppl_max(lmgate.fixture("exploding"), "words", 60)
            def test_exploding(): pass

            @pytest.mark.ppl_max(lmgate.fixture("broken"), "words", 60.5)
            @pytest.mark.ppl_max("die", "words", 60.5)
            def test_broken(): pass
        """
    )
    outcome = measured.run("--lmgate-report", "json:report.json").expect(1, failed=1, error=3)
    outcome.says(*(f"the limit {limit}\n" for limit in (59, 58, 0.5, 57, 56)), "no_such_folder")
    outcome.says("ZeroDivisionError: a bug of the user's own", "raise ZeroDivisionError", "1 pass, 5 fail, 4 error")
    outcome.is_silent_on("the limit 61\n", "the body runs only")
    gates = measured.report()["gates"]
    assert [gate["verdict"] for gate in gates[4:]] == ["fail", "error", "fail", "error", "error", "error"]
    assert "OSError: no such bucket" in gates[-2]["message"] + gates[-1]["message"]


def test_marks_on_classes_modules_and_parameters_are_gates(measured: Project) -> None:
    measured.write(
        test_gate="""
            import pytest

            pytestmark = pytest.mark.ppl_max("die", "words", 61)

            @pytest.mark.bpb_max("die", "words", 9)
            class TestClass:
                @pytest.mark.parametrize("limit", [
                    pytest.param(n, marks=pytest.mark.ppl_max("die", "words", n)) for n in (60.5, 59.5)
                ])
                def test_parameter(self, limit): pass
        """
    )
    measured.run("--lmgate-report", "json:report.json").expect(1, passed=1, failed=1).says("6 gates: 5 pass, 1 fail")
    gates = measured.report()["gates"]
    assert [gate["limit"] for gate in gates] == [61, 9, 60.5, 61, 9, 59.5]
    assert len({gate["id"] for gate in gates}) == 6
    assert gates[-1]["id"].endswith("[59.5]::ppl_max[die-words#2]")


def test_strict_xfail_fails_when_the_gate_holds_and_no_skip_in_the_body_hides_a_failing_gate(measured: Project) -> None:
    measured.write(
        test_gate="""
            import unittest
            import pytest

            fails = pytest.mark.ppl_max("die", "words", 59.5)

            @pytest.mark.xfail(strict=True)
            @fails
            def test_known_bad(): pass

            @pytest.mark.xfail(strict=True)
            @pytest.mark.ppl_max("die", "words", 60.5)
            def test_no_longer_bad(): pass

            @fails
            def test_skips(): pytest.skip("not today")

            @fails
            def test_expects(): pytest.xfail("known")

            class Tests(unittest.TestCase):
                @fails
                def test_skips(self): self.skipTest("not today")
        """
    )
    outcome = measured.run().expect(1, xfailed=1, failed=4)
    outcome.says("[XPASS(strict)]", "FAILED test_gate.py::test_no_longer_bad")


@pytest.mark.parametrize("way_out", ["skip", "xfail"])
def test_a_gate_that_is_skipped_while_it_is_measured_hides_no_failing_gate(measured: Project, way_out: str) -> None:
    measured.write(
        test_gate=f"""
            import pytest
            import pytest_lmgate as lmgate

            @pytest.fixture
            def system():
                return lambda prompts: pytest.{way_out}("no")

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
    last = {"xfailed": 1} if way_out == "xfail" else {"skipped": 1}
    outcome = measured.run("-n", "2").expect(1, failed=2, error=1, **last)
    outcome.says("FAIL     test_gate.py::test_after::ppl_max[die-words]", "4 gates: 1 pass, 2 fail, 1 error")


def test_a_gate_that_a_fixture_adds_is_judged_and_one_added_later_fails_its_test(measured: Project) -> None:
    measured.write(
        test_gate="""
            import pytest

            BAD = pytest.mark.ppl_max("sure", "words", 60.5)

            @pytest.fixture(params=[60.5, 59.5, -1])
            def gated(request):
                request.node.add_marker(pytest.mark.ppl_max("die", "words", request.param))

            @pytest.mark.bpb_max("die", "words", 9)
            def test_in_setup(gated): pass

            @pytest.fixture
            def adds(request):
                request.node.add_marker(BAD)

            @pytest.fixture
            def adds_at_its_end(request):
                yield
                request.node.add_marker(BAD)

            def test_body(request):
                request.node.add_marker(BAD)
                pytest.skip("enough")

            @pytest.mark.ppl_max("die", "words", 60.5)
            def test_second(request):
                request.node.add_marker(BAD)

            def test_fixture(request):
                request.getfixturevalue("adds")

            def test_teardown(adds_at_its_end): pass

            def test_plain(adds_at_its_end):
                pytest.skip("a skip alone hides nothing but itself")
        """
    )
    outcome = measured.run("-n", "2").expect(1, failed=4, passed=2, skipped=1, error=3)
    outcome.says("the limit 59.5", "limit: ", "test_body: a gate was added too late")
    outcome.says("test_teardown: a gate was added too late (ppl_max)")
    measured.run("--no-lmgate", "-rs").expect(0, passed=2, skipped=6).says("--no-lmgate: gates are not judged")
