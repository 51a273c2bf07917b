"""``lmgate bisect`` in a repository of dice: the model's file says how many sides, so a commit is measured at once."""

import json
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.end_to_end.projects import LEFT_OUT, environment, git, wait_for
from tests.warm import warm_python

FAIR_DIE = Path(__file__).parents[2] / "engines" / "fair_die.py"
GATE = "lmgate.yaml::ppl_max[die-text]"
YAML = """
models: {die: {path: model.die}}
datasets: {text: {path: text.txt}}
gates: [{ppl_max: {model: die, dataset: text, limit: 6.5}}]
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
        self.git("init", "-q")
        files = {
            "pytest.ini": "[pytest]\n", "conftest.py": FAIR_DIE.read_text(), "lmgate.yaml": YAML,
            ".gitignore": "__pycache__\n.pytest_cache\n.lmgate_cache\n", "text.txt": "abcd " * 100,
        }  # fmt: skip
        self.commits = []
        for number, count in enumerate(sides):
            text = "broken" if count is None else json.dumps({"sides": count, "commit": number})
            self.commits.append(self.commit(f"model {number}", {**files, "model.die": text}))

    def commit(self, message: str, files: dict[str, str]) -> str:
        for name, text in files.items():
            (self.here / name).write_text(text)
        self.git("add", *(str(self.here / name) for name in files))
        self.git("commit", "-qm", message)
        return self.git("rev-parse", "HEAD")

    def git(self, *arguments: str) -> str:
        return git(self.top, *arguments)

    def start(self, *arguments: str, temporary: Path | None = None) -> subprocess.Popen[str]:
        # A signal ends what stands for a warm Python a moment before its fork.
        python = sys.executable if temporary else warm_python(environment(), "pytest")
        temporary = {} if temporary is None else {"TMPDIR": str(temporary)}
        return subprocess.Popen(
            [python, "-m", "pytest_lmgate.cli", "bisect", *arguments], cwd=self.here, preexec_fn=_heed_signals,
            env={**environment(), "PYTEST_ADDOPTS": f"{LEFT_OUT} -pno:xdist", **temporary}, stdout=subprocess.PIPE,
            stderr=subprocess.PIPE, text=True,
        )  # fmt: skip

    def run(self, *arguments: str) -> tuple[int, str, str]:
        process = self.start(*arguments)
        out, err = process.communicate(timeout=300)
        return process.returncode, out, err

    @property
    def state(self) -> tuple[str, ...]:
        """What a bisection must leave as it is."""
        commands = "status -sb", "rev-parse HEAD", "for-each-ref", "worktree list"
        return tuple(self.git(*command.split()) for command in commands)


def test_the_first_bad_commit_is_found_past_a_broken_one_and_the_checkout_stays_as_it_is(tmp_path: Path) -> None:
    repo = Repo(tmp_path, (6, 6, 8, None, 8, 8), below="quality")
    (repo.here / "model.die").write_text("being edited")
    repo.git("tag", "text.txt", "main~5")  # a file of this name is there, too
    before = repo.state
    code, out, err = repo.run("text.txt", "main", "--", GATE)
    assert code == 0, out + err
    assert f"{repo.commits[2]} is the first bad commit" in out
    assert "Author: Ada" in out
    tested = re.findall(r"^testing \w+ (.*)\n(?:.*\n)*?(good|bad|skip): ", out, flags=re.MULTILINE)
    assert tested[:2] == [("model 5", "bad"), ("model 0", "good")]
    assert "FAIL     ppl_max[die-text]      8" in out
    assert repo.state == before
    assert (repo.here / "model.die").read_text() == "being edited"
    assert list((repo.here / ".lmgate_cache").glob("token-nll/*/*.lmgate"))  # shared with the user's own runs


def test_where_skipped_commits_hide_the_first_bad_one_all_candidates_are_named(tmp_path: Path) -> None:
    repo = Repo(tmp_path, (6, None))
    # At the next commit pytest dies without a report: that is never good.
    repo.commit("dies", {"conftest.py": "import os\nos._exit(0)\n"})
    repo.commit("worse", {"conftest.py": FAIR_DIE.read_text(), "model.die": '{"sides": 8}'})
    code, out, err = repo.run("HEAD~3", "HEAD", "--", GATE)
    assert code == 3, err
    named = out.partition("The first bad commit could be any of:")[2]
    assert {*re.findall(r"\b[0-9a-f]{40}\b", named)} == {*repo.git("rev-list", "HEAD~3..HEAD").split()}
    assert "skip: error; pytest ended with exit code 1" in out
    assert re.search(r"skip: .*No such file or directory: .*report.json", out)
    assert "is the first bad commit" not in out


def test_a_good_commit_that_fails_and_a_bad_one_that_passes_are_refused(tmp_path: Path) -> None:
    repo = Repo(tmp_path, (8, 6, 8))
    before = repo.state
    for ends, words in (
        (("HEAD~2", "HEAD"), f"GOOD {repo.commits[0][:12]}: "),
        (("HEAD~2", "HEAD~1"), f"BAD {repo.commits[1][:12]}: "),
        (("HEAD", "nowhere"), "'nowhere'"),
    ):
        code, _, err = repo.run(*ends, "--", GATE)
        assert code == 3
        assert words in err
    (repo.top / "inner").mkdir()
    repo.here = repo.top / "inner"
    assert re.search(r"skip: .*No such file or directory: .*inner", repo.run("HEAD~1", "HEAD", "--", GATE)[1])
    repo.here = repo.top
    code, out, err = repo.run("HEAD~1", "HEAD", "--", "lmgate.yaml::ppl_max[dye-text]")
    assert (code, "BAD " in err, "skip: no gate" in out) == (3, True, True)
    assert repo.state == before


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_an_interrupted_bisection_leaves_nothing(tmp_path: Path, number: int) -> None:
    repo, temporary, on = Repo(tmp_path / "repo", (6, 8)), tmp_path / "tmp", tmp_path / "on"
    temporary.mkdir()
    slow = f"import time\nopen({str(on)!r}, 'w')\ntime.sleep(600)\n"
    repo.commit("slow", {"conftest.py": f"{FAIR_DIE.read_text()}\n{slow}"})
    before = repo.state
    process = repo.start("HEAD~1", "HEAD", "--", GATE, temporary=temporary)
    wait_for(on.exists, "pytest runs at a commit")
    assert list(temporary.glob("lmgate-bisect-*"))
    process.send_signal(number)
    if number == signal.SIGHUP:  # the terminal sends one, and its shell another
        time.sleep(0.1)
        process.send_signal(number)
    process.communicate(timeout=300)
    assert process.returncode not in (0, None)
    assert repo.state == before
    assert not list(temporary.glob("lmgate-bisect-*"))


def test_what_is_not_in_the_repository_can_be_linked(tmp_path: Path) -> None:
    repo = Repo(tmp_path, (6,))
    repo.git("rm", "-q", "--cached", "text.txt")
    repo.git("commit", "-qm", "the text is kept elsewhere")
    repo.commit("worse", {"model.die": '{"sides": 9}'})
    code, out, err = repo.run("HEAD~1", "HEAD", "--link", "text.txt", "--", GATE)
    assert code == 0, err
    assert f"{repo.git('rev-parse', 'HEAD')} is the first bad commit" in out
    assert (repo.top / "text.txt").is_file()
    code, _, err = repo.run("HEAD~1", "HEAD", "--link", "gone.txt", "--", GATE)
    assert (code, "'gone.txt'" in err) == (2, True)
