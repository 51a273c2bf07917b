"""A bisection: a temporary worktree of a repository, in which git chooses commits and a pytest process judges each.

git keeps the state of a bisection per worktree, so the user's checkout, its index and a bisection of its own are never
touched.
"""

from __future__ import annotations

__all__ = ["Commit", "Repository", "Tree", "Tried", "judge_commit"]

import contextlib
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from pytest_lmgate.errors import ConfigError, RecordError
from pytest_lmgate.gates.record import GateRecord, parse_report
from pytest_lmgate.judge.repository import run_git
from pytest_lmgate.spec.catalogue import MARKERS_HELP

_PATIENCE = 60.0
"""Seconds that an interrupted pytest has to keep what it measured."""
_LABEL = re.compile(rf"(?<=::)(?:{'|'.join(MARKERS_HELP)})[\[:#].*", re.DOTALL)
# Variables by which git's hooks name a repository, and by which a session would write a history or other reports.
_LEFT_OUT = ("GIT_DIR", "GIT_WORK_TREE", "GIT_INDEX_FILE", "GIT_PREFIX", "LMGATE_HISTORY", "LMGATE_REPORT")


@dataclass(frozen=True)
class Commit:
    """A commit; the date is the author's, ISO 8601."""

    sha: str
    author: str
    date: str
    subject: str

    @property
    def words(self) -> str:
        """The commit in a line."""
        return f"{self.sha[:12]} {self.subject}"


@dataclass(frozen=True)
class Tried:
    """What the gates said of a commit; `why` says why it is skipped."""

    commit: Commit
    outcome: Literal["good", "bad", "skip"]
    why: str
    gates: Sequence[GateRecord]
    seconds: float


class Repository:
    """The repository around the current folder.

    Attributes:
        folder: The current folder, relative to the top of a checkout.

    Raises:
        ConfigError: There is none.
    """

    def __init__(self) -> None:
        self.top = Path(_git(Path.cwd(), "rev-parse", "--show-toplevel"))
        self.folder = _git(Path.cwd(), "rev-parse", "--show-prefix")

    def commit(self, name: str) -> Commit:
        """Return the commit of a name such as ``main~3``."""
        sha = _git(self.top, "rev-parse", "--verify", "--quiet", "--end-of-options", f"{name}^{{commit}}", about=name)
        author, date, subject = _git(self.top, "show", "-s", "--format=%an%x00%aI%x00%s", sha).split("\0")
        return Commit(sha, author, date, subject)

    def order(self, good: Commit, bad: Commit) -> list[str]:
        """Return the commits from good to bad, the oldest first.

        Raises:
            ConfigError: The bad commit does not come after the good one.
        """
        after = _git(self.top, "rev-list", "--topo-order", "--reverse", f"{good.sha}..{bad.sha}").split()
        before = _git(self.top, "merge-base", good.sha, bad.sha, about=f"{good.sha[:12]} and {bad.sha[:12]}")
        if before != good.sha or not after:
            raise ConfigError(
                f"expected a bad commit that comes after the good one; {bad.words!r} does not come after {good.words!r}"
            )
        return [good.sha, *after]


class Tree:
    """A checkout of a repository in a temporary folder, removed at the end however that comes.

    The `links`, relative to the current folder, are files and folders that are not in the repository and gates need.
    """

    def __init__(self, repository: Repository, links: Sequence[str]) -> None:
        self._repository, self._links, self._here = repository, links, Path.cwd()
        if missing := [name for name in links if not (self._here / name).exists()]:
            raise ConfigError(f"--link {missing[0]}: expected a file or folder in {self._here}, found none")
        self._folder = Path(tempfile.mkdtemp(prefix="lmgate-bisect-"))
        self.top = self._folder / "tree"
        self.report = self._folder / "report.json"

    @property
    def here(self) -> Path:
        """What the current folder is in this checkout."""
        return self.top / self._repository.folder

    def __enter__(self) -> Tree:
        try:
            _git(self._repository.top, "worktree", "add", "--no-checkout", "--detach", str(self.top), "HEAD")
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        shutil.rmtree(self._folder, ignore_errors=True)
        _git(self._repository.top, "worktree", "prune")  # forgets the checkout, and with it the bisection

    def go_to(self, commit: Commit) -> None:
        """Check a commit out."""
        _git(self.top, "checkout", "--quiet", "--detach", "--force", commit.sha)

    def start(self, good: Commit, bad: Commit) -> None:
        """Start the bisection."""
        _git(self.top, "bisect", "start", bad.sha, good.sha)

    def tell(self, outcome: str) -> None:
        """Tell git what the commit is; it checks out the next one, past what the tests changed or left."""
        _git(self.top, "reset", "--quiet", "--hard")
        _git(self.top, "clean", "--quiet", "-fd")
        try:
            _git(self.top, "bisect", outcome)
        except ConfigError:  # also where only skipped commits are left
            if not self.candidates():
                raise

    def candidates(self) -> list[str]:
        """Return the first bad commit, or where others were skipped all that it may be; none while git still asks."""
        log = _git(self.top, "bisect", "log")
        return re.findall(r"^# (?:possible )?first bad commit: \[(\w+)\]", log, flags=re.MULTILINE)

    def head(self) -> str:
        """Return the commit that is checked out."""
        return _git(self.top, "rev-parse", "HEAD")

    @contextlib.contextmanager
    def linked(self) -> Iterator[None]:
        """Put links to the user's own files where this commit has none; away again before git moves on."""
        made = []
        for name in self._links:
            link = self.here / name
            if not link.exists():
                link.parent.mkdir(parents=True, exist_ok=True)
                link.symlink_to((self._here / name).resolve())
                made.append(link)
        try:
            yield
        finally:
            for link in made:
                link.unlink()


def judge_commit(tree: Tree, commit: Commit, arguments: Sequence[str], cache: Path) -> Tried:
    """Run the gates of the commit that is checked out, by `arguments` for pytest: tests, ids of gates, and options."""
    started = time.monotonic()
    tree.report.unlink(missing_ok=True)
    given = [each for each in arguments if not each.startswith("-")]
    command = [
        *(sys.executable, "-m", "pytest", "-q", *dict.fromkeys(map(_for_pytest, arguments)), f"--lmgate-cache={cache}"),
        *(f"--lmgate-report=json:{tree.report}", "--lmgate-history=", "-o", "lmgate_history="),
    ]
    if not tree.here.is_dir():
        return Tried(commit, "skip", "the commit does not have the current folder", [], 0.0)
    with tree.linked():
        code, said = _run(command, tree.here)
    seconds = time.monotonic() - started
    try:
        found = [gate for gate in parse_report(tree.report.read_bytes(), "the report") if _is_given(gate.id, given)]
    except (OSError, RecordError):
        found = []
    verdicts = {"fail" if gate.blocking else gate.verdict for gate in found}
    if "fail" in verdicts:
        return Tried(commit, "bad", "", found, seconds)
    if verdicts == {"pass"} and code == 0:
        return Tried(commit, "good", "", found, seconds)
    named = [f"{gate.id}: {gate.verdict}" for gate in found if gate.verdict != "pass"]
    why = "; ".join(named) or f"pytest ended with exit code {code}: {_last_error(said)}"
    return Tried(commit, "skip", why, found, seconds)


def _for_pytest(argument: str) -> str:
    """Return the test of a gate's id; a gate of lmgate.yaml is its own test."""
    if argument.startswith("-") or re.search(r"\.ya?ml::", argument):
        return argument
    return _LABEL.sub("", argument).removesuffix("::")


def _is_given(identity: str, given: Sequence[str]) -> bool:
    """Return whether a gate is one of those given; a folder, a file or no name at all stands for all in it.

    Files are compared by name: ids are relative to pytest's rootdir, arguments to the current folder, and pytest has
    run nothing else than what was given.
    """

    def named(text: str) -> str:
        file, colons, rest = text.partition("::")
        return Path(file).name + colons + rest

    whole = [named(each) for each in given if "::" in each]
    if len(whole) < len(given) or not given:
        return True
    own = named(identity)
    return any(own == each or own.startswith((f"{each}::", f"{each}[")) for each in whole)


def _run(command: Sequence[str], folder: Path) -> tuple[int, str]:
    """Run a process; where this one is interrupted, interrupt it once and let it keep what it measured."""
    with tempfile.TemporaryFile() as written:
        process = subprocess.Popen(
            command,
            cwd=folder,
            env=_environment(),
            stdin=subprocess.DEVNULL,
            stdout=written,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            process.wait()
        except BaseException:
            process.send_signal(signal.SIGINT)
            try:
                process.wait(_PATIENCE)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
            raise
        written.seek(0)
        return process.returncode, written.read().decode("utf-8", "replace")


def _environment() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if name not in _LEFT_OUT}


def _last_error(said: str) -> str:
    lines = [line.strip() for line in said.splitlines() if line.strip()]
    errors = [line for line in lines if re.match(r"(ERROR|E  |FAILED)", line)]
    return (errors or lines or ["it wrote nothing"])[-1][:300]


def _git(folder: Path, *arguments: str, about: str = "") -> str:
    """Return what git prints.

    Raises:
        ConfigError: It failed; the message says what git said.
    """
    try:
        done = run_git(folder, *arguments, env={**_environment(), "LC_ALL": "C"})
    except OSError as error:
        raise ConfigError(f"git could not be run: {error.strerror}; lmgate bisect needs it") from None
    if done.returncode:
        said = " ".join(done.stderr.split()) or "it found nothing"
        raise ConfigError(f"{f'{about}: ' if about else ''}git {arguments[0]} failed: {said}")
    return done.stdout.strip()
