"""``lmgate bisect GOOD BAD -- GATE``: the commit that made a gate fail."""

from __future__ import annotations

__all__ = ["bisect"]

import signal
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from pytest_lmgate.cli.output import AsJson, show
from pytest_lmgate.cli.places import CacheOption, root
from pytest_lmgate.errors import ConfigError, harmless_line

if TYPE_CHECKING:
    from pytest_lmgate.cli.runs.bisection import Commit, Tried

_ENDING = [getattr(signal, name) for name in ("SIGTERM", "SIGHUP", "SIGQUIT") if hasattr(signal, name)]
_KEPT = ("id", "verdict", "value", "interval", "limit")


def bisect(
    good: Annotated[str, typer.Argument(help="Commit at which the gates pass.")],
    bad: Annotated[str, typer.Argument(help="Later commit at which a gate fails.")],
    gates: Annotated[list[str], typer.Argument(metavar="GATE...", help="Gates or tests, and options for pytest.")],
    cache: CacheOption = None,
    link: Annotated[
        list[str] | None, typer.Option(help="File or folder outside of the repository that gates need; repeatable.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Find the commit that made a gate fail, in a temporary worktree: PASS is good, FAIL bad, all else is skipped."""
    from pytest_lmgate.cli.runs.bisection import Repository, Tree, judge_commit

    repository = Repository()
    first, last = repository.commit(good), repository.commit(bad)
    order = repository.order(first, last)
    tried: list[Tried] = []
    folder = root().cache(cache)
    # A command that nohup started ignores SIGHUP, and goes on.
    before = {number: signal.getsignal(number) for number in _ENDING if signal.getsignal(number) != signal.SIG_IGN}
    try:
        for number in before:
            signal.signal(number, _end)
        with Tree(repository, link or ()) as tree:

            def judged(commit: Commit) -> str:
                _say(f"testing {commit.words}")
                tried.append(judge_commit(tree, commit, gates, folder))
                _say(f"  {_result(tried[-1])} ({tried[-1].seconds:.0f} s)")
                return tried[-1].outcome

            for commit, name, expected in ((last, "BAD", "bad"), (first, "GOOD", "good")):
                tree.go_to(commit)
                if judged(commit) != expected:
                    wanted = "a gate that fails" if expected == "bad" else "gates that pass"
                    raise ConfigError(f"{name} {commit.words}: expected {wanted}, got {_result(tried[-1])}")
            tree.start(first, last)
            while not (candidates := tree.candidates()):
                tree.tell(judged(repository.commit(tree.head())))
            found = [repository.commit(sha) for sha in candidates]
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    tried.sort(key=lambda each: order.index(each.commit.sha))
    show(_facts(first, last, found, tried), _report(found, tried), as_json=as_json)
    if len(found) > 1:
        raise typer.Exit(3)


def _end(number: int, _: object) -> None:
    for each in _ENDING:  # a shell may send a second one, which must not interrupt the cleaning up
        signal.signal(each, signal.SIG_IGN)
    sys.exit(128 + number)


def _say(line: str) -> None:
    typer.echo(harmless_line(line), err=True)


def _result(tried: Tried) -> str:
    values = [f"{gate.verdict.upper()} {gate.value:.6g}" for gate in tried.gates if gate.value is not None]
    return " ".join([tried.outcome, *(f"({each})" for each in values[:3])]) + (f": {tried.why}" if tried.why else "")


def _report(found: Sequence[Commit], tried: Sequence[Tried]) -> str:
    if len(found) == 1:
        (commit,) = found
        lines = [
            f"first bad commit: {commit.sha}",
            f"  author   {harmless_line(commit.author)}",
            f"  date     {commit.date}",
            f"  subject  {harmless_line(commit.subject)}",
        ]
    else:
        lines = ["commits were skipped; the first bad commit is one of"]
        lines += [f"  {harmless_line(commit.words)}" for commit in found]
    lines += ["", f"{len(tried)} commits were tried, the oldest first:"]
    for each in tried:
        gate = next((one for one in each.gates if one.verdict != "pass"), next(iter(each.gates), None))
        value = "-" if gate is None or gate.value is None else f"{gate.value:.6g}"
        verdict = "-" if gate is None else gate.verdict.upper()
        subject = harmless_line(each.commit.subject)
        lines.append(f"  {each.outcome:<4}  {each.commit.sha[:12]}  {value:>9}  {verdict:<12}  {subject}"[:200])
    return "\n".join(lines)


def _facts(good: Commit, bad: Commit, found: Sequence[Commit], tried: Sequence[Tried]) -> dict[str, Any]:
    return {
        "schema": 1,
        "good": good.sha,
        "bad": bad.sha,
        "first_bad": vars(found[0]) if len(found) == 1 else None,
        "candidates": [vars(commit) for commit in found],
        "tried": [
            {
                **vars(each.commit),
                "outcome": each.outcome,
                "why": each.why,
                "seconds": round(each.seconds, 3),
                "gates": [{key: getattr(gate, key) for key in _KEPT} for gate in each.gates],
            }
            for each in tried
        ],
    }
