"""The reports that people read, from real pytest processes: Markdown, annotations, metrics and the page."""

import html
import json
import re
import shlex

import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families

from tests.end_to_end.projects import GATE, Project
from tests.end_to_end.test_history import git
from tests.report.test_result import check


def test_all_formats_of_a_run_tell_the_same_verdicts_and_numbers(noisy: Project) -> None:
    noisy.write(
        test_gate="""
            import pytest

            @pytest.mark.ppl_max("die", "words", 60.5)
            @pytest.mark.bpb_max("warm", "words", 0.5)
            @pytest.mark.ppl_max("./no_such_folder", "words", 60.5)
            @pytest.mark.ppl_max("warm", "words", 64, confidence=0.95)
            @pytest.mark.no_regression("ppl", "warm", "words", "1%", against="die")
            def test_gate(): pass
        """
    )
    formats = ("json:r.json", "markdown:r.md", "openmetrics:r.txt", "html:r.html", "github:r.log")
    noisy.run(*(f"--lmgate-report={each}" for each in formats)).expect(1)
    found = check(json.dumps(noisy.report("r.json")))
    assert {gate["test"] for gate in found["gates"]} == {"test_gate.py::test_gate"}
    gates = {gate["id"].rpartition("::")[2]: gate for gate in found["gates"]}
    error = next(gate for gate in gates.values() if gate["verdict"] == "error")
    assert error["value"] is error["stderr"] is error["interval"] is error["n"] is None
    assert {gate["verdict"] for gate in gates.values()} == {"pass", "fail", "error", "inconclusive"}
    lines, page, metrics, log = ((noisy.folder / f"r.{end}").read_text("utf-8") for end in ("md", "html", "txt", "log"))
    markdown = {cells[2].strip("` "): cells for line in lines.split("\n") if len(cells := line.split("|")) == 9}
    rows = [
        [" ".join(html.unescape(re.sub("<.*?>", "", cell)).split()) for cell in re.findall("(?s)<span.*?</span>", row)]
        for row in re.findall("(?s)<summary>(.*?)</summary>", page)
    ]
    series = {
        (each.labels["gate"].rpartition("::")[2], family.name): each.labels.get("lmgate_verdict", each.value)
        for family in text_string_to_metric_families(metrics)
        for each in family.samples
        if "gate" in each.labels and (each.value or "lmgate_verdict" not in each.labels)
    }
    assert markdown.keys() - {"gate", "---"} == {row[1] for row in rows} == gates.keys()
    for verdict, name, value, change, tolerance, *_ in rows:
        gate, cells = gates[name], markdown[name]
        assert [verdict.rstrip("!"), cells[1].split()[1].rstrip("!")] == [gate["verdict"].upper()] * 2
        assert series[name, "lmgate_verdict"] == gate["verdict"]
        assert (f"title={verdict.rstrip('!')} {name.replace(':', '%3A')}::" in log) == (gate["verdict"] != "pass")
        if gate["value"] is None:
            continue
        told = [float(each) for each in re.findall(r"[\d.]+", cells[3])]
        assert told == pytest.approx([gate["value"], *gate["interval"]], rel=1e-5)
        exact = [series[name, f"lmgate_{key}"] for key in ("value", "lower", "upper", "limit")]
        assert exact == [gate["value"], *gate["interval"], gate["limit"]]
        assert float(value) == pytest.approx(gate["value"], rel=5e-3)
        if compared := gate.get("comparison"):
            assert series[name, "lmgate_degradation"] == compared["degradation"]
            assert float(change.rstrip("%")) == pytest.approx(100 * compared["degradation"], rel=0.05)
            assert re.fullmatch(rf" {re.escape(change)} \[.*\], tolerance {re.escape(tolerance)} ", cells[5])


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


def test_a_report_says_which_run_it_is_of_without_passwords(measured: Project) -> None:
    workers = ("-n", "2")
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
    given = (secrets[0].replace("token=secret", "***"), secrets[1].replace("me:secret", "***"), "--hub-token=***")
    assert run["command"].endswith(shlex.join([*given, "--api-key", "***", "-k", "gate", *workers]))
    for name in ("r.html", "r.md"):
        shown = html.unescape((measured.folder / name).read_text(encoding="utf-8"))
        for text in (f"{commit} on smaller", run["project"], "UTC", "cpu (", "pytest-lmgate 0", run["command"]):
            assert text in shown, (name, text)
        assert "secret" not in shown
