"""``lmgate bisect`` in a repository of dice: the model's file says how many sides, so a commit is measured at once."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest
from typer.testing import CliRunner

from pytest_lmgate.cli.app import app
from pytest_lmgate.cli.runs.bisection import _for_pytest, _is_given
from pytest_lmgate.errors import ConfigError
from tests.end_to_end.projects import environment
from tests.warm import warm_python

FAIR_DIE = Path(__file__).parents[2] / "backends" / "fair_die.py"
PLAIN = "-p no:hypothesispytest -p no:anyio -p no:pytest-testmon -p no:xdist"  # which take long to import
GATE = "lmgate.yaml::ppl_max[die-text]"
YAML = """
models:
  die: {path: model.die}
datasets:
  text: {path: text.txt}
gates:
  - ppl_max: {model: die, dataset: text, limit: 6.5}
"""


def _heed_signals() -> None:
    """Undo what a process in the background, as CI may start this one, has its children ignore."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    for number in (signal.SIGHUP, signal.SIGQUIT):
        signal.signal(number, signal.SIG_DFL)


class Repo:
    """A repository, with a commit for each count of sides; None is a model that cannot be read."""

    def __init__(self, folder: Path, sides: tuple[int | None, ...], below: str = "") -> None:
        self.top, self.here = folder, folder / below
        self.here.mkdir(parents=True, exist_ok=True)
        self.git("init", "-q", "-b", "main")
        (self.here / "pytest.ini").write_text("[pytest]\n")
        (self.here / "conftest.py").write_text(FAIR_DIE.read_text())
        (self.here / "lmgate.yaml").write_text(YAML)
        (self.here / ".gitignore").write_text("__pycache__\n.pytest_cache\n.lmgate_cache\n")
        (self.here / "text.txt").write_text("abcd " * 100)
        self.commits = []
        for number, count in enumerate(sides):
            text = "broken" if count is None else json.dumps({"sides": count, "commit": number})
            (self.here / "model.die").write_text(text)
            self.git("add", ".")
            self.git("commit", "-qm", f"model {number}")
            self.commits.append(self.git("rev-parse", "HEAD"))

    def git(self, *arguments: str) -> str:
        who = ["-c", "user.name=Ada", "-c", "user.email=a@example.org"]
        done = subprocess.run(["git", *who, *arguments], cwd=self.top, check=True, capture_output=True, text=True)
        return done.stdout.strip()

    def start(self, *arguments: str, temporary: Path | None = None) -> subprocess.Popen[str]:
        kept = {key: value for key, value in os.environ.items() if not key.startswith(("PYTEST_", "LMGATE_", "CI"))}
        # A signal ends what stands for a warm Python a moment before its fork.
        python = sys.executable if temporary else warm_python(environment(), "pytest")
        temporary = {} if temporary is None else {"TMPDIR": str(temporary)}
        return subprocess.Popen(
            [python, "-m", "pytest_lmgate.cli", "bisect", *arguments],
            cwd=self.here,
            env={**kept, "PYTHONDONTWRITEBYTECODE": "1", "OMP_NUM_THREADS": "1", "PYTEST_ADDOPTS": PLAIN, **temporary},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            preexec_fn=_heed_signals,
        )

    def run(self, *arguments: str) -> tuple[int, str, str]:
        process = self.start(*arguments)
        out, err = process.communicate(timeout=300)
        return process.returncode, out, err

    @property
    def state(self) -> tuple[str, ...]:
        """What a bisection must leave as it is."""
        return (
            self.git("status", "-sb"),
            self.git("rev-parse", "HEAD"),
            self.git("for-each-ref"),
            self.git("worktree", "list"),
        )


def test_the_first_bad_commit_is_found_past_a_broken_one_and_the_checkout_stays_as_it_is(tmp_path: Path) -> None:
    repo = Repo(tmp_path, (6, 6, 8, None, 8, 8), below="quality")
    (repo.here / "model.die").write_text("being edited")
    before = repo.state
    code, out, err = repo.run("main~5", "main", "--json", "--", GATE)
    assert code == 0, err
    found = json.loads(out)
    assert found["first_bad"]["sha"] == repo.commits[2]
    assert (found["first_bad"]["author"], found["first_bad"]["subject"]) == ("Ada", "model 2")
    tried = {each["subject"]: each for each in found["tried"]}
    assert {"model 0", "model 1", "model 2", "model 5"} <= tried.keys()
    assert [tried[name]["outcome"] for name in ("model 0", "model 1", "model 2", "model 5")] == [
        "good",
        "good",
        "bad",
        "bad",
    ]
    assert [each["subject"] for each in found["tried"]] == sorted(tried)
    (gate,) = tried["model 2"]["gates"]
    assert gate["id"] == GATE
    assert gate["value"] == pytest.approx(8)
    assert f"testing {repo.commits[5][:12]} model 5" in err
    assert repo.state == before
    assert (repo.here / "model.die").read_text() == "being edited"
    assert list((repo.here / ".lmgate_cache").glob("token-nll/*/*.lmgate"))  # shared with the user's own runs


def test_where_skipped_commits_hide_the_first_bad_one_all_candidates_are_named(tmp_path: Path) -> None:
    repo = Repo(tmp_path, (6, None, 8))
    code, out, err = repo.run("HEAD~2", "HEAD", "--", GATE)
    assert code == 3, err
    assert "the first bad commit is one of" in out
    assert {f"{sha[:12]} model {number}" for number, sha in enumerate(repo.commits[1:], 1)} == {
        line.strip() for line in out.splitlines()[1:3]
    }
    assert "skip (" not in err
    assert "lmgate.yaml::ppl_max[die-text]: error" in err
    assert f"  skip  {repo.commits[1][:12]}          -  ERROR         model 1" in out


def test_a_commit_at_which_pytest_dies_without_a_report_is_skipped_and_never_good(tmp_path: Path) -> None:
    repo = Repo(tmp_path, (6,))
    (repo.top / "conftest.py").write_text("import os\nos._exit(0)\n")
    repo.git("commit", "-qam", "dies")
    (repo.top / "conftest.py").write_text(FAIR_DIE.read_text())
    (repo.top / "model.die").write_text('{"sides": 8}')
    repo.git("commit", "-qam", "worse")
    code, out, err = repo.run("HEAD~2", "HEAD", "--", GATE)
    assert code == 3, err
    assert "the first bad commit is one of" in out
    assert "skip: pytest ended with exit code 0: it wrote nothing" in err


def test_a_good_commit_that_fails_and_a_bad_one_that_passes_are_refused(tmp_path: Path) -> None:
    repo = Repo(tmp_path, (8, 6, 8))
    before = repo.state
    for ends, words in (
        (("HEAD~2", "HEAD"), f"GOOD {repo.commits[0][:12]} model 0: expected gates that pass, got bad (FAIL 8)"),
        (("HEAD~2", "HEAD~1"), f"BAD {repo.commits[1][:12]} model 1: expected a gate that fails, got good (PASS 6)"),
        (("HEAD", "HEAD~2"), "expected a bad commit that comes after the good one"),
        (("HEAD", "nowhere"), "nowhere: git rev-parse failed"),
    ):
        code, out, err = repo.run(*ends, "--", GATE)
        assert (code, out) == (3, "")
        assert words in err
    (repo.top / "inner").mkdir()
    done = subprocess.run(
        [warm_python(environment(), "pytest"), "-m", "pytest_lmgate.cli", "bisect", "HEAD~1", "HEAD", "--", GATE],
        cwd=repo.top / "inner",
        capture_output=True,
        text=True,
        check=False,
    )
    assert "expected a gate that fails, got skip: the commit does not have the current folder" in done.stderr
    code, _, err = repo.run("HEAD~1", "HEAD", "--", "lmgate.yaml::ppl_max[dye-text]")
    assert code == 3
    assert "expected a gate that fails, got skip: pytest ended with exit code 4: ERROR" in err
    assert repo.state == before


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT])
def test_an_interrupted_bisection_leaves_nothing(tmp_path: Path, number: int) -> None:
    repo, temporary = Repo(tmp_path / "repo", (6, 8)), tmp_path / "tmp"
    temporary.mkdir()
    (repo.top / "conftest.py").write_text(
        f"{FAIR_DIE.read_text()}\nimport time\nopen({str(tmp_path / 'on')!r}, 'w')\ntime.sleep(600)\n"
    )
    repo.git("commit", "-qam", "slow")
    before = repo.state
    process = repo.start("HEAD~1", "HEAD", "--", GATE, temporary=temporary)
    end = time.monotonic() + 60
    while not (tmp_path / "on").exists():
        assert time.monotonic() < end
        time.sleep(0.05)
    assert list(temporary.glob("lmgate-bisect-*"))
    process.send_signal(number)
    if number == signal.SIGHUP:  # the terminal sends one, and its shell another
        time.sleep(0.1)
        process.send_signal(number)
    process.communicate(timeout=300)
    assert process.returncode not in (0, None)
    assert repo.state == before
    assert not list(temporary.glob("lmgate-bisect-*"))


def test_where_no_working_tree_can_be_added_nothing_is_left(tmp_path: Path) -> None:
    repo, temporary = Repo(tmp_path / "repo", (6, 8)), tmp_path / "tmp"
    temporary.mkdir()
    (repo.top / ".git" / "worktrees").write_text("a file in the place of a folder")
    process = repo.start("HEAD~1", "HEAD", "--", GATE, temporary=temporary)
    _, err = process.communicate(timeout=300)
    assert process.returncode == 3
    assert "git worktree failed" in err
    assert not list(temporary.glob("lmgate-bisect-*"))


def test_without_git_it_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATH", str(tmp_path))
    failed = CliRunner().invoke(app, ["bisect", "a", "b", "--", GATE]).exception
    assert isinstance(failed, ConfigError)
    assert "git could not be run: No such file or directory; lmgate bisect needs it" in str(failed)


def test_what_is_not_in_the_repository_can_be_linked(tmp_path: Path) -> None:
    repo = Repo(tmp_path, (6, 8))
    repo.git("rm", "-q", "--cached", "text.txt")
    repo.git("commit", "-qm", "the text is kept elsewhere")
    (repo.top / "model.die").write_text('{"sides": 9}')
    repo.git("commit", "-qam", "worse")
    code, out, err = repo.run("HEAD~3", "HEAD", "--link", "text.txt", "--", GATE)
    assert code == 0, err
    assert f"first bad commit: {repo.commits[1]}" in out
    assert (repo.top / "text.txt").is_file()
    code, _, err = repo.run("HEAD~3", "HEAD", "--link", "gone.txt", "--", GATE)
    assert (code, "--link gone.txt: expected a file or folder in" in err) == (3, True)


def test_a_temporary_folder_is_not_left_where_git_fails(tmp_path: Path) -> None:
    done = subprocess.run(
        [warm_python(environment(), "pytest"), "-m", "pytest_lmgate.cli", "bisect", "a", "b", "--", GATE],
        cwd=tmp_path,
        env={**os.environ, "GIT_CEILING_DIRECTORIES": tempfile.gettempdir()},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 3
    assert "not a git repository" in done.stderr


@pytest.mark.parametrize(
    ("given", "test"),
    [
        ("lmgate.yaml::ppl_max[die-text]", "lmgate.yaml::ppl_max[die-text]"),
        ("a/test_q.py::test_x::ppl_max[die-text]", "a/test_q.py::test_x"),
        ("test_q.py::TestA::test_x[1-2]::no_regression:ppl[a-b#2]", "test_q.py::TestA::test_x[1-2]"),
        ("test_q.py::test_ppl_max", "test_q.py::test_ppl_max"),
        ("--lmgate-device=cuda", "--lmgate-device=cuda"),
        ("tests", "tests"),
    ],
)
def test_pytest_gets_the_test_of_a_gate(given: str, test: str) -> None:
    assert _for_pytest(given) == test


def test_only_the_gates_that_were_given_are_judged() -> None:
    one, other = "quality/test_q.py::test_x::ppl_max[a-b]", "quality/test_q.py::test_x::bpb_max[a-b]"
    for given, both in (
        (["test_q.py::test_x::ppl_max[a-b]"], (True, False)),
        (["quality/test_q.py::test_x"], (True, True)),
        (["test_q.py::test"], (False, False)),
        (["quality"], (True, True)),
        ([], (True, True)),
    ):
        assert (_is_given(one, given), _is_given(other, given)) == both
