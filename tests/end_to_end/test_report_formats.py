"""The reports that people read, from real pytest processes: Markdown, annotations, metrics and the page."""

from __future__ import annotations

from tests.end_to_end.projects import BROKEN_GATE, GATE, Project


def test_markdown_replaces_its_file_and_a_section_is_added_to_it(measured: Project) -> None:
    measured.write(test_gate=BROKEN_GATE)
    (measured.folder / "report.md").write_text("old")
    summary = measured.folder / "summary.md"
    summary.write_text("what others wrote")
    measured.run(
        "--lmgate-report=markdown:report.md",
        f"--lmgate-report=markdown-append:{summary}",
        "--lmgate-report=json:report.json",
    ).expect(1, failed=1)
    report = (measured.folder / "report.md").read_text(encoding="utf-8")
    assert report.startswith("**1 gate: 1 fail**\n")
    assert "`ppl_max[die-words]` | 60 [60, 60] | 59.5 |" in report
    assert "is above the limit 59.5" in report
    assert summary.read_text(encoding="utf-8") == f"what others wrote\n## lmgate\n\n{report}"
    assert measured.report()["gates"][0]["verdict"] == "fail"


def test_a_report_for_stdout_comes_after_everything_else_also_with_workers_and_without_a_summary(
    measured: Project,
) -> None:
    measured.write(test_gate=GATE)
    for arguments in ((), ("-n", "2"), ("--no-summary",), ("-p", "no:terminal"), ("-s", "-q", "-q")):
        done = measured.run("--lmgate-report", "markdown:-", *arguments).expect(0)
        assert "\n**1 gate: 1 pass**\n\n| verdict |" in f"\n{done.out}", arguments
        assert done.out.endswith("cached |\n"), arguments
    assert not (measured.folder / "-").exists()


def test_the_step_summary_may_stand_in_the_ini_file(measured: Project) -> None:
    ini = "[pytest]\nlmgate_report = markdown-append:${GITHUB_STEP_SUMMARY}\n"
    measured.write(test_gate=GATE, pytest_ini=ini)
    summary = measured.folder / "summary.md"
    measured.run(env={"GITHUB_STEP_SUMMARY": str(summary)}).expect(0)
    assert "## lmgate" in summary.read_text(encoding="utf-8")
    done = measured.run("-n", "2").expect(4)
    done.says("markdown-append:${GITHUB_STEP_SUMMARY}: the environment variable GITHUB_STEP_SUMMARY is not set")


def test_an_unknown_format_is_a_usage_error_that_names_the_nearest(measured: Project) -> None:
    measured.write(test_gate=GATE)
    done = measured.run("--lmgate-report", "markdwon:report.md").expect(4)
    done.says(
        "expected TYPE:DEST with TYPE one of json, markdown", "(did you mean 'markdown'?); got 'markdwon:report.md'"
    )


def test_a_report_that_cannot_be_written_fails_the_session_and_leaves_the_others(measured: Project) -> None:
    measured.write(test_gate=GATE)
    (measured.folder / "file").write_text("")
    reports = [f"--lmgate-report={each}" for each in ("markdown:file/x.md", "markdown-append:.", "markdown:good.md")]
    done = measured.run(*reports).expect(1, passed=1)
    done.says("markdown:file/x.md: cannot be written", "markdown-append:.: cannot be written", "1 gate: 1 pass")
    assert (measured.folder / "good.md").exists()


ANNOTATED = '''
    import pytest

    pytestmark = pytest.mark.bpb_max("sure", "words", 0.1)

    @pytest.mark.parametrize("x", [1])
    @pytest.mark.ppl_max("die", "words", 59.5)
    @pytest.mark.ppl_max(
        "sure",
        "words",
        59.5,
    )
    def test_gate(x): pass

    class TestClass:
        @pytest.mark.ppl_max("die", "words", 60.5)
        @pytest.mark.ppl_max("die", "words", 58.5)
        async def test_method(self): pass

    @pytest.mark.xfail
    @pytest.mark.ppl_max("die", "words", 57.5)
    def test_known(): pass
'''  # fmt: skip


def test_annotations_stand_on_the_lines_of_markers_and_of_gates_in_yaml(measured: Project) -> None:
    file = measured.folder / "lmgate.yaml"
    text = file.read_text(encoding="utf-8")
    file.write_text(f"{text}gates:\n  - ppl_max: {{model: die, dataset: words, limit: 59.5}}\n", encoding="utf-8")
    measured.write(test_gate=ANNOTATED)
    for arguments in ((), ("-n", "2")):
        done = measured.run("--lmgate-report=github", *arguments, env={"GITHUB_WORKSPACE": str(measured.folder.parent)})
        commands = [line for line in done.expect(1).out.splitlines() if line.startswith("::")]
        here = measured.folder.name
        yaml = text.count("\n") + 2
        assert sorted(command.partition(",title=")[0] for command in commands) == sorted(
            f"::error file={here}/{file},line={line}"
            for file, line in [
                ("lmgate.yaml", yaml), ("test_gate.py", 5), ("test_gate.py", 6), ("test_gate.py", 7),
                ("test_gate.py", 15), ("test_gate.py", 16),
            ]
        )  # fmt: skip
        assert done.out.rstrip().endswith(commands[-1])
