"""The reports that people read, from real pytest processes: Markdown, annotations, metrics and the page."""

from __future__ import annotations

import html
import json
import re
import shlex
from pathlib import Path

import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families

from tests.end_to_end.dice import DiceProject
from tests.end_to_end.projects import BROKEN_GATE, GATE, Project
from tests.end_to_end.test_history import git
from tests.report.formats.test_schema import check
from tests.report.hostile import HOSTILE


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
    assert report.startswith("**1 gate: 1 fail**\n\nproject `")
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
        assert "\n**1 gate: 1 pass**\n\nproject `" in f"\n{done.out}", arguments
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

    @pytest.mark.ppl_max("die", "words", 56.5)
    class TestClass:
        @pytest.mark.skipif(False, reason="""slow: ppl_max
        class of models""")
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
    gates = "gates:\n  - ppl_max: {model: die, dataset: words, limit: 59.5}\n"
    prompt = "  unused:\n    path: words.txt\n    references: text\n    prompt: |\n      @ppl_max is no marker here\n"
    file.write_text(f"{gates}{text}{prompt}", encoding="utf-8")
    measured.write(test_gate=ANNOTATED)
    for arguments in ((), ("-n", "2")):
        done = measured.run("--lmgate-report=github", *arguments, env={"GITHUB_WORKSPACE": str(measured.folder.parent)})
        commands = [line for line in done.expect(1).out.splitlines() if line.startswith("::")]
        here = measured.folder.name
        assert sorted(command.partition(",title=")[0] for command in commands) == sorted(
            f"::error file={here}/{file},line={line}"
            for file, line in [
                ("lmgate.yaml", 2), ("test_gate.py", 5), ("test_gate.py", 6), ("test_gate.py", 7),
                ("test_gate.py", 16), ("test_gate.py", 16), ("test_gate.py", 19),
            ]
        )  # fmt: skip
        assert done.out.rstrip().endswith(commands[-1])


def test_a_marker_that_is_set_rather_than_written_stands_on_the_line_of_its_test(dice: DiceProject) -> None:
    dice.models(red={})
    dice.write(
        test_gate="""
            import pytest

            def test_gate(): pass

            test_gate.pytestmark = pytest.mark.ppl_max("red", "one", 5.99)
        """
    )
    dice.run("--lmgate-report=github").expect(1, failed=1).says("test_gate.py,line=3,")


def _texts_of_a_page(file: Path) -> dict[str, list[str]]:
    """The cells of each gate's row in the page: verdict, name, value, change, limit or tolerance, seconds."""
    text = file.read_text(encoding="utf-8")
    rows = re.findall(r"<summary>(.*?)</summary>", text, flags=re.DOTALL)
    plain = [
        [html.unescape(re.sub(r"<.*?>", "", cell)).split() for cell in re.findall(r"<span.*?</span>", row, re.DOTALL)]
        for row in rows
    ]
    return {" ".join(cells[1]): [" ".join(cell) for cell in cells] for cells in plain}


def test_all_formats_of_a_run_agree_to_the_digit(noisy: Project) -> None:
    noisy.write(
        test_gate="""
            import pytest

            @pytest.mark.ppl_max("die", "words", 60.5)
            def test_pass(): pass

            @pytest.mark.bpb_max("warm", "words", 0.5)
            def test_fail(): pass

            @pytest.mark.ppl_max("./no_such_folder", "words", 60.5)
            def test_error(): pass

            @pytest.mark.ppl_max("warm", "words", 64, confidence=0.95)
            def test_open(): pass

            @pytest.mark.no_regression("ppl", "warm", "words", "1%", against="die")
            def test_compared(): pass

            @pytest.mark.kl_max("warm", "die", "words", 1e-9)
            def test_divergent(): pass
        """
    )
    formats = ("json:r.json", "markdown:r.md", "openmetrics:r.txt", "html:r.html", "github:r.log")
    noisy.run(*(f"--lmgate-report={each}" for each in formats)).expect(1)
    report = noisy.report("r.json")
    check(json.dumps(report))
    gates = {gate["id"].rpartition("::")[2]: gate for gate in report["gates"]}
    assert {gate["verdict"] for gate in gates.values()} == {"pass", "fail", "error", "inconclusive"}
    assert any("details" in gate for gate in gates.values())

    lines = (noisy.folder / "r.md").read_text(encoding="utf-8").splitlines()
    markdown = {cells[2].strip("` "): cells[1:-1] for line in lines if len(cells := line.split("|")) == 9}
    page = _texts_of_a_page(noisy.folder / "r.html")
    log = (noisy.folder / "r.log").read_text(encoding="utf-8")
    series: dict[tuple[str, str], float] = {}
    for family in text_string_to_metric_families((noisy.folder / "r.txt").read_text(encoding="utf-8")):
        for sample in family.samples:
            if sample.labels.get("lmgate_verdict") is None or sample.value:
                key = sample.labels.get("gate", "").rpartition("::")[2]
                series[key, family.name] = sample.labels.get("lmgate_verdict", sample.value)

    assert markdown.keys() - {"gate", "---"} == page.keys() == gates.keys()
    for name, gate in gates.items():
        verdict = gate["verdict"]
        assert markdown[name][0].split()[1] == page[name][0]
        assert page[name][0].rstrip("!") == verdict.upper()
        assert series[name, "lmgate_verdict"] == verdict
        assert (f"title={verdict.upper()} {name.replace(':', '%3A')}::" in log) == (verdict != "pass")
        if gate["value"] is None:
            continue
        assert series[name, "lmgate_value"] == gate["value"]
        assert series[name, "lmgate_limit"] == gate["limit"]
        assert [series[name, "lmgate_lower"], series[name, "lmgate_upper"]] == gate["interval"]
        assert float(page[name][2]) == pytest.approx(gate["value"], rel=5e-3)
        for text, number in [
            (markdown[name][2].split()[0], gate["value"]),
            *zip(markdown[name][2].split("[")[1].strip()[:-1].split(", "), gate["interval"], strict=True),
        ]:
            assert float(text) == pytest.approx(number, rel=1e-5)
        if "comparison" in gate:
            found = gate["comparison"]
            assert series[name, "lmgate_reference"] == found["reference"]
            assert series[name, "lmgate_degradation"] == found["degradation"]
            assert markdown[name][4].strip().startswith(f"{page[name][3]} [")
            assert markdown[name][4].strip().endswith(f"], tolerance {page[name][4]}")
            assert page[name][4].startswith(found["tolerance"])
            assert float(page[name][3].rstrip("%")) == pytest.approx(100 * found["degradation"], rel=0.05)


@pytest.mark.parametrize("workers", [(), ("-n", "2")])
def test_a_report_says_which_run_it_is_of_without_passwords(measured: Project, workers: tuple[str, ...]) -> None:
    conftest = "def pytest_addoption(parser):\n    parser.addoption('--hub-token')\n    parser.addoption('--api-key')\n"
    measured.write(test_gate=GATE, conftest=conftest)
    (measured.folder / ".gitignore").write_text("*\n!test_gate.py\n")
    git(measured.folder, "init", "-q", "-b", "smaller")
    git(measured.folder, "add", ".")
    git(measured.folder, "commit", "-qm", "first")
    commit = git(measured.folder, "rev-parse", "--short=12", "HEAD").strip()
    formats = ("json:r.json", "html:r.html", "markdown:r.md")
    secrets = (
        f"--lmgate-remote-cache=file://{measured.folder}/kept?token=secret",
        "--override-ini=x=https://me:secret@example.org/x",
    )
    more = ("--hub-token=secret", "--api-key", "secret", "-k", "gate")
    done = measured.run(*(f"--lmgate-report={each}" for each in formats), *secrets, *more, *workers)
    done.expect(0, passed=1)
    run = measured.report("r.json")["run"]
    assert (run["project"], run["commit"], run["branch"]) == (measured.folder.name, commit, "smaller")
    assert run["date"][:2] == "20"
    assert run["device"] == "cpu"
    assert run["command"].endswith(
        shlex.join(
            [
                secrets[0].replace("token=secret", "***"),
                secrets[1].replace("me:secret", "***"),
                "--hub-token=***",
                "--api-key",
                "***",
                "-k",
                "gate",
                *workers,
            ]
        )
    )
    for name in ("r.html", "r.md"):
        shown = html.unescape((measured.folder / name).read_text(encoding="utf-8"))
        for text in (f"{commit} on smaller", run["project"], "UTC", "cpu (", "pytest-lmgate 0", run["command"]):
            assert text in shown, (name, text)
        assert "secret" not in shown


def test_hostile_names_and_outputs_break_no_report(measured: Project) -> None:
    texts = {name: text for name, text in HOSTILE.items() if name not in ("empty", "blank")}
    measured.write(
        hostile=f"TEXTS = {list(texts.values())!r}\n",
        test_gate="""
            import pathlib, sys
            import pytest
            import pytest_lmgate as lmgate

            sys.path.insert(0, str(pathlib.Path(__file__).parent))
            from hostile import TEXTS

            @pytest.fixture
            def system():
                return lambda prompts: [TEXTS[int(prompt)] for prompt in prompts]

            @pytest.fixture
            def rows():
                return [{"source": str(at), "references": text + "."} for at, text in enumerate(TEXTS)]

            @pytest.mark.parametrize("text", [text[:1000] for text in TEXTS])
            @pytest.mark.exact_min(lmgate.fixture("system"), lmgate.fixture("rows"), 0.5)
            def test_gate(text): pass

            @pytest.mark.ppl_max(lmgate.fixture("broken"), "words", 60)
            def test_broken(): pass

            @pytest.fixture
            def broken():
                raise OSError("\\n".join(TEXTS))
        """,
    )
    formats = ("json:r.json", "markdown:r.md", "openmetrics:r.txt", "html:r.html", "github:r.log", "github:-")
    done = measured.run("--tb=no", "-q", *(f"--lmgate-report={each}" for each in formats))
    done.expect(1, failed=len(texts), error=1)
    report = measured.report("r.json")
    check(json.dumps(report))
    assert {len(gate.get("worst", ())) for gate in report["gates"]} == {0, 5}
    page = (measured.folder / "r.html").read_text(encoding="utf-8")
    assert len(_texts_of_a_page(measured.folder / "r.html")) == len(report["gates"]) == page.count("<details ")
    assert page.count("<script") == 1
    assert "<img" not in page
    markdown = (measured.folder / "r.md").read_text(encoding="utf-8")
    assert len([line for line in markdown.splitlines() if line.startswith("| ❌")]) == len(report["gates"])
    commands = (measured.folder / "r.log").read_text(encoding="utf-8")
    assert done.out.endswith(commands)
    assert all(line.startswith("::error file=") for line in commands.splitlines())
    assert len([line for line in done.text.splitlines() if line.startswith("::")]) == len(report["gates"])
    families = list(text_string_to_metric_families((measured.folder / "r.txt").read_text(encoding="utf-8")))
    assert sum(len(family.samples) for family in families if family.name == "lmgate_verdict") == 5 * len(
        report["gates"]
    )


def test_a_session_that_writes_baselines_has_all_reports(measured: Project) -> None:
    measured.write(
        test_gate="import pytest\n@pytest.mark.no_regression('ppl', 'die', 'words', '1%')\ndef test_gate(): pass"
    )
    formats = ("json:r.json", "markdown:r.md", "openmetrics:r.txt", "html:r.html", "github:r.log")
    measured.run("--lmgate-update", *(f"--lmgate-report={each}" for each in formats)).expect(0)
    check(json.dumps(measured.report("r.json")))
    assert "new baseline" in (measured.folder / "r.md").read_text(encoding="utf-8")
    assert "the baseline is measured anew" in (measured.folder / "r.html").read_text(encoding="utf-8")
    assert (measured.folder / "r.log").read_text() == ""


def test_a_session_imports_no_more_than_its_reports_need(measured: Project) -> None:
    conftest = """
        import sys

        def pytest_unconfigure(config):
            formats = ("jinja2", "pytest_lmgate.report.html.page", "pytest_lmgate.report.formats.markdown", "torch")
            print("imported:", *[name for name in formats if name in sys.modules])
    """
    measured.write(test_gate=GATE, conftest=conftest)
    assert "imported:\n" in measured.run("-p", "no:xdist", fresh=True).expect(0).out
    done = measured.run("-p", "no:xdist", "--lmgate-report=markdown:r.md", "--lmgate-report=html:r.html", fresh=True)
    assert (
        "imported: jinja2 pytest_lmgate.report.html.page pytest_lmgate.report.formats.markdown\n" in done.expect(0).out
    )
