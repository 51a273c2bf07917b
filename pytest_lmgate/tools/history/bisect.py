"""``lmgate bisect GOOD BAD -- GATE``: the commit that made a gate fail, by ``git bisect run`` in a worktree of its own.

git keeps the state of a bisection per worktree, so the user's checkout and a bisection of their own are not touched.
"""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated

import typer

from pytest_lmgate.cli.console import CacheOption, root
from pytest_lmgate.errors import ConfigError, escape_controls
from pytest_lmgate.settings.metrics import MARKER_NAMES

_CODES = {"good": 0, "bad": 1, "skip": 125}  # as ``git bisect run`` reads them
_ENDING = [getattr(signal, name) for name in ("SIGTERM", "SIGHUP", "SIGQUIT") if hasattr(signal, name)]
# Variables by which git's hooks name a repository, and by which a session would write a history.
_LEFT_OUT = ("GIT_DIR", "GIT_WORK_TREE", "GIT_INDEX_FILE", "GIT_PREFIX")


def bisect(
    good: Annotated[str, typer.Argument(help="Commit at which the gates pass.")],
    bad: Annotated[str, typer.Argument(help="Later commit at which a gate fails.")],
    gates: Annotated[list[str], typer.Argument(metavar="GATE...", help="Gates or tests, and options for pytest.")],
    cache: CacheOption = None,
    link: Annotated[
        list[Path] | None, typer.Option(exists=True, help="File or folder that gates need and git lacks; repeatable.")
    ] = None,
) -> None:
    """Find the commit that made a gate fail, in a temporary worktree: PASS is good, FAIL bad, all else is skipped."""
    from pytest_lmgate.judge.provenance import git

    for name in _LEFT_OUT:
        os.environ.pop(name, None)
    here = Path.cwd()
    below = git(here, "rev-parse", "--show-prefix")
    first, last = (git(here, "rev-list", "-1", "--end-of-options", name, "--") for name in (good, bad))
    links = {str(path): path.resolve() for path in link or ()}
    for number in _ENDING:
        if signal.getsignal(number) != signal.SIG_IGN:  # which nohup does with SIGHUP
            signal.signal(number, _end)
    with contextlib.ExitStack() as stack:
        stack.callback(git, here, "worktree", "prune")  # forgets the removed worktree, and with it the bisection
        temporary = stack.enter_context(TemporaryDirectory(prefix="lmgate-bisect-", ignore_cleanup_errors=True))
        tree, script = Path(temporary, "tree"), Path(temporary, "judge.py")
        script.write_text(
            f"from pathlib import *\nfrom {__name__} import judge_commit\n"
            f"raise SystemExit(judge_commit({tree!r}, {below!r}, {links!r}, {gates!r}, {root().cache(cache)!r}))\n"
        )
        git(here, "worktree", "add", "--quiet", "--detach", str(tree), last)
        for outcome, commit, expected in (("bad", last, "a gate that fails"), ("good", first, "gates that pass")):
            git(tree, "checkout", "--quiet", "--detach", commit)
            if _run([sys.executable, str(script)], tree) != _CODES[outcome]:
                raise ConfigError(f"{outcome.upper()} {commit[:12]}: expected {expected}; pytest's output is above")
        git(tree, "bisect", "start", last, first)
        if _run(["git", "bisect", "run", sys.executable, str(script)], tree):
            raise typer.Exit(3)


def judge_commit(tree: Path, below: str, links: Mapping[str, Path], arguments: Sequence[str], cache: Path) -> int:
    """Judge the commit that is checked out, by arguments for pytest in the folder `below`; return git's exit code."""
    from pytest_lmgate.judge.provenance import git
    from pytest_lmgate.judge.result import read_results

    folder, report, outcome = tree / below, tree.with_name("report.json"), "skip"
    options = [f"--lmgate-cache={cache}", f"--lmgate-report=json:{report}", "--lmgate-history=", "-olmgate_history="]
    command = [sys.executable, "-m", "pytest", "-q", "--tb=no", *options, *dict.fromkeys(map(_test_of, arguments))]
    signal.signal(signal.SIGINT, lambda *_: None)  # pytest heeds it, and keeps what it measured
    try:
        report.unlink(missing_ok=True)
        typer.echo(f"testing {git(tree, 'show', '-s', '--format=%h %s')}")
        for link in (name for name in links if not (folder / name).exists()):
            (folder / link).parent.mkdir(parents=True, exist_ok=True)
            (folder / link).symlink_to(links[link])
        ended = subprocess.run(command, cwd=folder, check=False).returncode
        git(tree, "reset", "--quiet", "--hard")  # what the tests changed would keep git from the next commit
        git(tree, "clean", "--quiet", "-fd")
        gates = read_results(report.read_bytes(), "the report").verdicts
        verdicts = {"fail" if gate.blocking else gate.verdict for gate in gates if _is_meant(gate.id, arguments)}
        outcome = "bad" if "fail" in verdicts else "good" if verdicts == {"pass"} and not ended else "skip"
        typer.echo(f"{outcome}: {', '.join(sorted(verdicts)) or 'no gate'}; pytest ended with exit code {ended}")
    except Exception as error:  # such as a missing folder or report: the commit is not known to be bad
        typer.echo(f"skip: {error}")
    return _CODES[outcome]


def _test_of(argument: str) -> str:
    """Return the test of a gate's id; a gate of lmgate.yaml is its own test."""
    label = rf"::({'|'.join(MARKER_NAMES)})[\[:#].*"
    return argument if re.match(r"-|.*\.ya?ml::", argument) else re.sub(label, "", argument, flags=re.DOTALL)


def _is_meant(identity: str, arguments: Sequence[str]) -> bool:
    """Whether a gate was requested, and not only others of its test, by their ids."""
    # Ids are relative to pytest's rootdir, arguments to the current folder, so folders are left out.
    gate_name, *given = (re.sub(r"^[^:]*/", "", name) for name in (identity, *arguments))
    named = [name for name in given if name != _test_of(name) == _test_of(gate_name)]
    return not named or gate_name in named


def _end(number: int, _: object) -> None:
    for ending in _ENDING:  # a shell may send a second one, which must not interrupt the cleaning up
        signal.signal(ending, signal.SIG_IGN)
    sys.exit(128 + number)


def _run(command: Sequence[str], tree: Path) -> int:
    """Run a process and show its output."""
    with subprocess.Popen(
        command, cwd=tree, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, errors="replace", start_new_session=True
    ) as process:
        try:
            for line in process.stdout or ():
                typer.echo(escape_controls(line.rstrip("\n"), line=True))
        except BaseException:
            os.killpg(process.pid, signal.SIGINT)
            process.communicate()  # until the last of them ended
            raise
    return process.returncode
