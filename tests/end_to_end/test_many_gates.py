"""``marks:``, ``advisory:``, ``within:`` and what others check by scripts of their own, in real processes."""

from pathlib import Path

import pytest

from tests.end_to_end.projects import Project, scale_head
from tests.end_to_end.writers import CHAINS, ROWS, write_rows


def with_gates(project: Project, text: str) -> Project:
    """Replace the gates of lmgate.yaml."""
    begin = project.settings.partition("gates:")[0]
    (project.folder / "lmgate.yaml").write_text(begin + text.lstrip("\n"), encoding="utf-8")
    return project


MARKED = """
defaults: {dataset: words, model: die}
gates:
  - ppl_max: {limit: 60.5, marks: [nightly]}
  - ppl_max: {model: sure, limit: 60.5, marks: [nightly, slow], advisory: true}
  - ppl_max: {limit: 59.5, marks: xfail}
"""


def test_marks_are_pytests_own(measured: Project) -> None:
    with_gates(measured, MARKED)
    strict = ("--strict-markers", "-W", "error")
    measured.run(*strict, "-n", "2").expect(0, passed=2, xfailed=1)
    measured.run("-m", "nightly and not slow", *strict).expect(0, passed=1)
    measured.run("-m", "slow", *strict).expect(0, passed=1).says("FAIL (advisory)")


ADVISORY = """
defaults: {dataset: words, advisory: true}
gates:
  - ppl_max: {model: die, limit: 59.5}
  - ppl_max: {model: die, limit: 60.5}
  - ppl_max: {model: die, limit: 60.5, stride: 32, advisory: false}
  - no_regression: {metric: ppl, model: warm, tolerance: 6%, against: die}
  - no_regression: {metric: ppl, model: warm, tolerance: 0.01%, against: die}
"""


@pytest.mark.parametrize("options", [("--lmgate-strict",), ("-n", "2")])
def test_an_advisory_gate_is_shown_in_every_report_and_fails_nothing(noisy: Project, options: tuple[str, ...]) -> None:
    with_gates(noisy, ADVISORY)
    reports = [f"--lmgate-report={each}" for each in ("json:report.json", "markdown:r.md", "html:r.html", "github")]
    outcome = noisy.run(*options, *reports, "--junitxml", "junit.xml").expect(0, passed=5)
    counts = "5 gates: 2 pass, 1 advisory fail, 2 advisory inconclusive"
    outcome.says(counts, "FAIL (advisory)", "INCONCLUSIVE (advisory)", "is above the limit 59.5 (advisory)")
    outcome.is_silent_on("INCONCLUSIVE!", "GateFailed", "::error")
    assert outcome.out.count("::warning") == 3
    gates = noisy.report()["gates"]
    assert [gate["verdict"] for gate in gates].count("fail") == 1
    assert [gate.get("advisory", False) for gate in gates].count(True) == 4
    assert not any(gate["blocking"] for gate in gates)
    shown = {
        "r.md": f"**{counts}**",
        "r.html": 'id="counts" class="good"',
        "junit.xml": '[die-words].advisory" value="true"',
    }
    for file, text in shown.items():
        assert text in (noisy.folder / file).read_text(encoding="utf-8"), file


def test_an_advisory_gate_that_cannot_be_measured_fails_the_build(measured: Project) -> None:
    with_gates(measured, "gates:\n  - ppl_max: {model: nan, dataset: words, limit: 60, advisory: true}\n")
    measured.with_torch.run().expect(1, error=1).says("ERROR ", "1 gate: 1 error").is_silent_on("(advisory)")


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
    outcome.says("5 gates: 1 fail, 4 advisory fail", "FAILED test_gate.py::test_body - assert False")
    assert outcome.out.count("GateFailed") >= 1


WITHIN = """
gates:
  - no_regression: {metric: ppl, model: sure, dataset: words, within: 10%, against: die}
  - no_regression: {metric: ppl, model: die, dataset: words, within: 10%, against: sure}
  - no_regression: {metric: ppl, model: die, dataset: words, tolerance: 10%, against: sure}
  - no_regression: {metric: ppl, model: die, dataset: words, within: 60%, against: warm}
  - no_regression: {metric: ppl, model: die, dataset: words, within: 7%, against: warm}
"""


def test_a_gain_beyond_within_fails_as_a_loss_does(noisy: Project) -> None:
    done = with_gates(noisy, WITHIN).run("--lmgate-report=html:page.html", "--lmgate-report=json:report.json").expect(1)
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


# What repositories of quantizers, engines and kernels check by scripts of their own, in a few lines.
ON_TASKS = """
    defaults: {device: cpu, model: packed, against: native, reference: native, tolerance: 5%}
    models: {native: {path: REFERENCE}, packed: {path: CANDIDATE}}
    datasets:
      quiz: {path: quiz.jsonl, question: q, choices: options, answer: answer}
      math: {path: chains.jsonl, prompt: '{start}', references: rest, extract: [{regex: {pattern: '(.+)'}}]}
      text: {path: text.txt, lines: true}
    gates:
      - no_regression: {metric: [accuracy, exact], dataset: {accuracy: quiz, exact: math},
          variant: {accuracy: acc_norm, exact: null}}
      - exact_min: {dataset: math, limit: 0.94, confidence: 0.95, against: null, reference: null, tolerance: null}
      - invalid_max: {dataset: math, limit: 0.05}
      - self_kl_max: {dataset: math, limit: 0.01, max_new_tokens: 128}
      - kl_max: {dataset: text, limit: 0.10}
"""


def test_what_others_check_is_a_few_lines_green_and_red_for_a_damaged_candidate(tmp_path: Path, writers: Path) -> None:
    project = Project(tmp_path)
    # Weights a little off, as a sound quantizer leaves them.
    rounded = project.model("rounded", writers / "counter")
    scale_head(rounded, 1.001)
    write_rows(project, "chains", [*ROWS] * 8)
    quiz = [(chain[at], chain[at + 1], chain[at - 1]) for chain in CHAINS for at in range(1, len(chain) - 1)]
    write_rows(project, "quiz", [{"q": q, "options": [right, wrong], "answer": 0} for q, right, wrong in quiz] * 8)
    project.write(text_txt=f"{' '.join(CHAINS[0])}\n" * 16, pytest_ini="[pytest]\n")
    report, text = ("--lmgate-report", "json:report.json"), ON_TASKS.replace("REFERENCE", f"{writers}/counter")
    project.write(lmgate_yaml=text.replace("CANDIDATE", str(rounded))).run(*report).expect(0, passed=6)
    ids = {gate["id"] for gate in project.report()["gates"]}
    project.write(lmgate_yaml=text.replace("CANDIDATE", f"{writers}/backward")).run(*report).expect(1)
    verdicts = {gate["id"]: gate["verdict"] for gate in project.report()["gates"]}
    assert verdicts.keys() == ids
    assert "error" not in verdicts.values()
    assert list(verdicts.values()).count("fail") >= 3
