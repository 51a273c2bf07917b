"""``lmgate cache``: what the cache holds, whether it is whole, and making it smaller."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from pytest_lmgate.cli.console import AsJson, CacheOption, age, bytes_of, root, show
from pytest_lmgate.errors import CacheError, escape_controls
from pytest_lmgate.report.text import byte_size, counted, table
from pytest_lmgate.settings.session import CacheKey

if TYPE_CHECKING:
    from pytest_lmgate.cache.store import EntryInfo

cache = typer.Typer(
    no_args_is_help=True,
    help="List, check and shrink the cache of measurements.",
    add_completion=False,
    rich_markup_mode=None,
)

_COLUMNS = ("id", "used", "size", "kind", "state", "metric", "model", "dataset", "count")


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
            [*table(_COLUMNS, rows, names=("metric", "model", "dataset"), left=("id", "kind", "state")), text]
        )
    show({"folder": str(place), "entries": [_facts(entry) for entry in entries]}, text, as_json=as_json)


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
    facts: dict[str, Any] = _facts(entry) | {"ingredients": dict(entry.fingerprint.ingredients)}
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


def _facts(entry: EntryInfo) -> dict[str, Any]:
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
