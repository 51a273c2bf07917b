"""``marks:``, ``advisory:`` and ``within:`` of gates, in real processes."""

from tests.end_to_end.projects import Project

MARKED = """
defaults: {dataset: words, model: die}
gates:
  - ppl_max: {limit: 60.5, marks: [nightly]}
  - ppl_max: {model: sure, limit: 60.5, marks: [nightly, slow], advisory: true}
  - ppl_max: {limit: 59.5, marks: xfail}
"""


def test_marks_are_pytests_own(measured: Project) -> None:
    measured.write(lmgate_yaml=measured.settings + MARKED)
    strict = ("--strict-markers", "-W", "error")
    measured.run(*strict, "-n", "2").expect(0, passed=2, xfailed=1)
    measured.run("-m", "nightly and not slow", *strict).expect(0, passed=1)
    measured.run("-m", "slow", *strict).expect(0, passed=1).says("FAIL (advisory)")


def test_an_advisory_gate_that_cannot_be_measured_fails_the_build(measured: Project) -> None:
    measured.add_gates("ppl_max: {model: nan, dataset: words, limit: 60, advisory: true}")
    measured.with_torch.run().expect(1, error=1).says("ERROR ", "1 gate: 1 error").is_silent_on("(advisory)")


ADVISORY = """
defaults: {dataset: words, advisory: true}
gates:
  - ppl_max: {model: die, limit: 59.5}
  - ppl_max: {model: die, limit: 60.5}
  - ppl_max: {model: die, limit: 60.5, stride: 32, advisory: false}
  - no_regression: {metric: ppl, model: warm, tolerance: 6%, against: die}
  - no_regression: {metric: ppl, model: warm, tolerance: 0.01%, against: die}
"""


def test_an_advisory_gate_is_shown_in_every_report_and_fails_nothing(noisy: Project) -> None:
    noisy.write(lmgate_yaml=noisy.settings + ADVISORY)
    reports = [f"--lmgate-report={each}" for each in ("json:report.json", "markdown:r.md", "html:r.html", "github")]
    outcome = noisy.run("--lmgate-strict", "-n", "2", *reports, "--junitxml", "junit.xml").expect(0, passed=5)
    counts = "5 gates: 2 pass, 1 advisory fail, 2 advisory inconclusive"
    outcome.says(counts, "FAIL (advisory)", "INCONCLUSIVE (advisory)", "is above the limit 59.5 (advisory)")
    outcome.is_silent_on("INCONCLUSIVE!", "GateFailed", "::error")
    assert outcome.out.count("::warning") == 3
    gates = noisy.report()["gates"]
    assert [gate.get("advisory", False) for gate in gates].count(True) == 4
    assert not any(gate["blocking"] for gate in gates)
    junit = '[die-words].advisory" value="true"'
    for file, text in {"r.md": f"**{counts}**", "r.html": 'id="counts" class="good"', "junit.xml": junit}.items():
        assert text in (noisy.folder / file).read_text(encoding="utf-8"), file


def test_an_advisory_marker_in_python_leaves_the_tests_other_gates_and_its_body_to_judge(measured: Project) -> None:
    advised = "ppl_max('die', 'words', 59.5, advisory=True)"
    measured.write(
        test_gate=f"""
        import pytest

        @pytest.mark.{advised}
        def test_passes(): pass

        @pytest.mark.{advised}
        def test_body(): assert False

        @pytest.mark.ppl_max('sure', 'words', 60)
        @pytest.mark.{advised}
        def test_other(): pass

        @pytest.mark.xfail(strict=True)
        @pytest.mark.{advised}
        def test_xfail(): assert False
        """
    )
    outcome = measured.run().expect(1, failed=2, passed=1, xfailed=1)
    outcome.says("5 gates: 1 fail, 4 advisory fail", "FAILED test_gate.py::test_body - assert False", "GateFailed")


WITHIN = """
gates:
  - no_regression: {metric: ppl, model: sure, dataset: words, within: 10%, against: die}
  - no_regression: {metric: ppl, model: die, dataset: words, within: 10%, against: sure}
  - no_regression: {metric: ppl, model: die, dataset: words, tolerance: 10%, against: sure}
  - no_regression: {metric: ppl, model: die, dataset: words, within: 60%, against: warm}
  - no_regression: {metric: ppl, model: die, dataset: words, within: 7%, against: warm}
"""


def test_a_gain_beyond_within_fails_as_a_loss_does(noisy: Project) -> None:
    noisy.write(lmgate_yaml=noisy.settings + WITHIN)
    done = noisy.run("--lmgate-report=html:page.html", "--lmgate-report=json:report.json").expect(1)
    done.says("worse than", "better than", "FAIL at a tolerance of ±10%", "set another within in", "±60%", "±7%")
    assert done.out.count("parts of the text that cost most") == 1, "of the loss alone"
    gates = noisy.report()["gates"]
    assert [gate["verdict"] for gate in gates] == ["fail", "fail", "pass", "pass", "inconclusive"]
    assert [gate["comparison"]["tolerance"]["two_sided"] for gate in gates] == [True, True, False, True, True]
    assert 'class="beyond" d="M0 4H' in (noisy.folder / "page.html").read_text(encoding="utf-8")


def test_a_value_pinned_by_the_baseline_fails_if_it_gets_better(noisy: Project) -> None:
    gate = "no_regression: {metric: ppl, model: sure, dataset: words, within: 5%}"
    noisy.add_gates(gate).run("--lmgate-update").expect(0, passed=1)
    noisy.run().expect(0, passed=1).says("±5%")
    noisy.change("/sure}", "/die}").run().expect(1, failed=1).says("better than", "of the baseline of", "FAIL")
