"""The reports that people read, from real pytest processes: Markdown, annotations, metrics and the page."""

import html
import shlex

from tests.end_to_end.projects import GATE, Project
from tests.end_to_end.test_history import git

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
