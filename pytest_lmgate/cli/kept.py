"""``lmgate baseline``, ``lmgate cache`` and ``lmgate report``: what runs have kept, shown, checked and made smaller.

The committed baseline, the measurements in a cache folder, and the JSON report of a run, from which others are made.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
import typer

from pytest_lmgate.cli.console import AsJson, BaselineOption, CacheOption, age, bytes_of, root, show
from pytest_lmgate.errors import BaselineError, CacheError, RecordError, escape_controls, nearest
from pytest_lmgate.report.formats import STDOUT, shared_file, write_reports
from pytest_lmgate.report.text import byte_size, counted, table
from pytest_lmgate.settings.metrics import METRICS
from pytest_lmgate.settings.session import CacheKey

if TYPE_CHECKING:
    from pytest_lmgate.cache.store import EntryInfo
    from pytest_lmgate.judge.baseline import BaselineEntry
    from pytest_lmgate.judge.result import Results


# ``lmgate baseline``: the entries of the file, what changed since a commit, renaming and removing.


baseline = typer.Typer(
    no_args_is_help=True, help="Show and edit the committed baseline.", add_completion=False, rich_markup_mode=None
)

_ENTRY = ("value", "scored", "model", "dataset", "measured", "gate")
_CHANGES = ("old", "new", "change", "is", "gate")


@baseline.command("show")
def show_entries(file: BaselineOption = None, as_json: AsJson = False) -> None:
    """Show the entries: value of each gate when its model was accepted, day and commit."""
    from pytest_lmgate.judge.baseline import read_baseline

    path = root().baseline(file)
    entries = read_baseline(path)
    rows = [
        (
            f"{entry.value:.6g}",
            f"{entry.n:,} {entry.unit}s",
            entry.model,
            entry.dataset,
            f"{entry.provenance.date} {entry.provenance.commit}".rstrip(),
            name,
        )
        for name, entry in sorted(entries.items())
    ]
    absent = "" if path.exists() else "; the file does not exist: pytest --lmgate-update-new-only makes it"
    text = f"{path}: {counted(len(rows), 'entry')}{absent}"
    show(
        {"file": str(path), "gates": {name: _facts(entry) for name, entry in sorted(entries.items())}},
        "\n".join([*table(_ENTRY, rows, names=("model", "dataset"), left=("measured", "gate")), text])
        if rows
        else text,
        as_json=as_json,
    )


@baseline.command()
def diff(
    revision: Annotated[str, typer.Argument(metavar="[REV]", help="Commit, branch or tag of git.")] = "HEAD",
    file: BaselineOption = None,
    as_json: AsJson = False,
) -> None:
    """Show what changed in the file since a commit: old -> new, and the change in percent."""
    from pytest_lmgate.judge.baseline import read_baseline

    path = root().baseline(file)
    old, new = _committed(path, revision), read_baseline(path)
    changes = [
        _change(name, old.get(name), new.get(name)) for name in sorted({*old, *new}) if old.get(name) != new.get(name)
    ]
    rows = [
        (
            *("-" if change[side] is None else f"{change[side]:.6g}" for side in ("old", "new")),
            "-" if change["change"] is None else f"{change['change']:+.2f}%",
            change["is"],
            change["gate"],
        )
        for change in changes
    ]
    same = len({*old} & {*new}) - sum(change["is"] not in ("new", "removed") for change in changes)
    text = f"{path} against {revision}: {counted(len(changes), 'change')}, {same} unchanged"
    data = {"file": str(path), "revision": revision, "changes": changes, "unchanged": same}
    show(
        data,
        "\n".join([*table(_CHANGES, rows, names=(), left=("is", "gate")), text]) if rows else text,
        as_json=as_json,
    )


@baseline.command()
def rename(
    old: Annotated[str, typer.Argument(metavar="OLD", help="Old name of the gate.")],
    new: Annotated[str, typer.Argument(metavar="NEW", help="New name of the gate.")],
    file: BaselineOption = None,
    as_json: AsJson = False,
) -> None:
    """Rename the entry of a renamed gate."""

    def change(entries: Mapping[str, BaselineEntry]) -> Mapping[str, BaselineEntry]:
        _require(old, entries)
        if new in entries:
            raise typer.BadParameter(f"{new} has an entry already; remove it first: lmgate baseline prune {new!r}")
        return {new if name == old else name: entry for name, entry in entries.items()}

    path = _rewritten(file, change)
    show({"file": str(path), "renamed": {old: new}}, f"{path}: {old} renamed to {new}; commit it", as_json=as_json)


@baseline.command()
def prune(
    gates: Annotated[list[str] | None, typer.Argument(metavar="GATE...", help="Gates whose entries to remove.")] = None,
    file: BaselineOption = None,
    as_json: AsJson = False,
) -> None:
    """Remove the entries of these gates.

    `pytest --lmgate-prune` removes all entries that no gate uses.
    """
    if not gates:
        raise typer.BadParameter("expected the gates to remove; pytest --lmgate-prune removes all that no gate uses")

    def change(entries: Mapping[str, BaselineEntry]) -> Mapping[str, BaselineEntry]:
        for gate in gates:
            _require(gate, entries)
        return {name: entry for name, entry in entries.items() if name not in gates}

    path = _rewritten(file, change)
    removed = counted(len({*gates}), "entry")
    show({"file": str(path), "removed": gates}, f"{path}: {removed} removed; commit it", as_json=as_json)


def _rewritten(file: str | None, change: Any) -> Path:
    from pytest_lmgate.judge.baseline import rewrite

    path = root().baseline(file)
    try:
        rewrite(path, change)
    except OSError as error:
        raise BaselineError(f"{path}: cannot be written: {error}") from error
    return path


def _require(gate: str, entries: Mapping[str, BaselineEntry]) -> None:
    if gate not in entries:
        raise typer.BadParameter(
            f"no entry is called {gate!r}{nearest(gate, entries)}; lmgate baseline show lists them"
        )


def _committed(path: Path, revision: str) -> dict[str, BaselineEntry]:
    """Return the entries of the file in a commit; empty if the commit lacks the file."""
    from pytest_lmgate.judge.baseline import parse_baseline
    from pytest_lmgate.judge.provenance import git

    commit = git(path.parent, "rev-parse", "--verify", "--end-of-options", f"{revision}^{{commit}}")
    name = f"./{path.name}"
    if not git(path.parent, "ls-tree", commit, "--", name):
        return {}
    return parse_baseline(git(path.parent, "show", f"{commit}:{name}"), f"{revision}:{path.name}")


def _facts(entry: BaselineEntry) -> dict[str, Any]:
    facts: dict[str, Any] = msgspec.to_builtins(entry)
    return {key: value for key, value in facts.items() if key not in ("clusters", "outcomes")}


def _change(gate: str, old: BaselineEntry | None, new: BaselineEntry | None) -> dict[str, Any]:
    change = None
    if old is None or new is None:
        word = "new" if old is None else "removed"
    elif old.metric != new.metric or dict(old.identity) != dict(new.identity):
        word = "other data or protocol"
    else:
        change = 100 * (new.value - old.value) / abs(old.value) if old.value else None
        row = METRICS.get(new.metric)
        lower = None if row is None else row.direction == "lower"
        word = "same value" if old.value == new.value else "changed"
        if word == "changed" and lower is not None:
            word = "worse" if (new.value > old.value) == lower else "better"
    values = {"old": old and old.value, "new": new and new.value}
    return {"gate": gate, **values, "change": change, "is": word}


# ``lmgate cache``: what the cache holds, whether it is whole, and making it smaller.


cache = typer.Typer(
    no_args_is_help=True,
    help="List, check and shrink the cache of measurements.",
    add_completion=False,
    rich_markup_mode=None,
)

_MEASUREMENT = ("id", "used", "size", "kind", "state", "metric", "model", "dataset", "count")


@cache.command("ls")
def list_entries(folder: CacheOption = None, as_json: AsJson = False) -> None:
    """List the measurements, the last used first.

    Names of models and datasets are as of the measurement.
    """
    place, entries = _entries(folder)
    rows = [
        (
            entry.address[:12],
            f"{age(time.time() - entry.used)}",
            byte_size(entry.size),
            entry.kind,
            entry.state if not entry.problem else "broken",
            str(entry.facts.get("metric", "-")),
            entry.model or "-",
            entry.dataset or "-",
            f"{entry.count:,}",
        )
        for entry in entries
    ]
    text = f"{place}: {_total(entries)}"
    if rows:
        text = "\n".join(
            [*table(_MEASUREMENT, rows, names=("metric", "model", "dataset"), left=("id", "kind", "state")), text]
        )
    show({"folder": str(place), "entries": [_facts_of_measurement(entry) for entry in entries]}, text, as_json=as_json)


@cache.command("show")
def show_entry(
    address: Annotated[
        str, typer.Argument(metavar="ID", help="Address prefix, as printed by `lmgate cache ls` and reports.")
    ],
    folder: CacheOption = None,
    as_json: AsJson = False,
) -> None:
    """Show the ingredients of a measurement's address.

    The address is their hash. Also shows where and when it was measured.
    """
    place, entries = _entries(folder)
    matching = [entry for entry in entries if entry.address.startswith(address.lower())]
    if len({entry.address for entry in matching}) != 1:
        got = f"{len(matching)} do" if matching else "none does"
        raise typer.BadParameter(f"expected the beginning of one address in {place}, got {address!r}: {got}")
    entry = matching[0]
    if entry.fingerprint is None:
        raise CacheError(entry.problem)
    facts: dict[str, Any] = _facts_of_measurement(entry) | {"ingredients": dict(entry.fingerprint.ingredients)}
    about = {name: value for name, value in facts.items() if name != "ingredients" and value not in ("", [], None)}
    lines = [f"{name:<12} {value}" for name, value in about.items()]
    lines += ["ingredients", *(f"  {name}: {value}" for name, value in entry.fingerprint.ingredients)]
    show(facts, "\n".join(lines), as_json=as_json)


@cache.command()
def verify(folder: CacheOption = None, as_json: AsJson = False) -> None:
    """Check every measurement.

    Checks checksum, address and, if LMGATE_CACHE_KEY is set, signature. The exit code is 1 if one is broken. Nothing is
    removed: a session sets a broken entry aside and measures again. Entries of a newer pytest-lmgate are counted, but
    not checked.
    """
    from pytest_lmgate.cache.store import check

    place, entries = _entries(folder)
    key = CacheKey.from_environment()
    ours = [entry for entry in entries if entry.state not in ("set aside", "newer")]
    problems = {str(entry.path): why for entry in ours if (why := check(entry, key))}
    newer = sum(entry.state == "newer" for entry in entries)
    kind = "checksums" if key is None else "checksums and signatures"
    text = [escape_controls(why) for why in problems.values()]
    text.append(f"{place}: {kind} of {counted(len(ours), 'entry')} checked, {len(problems)} broken")
    text[-1] += f", {newer} of a newer pytest-lmgate not checked" if newer else ""
    show(
        {"folder": str(place), "checked": len(ours), "newer": newer, "broken": problems},
        "\n".join(text),
        as_json=as_json,
    )
    if problems:
        raise typer.Exit(1)


@cache.command()
def gc(
    max_size: Annotated[str, typer.Option("--max-size", metavar="SIZE", help="For example 500M, 2GB or 1.5GiB.")],
    folder: CacheOption = None,
    as_json: AsJson = False,
) -> None:
    """Remove measurements until the rest fits SIZE.

    Removes the least recently used first. Also removes the logs of servers that sessions started.
    """
    place, entries = _entries(folder)
    _sweep(place, entries, bytes_of(max_size), as_json)


@cache.command()
def clear(
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    folder: CacheOption = None,
    as_json: AsJson = False,
) -> None:
    """Remove all measurements, remembered digests, proofs of models and logs of servers. Gates then measure again."""
    from pytest_lmgate.cache.store import forget

    place, entries = _entries(folder)
    if not yes and not typer.confirm(f"Remove {_total(entries)} from {place}?", err=True):
        raise typer.Exit(2)
    _sweep(place, entries, 0, as_json)
    forget(place)


def _sweep(place: Path, entries: list[EntryInfo], most: int, as_json: bool) -> None:
    from pytest_lmgate.cache.store import collect_garbage, remove_logs

    swept = collect_garbage(place, entries, most)
    remove_logs(place)
    gone = sum(entry.size for entry in swept.removed)
    text = [f"{entry.path}: stays, since {why}" for entry, why in swept.kept]
    removed = f"{counted(len(swept.removed), 'entry')} removed ({byte_size(gone)})"
    text.append(f"{place}: {removed}, {byte_size(swept.size)} left")
    data = {"removed": [str(entry.path) for entry in swept.removed], "size": swept.size}
    data |= {"kept": {str(entry.path): why for entry, why in swept.kept}}
    show(data, "\n".join(text), as_json=as_json)


def _entries(folder: str | None) -> tuple[Path, list[EntryInfo]]:
    from pytest_lmgate.cache.store import find_entries

    place = root().cache(folder)
    try:
        return place, find_entries(place)
    except OSError as error:
        raise CacheError(f"{place}: the cache folder cannot be read: {error}") from error


def _total(entries: list[EntryInfo]) -> str:
    return f"{counted(len(entries), 'entry')}, {byte_size(sum(entry.size for entry in entries))}"


def _facts_of_measurement(entry: EntryInfo) -> dict[str, Any]:
    measured = entry.facts.get("measured_at")
    return {
        "address": entry.address,
        "kind": entry.kind,
        "state": entry.state,
        "metric": entry.facts.get("metric", ""),
        "model": entry.model,
        "dataset": entry.dataset,
        "count": entry.count,
        "size": entry.size,
        "used": _day(entry.used),
        "measured": _day(measured) if isinstance(measured, int | float) else "",
        "machine": entry.facts.get("machine", ""),
        "file": str(entry.path),
        "problem": entry.problem,
    }


def _day(seconds: float) -> str:
    try:
        return time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(seconds))
    except (ValueError, OverflowError, OSError):  # as of a clock that was far off
        return ""


# ``lmgate report``: the other reports of a run, from its JSON report.


def report(
    files: Annotated[
        list[Path], typer.Argument(metavar="REPORT.json...", help="Written by --lmgate-report json:REPORT.json.")
    ],
    join: Annotated[bool, typer.Option("--join", help="Make one run of several shards.")] = False,
    plan: Annotated[
        Path | None, typer.Option(metavar="PLAN.json", help="Gates that the shards must have, of --lmgate-plan.")
    ] = None,
    json: Annotated[str, typer.Option("--report", metavar="FILE", help="Write the JSON report.")] = "",
    html: Annotated[str, typer.Option("--html", metavar="FILE", help="Write a self-contained HTML page.")] = "",
    markdown: Annotated[str, typer.Option("--markdown", metavar="FILE", help="For a pull request; - is stdout.")] = "",
    openmetrics: Annotated[str, typer.Option("--openmetrics", metavar="FILE", help="For GitLab, Prometheus.")] = "",
    eval_results: Annotated[str, typer.Option("--eval-results", metavar="DIR", help="For models on the HF hub.")] = "",
    github: Annotated[bool, typer.Option("--github", help="Print annotations of GitHub Actions.")] = False,
    as_json: AsJson = False,
) -> None:
    """Make other reports from a run's JSON report, exactly as the run would have written them.

    With --join the run is that of several shards. The exit code is 1 if none of them has a gate of the plan.
    """
    from pytest_lmgate.judge.result import join_shards, read_plan, read_results
    from pytest_lmgate.report.wording import counts

    requested = {"html": html, "markdown": markdown, "openmetrics": openmetrics, "eval-results": eval_results}
    requested |= {"github": STDOUT if github else "", "json": json}
    wanted = [(kind, destination) for kind, destination in requested.items() if destination]
    if not wanted:
        raise typer.BadParameter(
            "expected a report to make: --html FILE, --markdown FILE, --openmetrics FILE, --eval-results DIR, "
            "--report FILE or --github"
        )
    if not join and (len(files) > 1 or plan is not None):
        raise typer.BadParameter("several reports, or a plan: expected --join, which makes one run of shards")
    shards = {str(file): read_results(_read(file), str(file)) for file in files}
    results, is_whole = next(iter(shards.values())), True
    if join:
        planned = None if plan is None else read_plan(_read(plan), str(plan))
        results = join_shards(shards, planned)
        is_whole = planned is None or {verdict.id for verdict in results.verdicts}.issuperset(planned.gates)
    printed = made(results, wanted)
    written = [f"{kind}: {destination}" for kind, destination in wanted if destination != STDOUT]
    if as_json:
        show({"report": ", ".join(shards), "written": dict(wanted)}, "", as_json=True)
    elif printed:
        typer.echo("".join(printed), nl=False)  # for a machine that reads commands, or escaped already
    else:
        show(None, "\n".join([*written, *results.problems * join, counts(results.verdicts)]), as_json=False)
    if not is_whole:
        raise typer.Exit(1)


def _read(file: Path) -> bytes:
    try:
        return file.read_bytes()
    except OSError as error:
        raise RecordError(f"{file}: cannot be read: {error.strerror}") from error


def made(results: Results, wanted: Sequence[tuple[str, str]]) -> list[str]:
    """Write reports, given by format and destination; return those for stdout."""
    if twice := shared_file(wanted):
        raise typer.BadParameter(f"two reports go to {twice}: give each a file of its own")
    printed: list[str] = []
    problems: list[str] = []
    for note in write_reports(results, wanted, Path.cwd(), printed, problems):
        typer.echo(escape_controls(note.removeprefix("--lmgate-report ")), err=True)
    if problems:
        raise RecordError("; ".join(problem.removeprefix("--lmgate-report ") for problem in problems))
    return printed
