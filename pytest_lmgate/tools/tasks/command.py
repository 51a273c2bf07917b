"""The command ``lmgate import``: freezes a task of lm-evaluation-harness into a dataset of lmgate.yaml, with a gate."""

from __future__ import annotations

import contextlib
import itertools
import json
import math
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
import yaml

from pytest_lmgate.cli.console import AsJson, ConfigOption, flow, root, show
from pytest_lmgate.cli.measure import measuring
from pytest_lmgate.errors import ConfigError, DataError
from pytest_lmgate.report.text import counted
from pytest_lmgate.settings.decoding import parse_marker
from pytest_lmgate.settings.entries import ProjectSpec
from pytest_lmgate.settings.file import parse_project
from pytest_lmgate.settings.options import FILE_NAME, find_project_file, read_project_file
from pytest_lmgate.tools.parts.gates import gate_line, insert

if TYPE_CHECKING:
    from pytest_lmgate.tools.tasks.freeze import Frozen
    from pytest_lmgate.tools.tasks.harness import Found

_SHOWN = 3
_WIDTH = 116
# Of a gate on right and wrong rows, as Student's bounds have it: a tolerance that a model passes four times in five,
# of which this share of the rows changes.
_CHANGED, _Z = 0.04, 1.645 + 0.842
_MOST = 0.1


@dataclass(frozen=True)
class ImportCommand:
    """What was asked for, as it is written into the comment above the entry."""

    task: str
    shots: int | None
    rows: int | None
    seed: int
    split: str | None
    include_path: Path | None
    chat: bool
    name: str

    @property
    def shown(self) -> str:
        given = {"--shots": self.shots, "--rows": self.rows, "--split": self.split}
        words = [f"{flag} {value}" for flag, value in given.items() if value is not None]
        words += [f"--seed {self.seed}"] * (self.seed != 1234) + ["--chat"] * self.chat
        words += [f"--include-path {self.include_path.as_posix()}"] if self.include_path else []
        return " ".join(["lmgate import", self.task, *words, *([f"--name {self.name}"] * (self.name != self.task))])


@dataclass(frozen=True)
class Imported:
    """A task as a dataset: rows, the keys of its entry, what can be gated, and the comment."""

    rows: list[dict[str, Any]]
    entry: dict[str, Any]
    gates: list[tuple[str, dict[str, Any]]]
    notes: list[str]
    origin: str

    @property
    def data(self) -> str:
        try:
            text = "".join(json.dumps(row, ensure_ascii=False, allow_nan=False) + "\n" for row in self.rows)
            text.encode()
            return text
        except ValueError as error:  # NaN, or half of a surrogate pair
            raise DataError(f"the task's documents cannot be written as JSON in UTF-8: {error}") from error


def import_task(
    task: Annotated[str, typer.Argument(metavar="TASK", help="A task or group of lm-evaluation-harness.")],
    shots: Annotated[int | None, typer.Option(min=0, help="Examples in each prompt (default: the task's own).")] = None,
    rows: Annotated[int | None, typer.Option(min=1, help="Only the first documents, of each task of a group.")] = None,
    seed: Annotated[int, typer.Option(min=0, help="Seed of the choice of examples.")] = 1234,
    split: Annotated[str | None, typer.Option(help="Another split than the task's own.")] = None,
    include_path: Annotated[
        Path | None, typer.Option(exists=True, file_okay=False, help="Folder of further tasks in YAML.")
    ] = None,
    chat: Annotated[bool, typer.Option("--chat", help="Freeze messages for the models' chat templates.")] = False,
    out: Annotated[Path | None, typer.Option(help="Folder of the data (default: data, next to lmgate.yaml).")] = None,
    name: Annotated[str | None, typer.Option(help="Name of the dataset (default: the task's).")] = None,
    model: Annotated[
        list[str] | None, typer.Option(help="Model of lmgate.yaml to gate; repeatable (default: the first).")
    ] = None,
    skip_rows: Annotated[bool, typer.Option("--skip-rows", help="Leave out documents that cannot be judged.")] = False,
    check: Annotated[bool, typer.Option("--check", help="Write nothing: compare with what was written.")] = False,
    config: ConfigOption = None,
    as_json: AsJson = False,
) -> None:
    """Freeze a task of lm-evaluation-harness: a file of rows, an entry in lmgate.yaml, and a gate.

    Needs pytest-lmgate[tasks] and the task's data. Gates need neither afterwards, unless code of the task itself scores
    it. With --check, the exit code is 1 if the harness would write something else today.
    """
    here = root()
    project = here.project_file(config) or find_project_file(here.start) or here.start / FILE_NAME
    command = ImportCommand(task, shots, rows, seed, split, include_path, chat, name or task)
    folder = project.parent / "data" if out is None else Path.cwd() / out.expanduser()
    data = folder / f"{re.sub(r'[^A-Za-z0-9_.-]+', '-', command.name)}.jsonl"
    text = read_project_file(project) if project.exists() or project.is_symlink() else ""
    spec = parse_project(text, project).spec if text else ProjectSpec()  # its errors are told before a task is loaded
    if (command.name in spec.datasets) != check:
        wrong = "has no dataset" if check else "already has a dataset"
        hint = "import it first, without --check" if check else "choose another with --name, or compare with --check"
        raise ConfigError(f"{project} {wrong} {command.name!r}: {hint}")
    imported_task = imported(command, project.parent, skip_rows=skip_rows)
    path = Path(os.path.relpath(data, project.parent)).as_posix()
    entry = {"path": path, **imported_task.entry}
    if check:
        before = yaml.safe_load(text)["datasets"][command.name]  # as it is written, without defaults
        changes = list(itertools.islice(_changes(imported_task, entry, before, project.parent), 20))
        lines = changes or [f"{command.name}: the harness of today writes the same"]
        show({"same": not changes, "changes": changes}, "\n".join(lines), as_json=as_json)
        raise typer.Exit(1 if changes else 0)
    models = _models(model, list(spec.models), project)
    gates, reasons = _gates(imported_task, command.name, models)
    added = {"datasets": entry_lines(command.name, entry, [imported_task.origin, *imported_task.notes])}
    if models:
        added["gates"] = [*(f"# {line}" for line in _wrapped(reasons)), *map(gate_line, gates)]
    written = insert(text, added, project)
    _write(data, imported_task.data, project, written, command.name, gates if models else [])
    lines = [
        f"{command.name}: {counted(len(imported_task.rows), 'row')} of {task}",
        *(f"  {note}" for note in imported_task.notes),
        *("  " + line for line in (*reasons, *map(gate_line, gates))),
        f"written: {path}, {project.name}",
        "Run pytest --lmgate-update to measure the baseline, and commit these files."
        if models
        else "Add a model and such a gate to lmgate.yaml.",
    ]
    facts = {
        "dataset": command.name,
        "rows": len(imported_task.rows),
        "files": [path, project.name],
        "notes": imported_task.notes,
        "metrics": [{"metric": metric, "arguments": arguments} for metric, arguments in imported_task.gates],
        "gates": [{"marker": marker, "arguments": arguments} for marker, arguments in gates],
    }
    show(facts, "\n".join(lines), as_json=as_json)


def imported(command: ImportCommand, folder: Path, *, skip_rows: bool = False) -> Imported:
    """Freeze a task, or the tasks of a group as one dataset, for an lmgate.yaml in a folder."""
    from pytest_lmgate.tools.tasks import harness
    from pytest_lmgate.tools.tasks.freeze import freeze

    harness_task = harness.find(command.task, command.include_path)
    parts: dict[str, Frozen] = {}
    origins, shots, files = [], set(), dict[str, str]()
    for name, task in harness_task.tasks.items():
        shots.add(harness.prepare(task, shots=command.shots, seed=command.seed, split=command.split))
        origins.append((f"{name} (version {task.VERSION})", harness.described(task)))
        documents = harness.documents(task, rows=command.rows, chat=command.chat)
        try:
            # Tasks with the same code may be scored by the first one's file.
            file = files.setdefault(harness.scoring_of(task), harness.relative_file(harness_task.files[name], folder))
            parts[name] = freeze(task, documents, chat=command.chat, file=file)
        except ConfigError as error:
            raise ConfigError(f"task {name}: no gate can be made of it: {error}") from error
    skipped = [f"{name}: {reason}" for name, part in parts.items() for reason in part.unjudgeable]
    more = f", and {len(skipped) - _SHOWN} more" if len(skipped) > _SHOWN else ""
    lost = f"{'; '.join(skipped[:_SHOWN])}{more}"
    if skipped and not skip_rows:
        raise DataError(f"{lost}: such rows cannot be judged; --skip-rows leaves them out")
    whole = _joined(harness_task, parts)
    notes = [*dict.fromkeys(whole.notes)]
    if skipped:
        notes.append(f"left out, because they cannot be judged: {lost}")
    of_shots = f"{'/'.join(map(str, sorted(shots)))} shots" + (f", seed {command.seed}" if max(shots) else "")
    tasks, data = (list(dict.fromkeys(origin)) for origin in zip(*origins, strict=True))
    which = tasks[0] if len(tasks) == 1 else f"{len(tasks)} tasks from {tasks[0]} to {tasks[-1]}"
    origin = (
        f"By `{command.shown}`: lm-evaluation-harness {harness.installed()}, {which}, {of_shots}, "
        f"dataset {data[0]}{f' and {len(data) - 1} more' if len(data) > 1 else ''}, {counted(len(whole.rows), 'row')}."
    )
    return Imported(whole.rows, whole.entry, whole.gates, notes, origin)


def _joined(group: Found, parts: Mapping[str, Frozen]) -> Frozen:
    """Join the tasks of a group, whose entries must agree, to one dataset with the task as a tag."""
    (first_name, first), *others = parts.items()
    if not group.is_group:
        return first
    for name, part in others:
        one, other = {**first.entry, "metrics": first.gates}, {**part.entry, "metrics": part.gates}
        if key := next((key for key in {**one, **other} if one.get(key) != other.get(key)), None):
            raise ConfigError(
                f"group {group.name}: its tasks are of different kinds, so that one dataset cannot hold them: "
                f"{key} is {one.get(key)!r:.80} in {first_name} and {other.get(key)!r:.80} in {name}; import them "
                "one by one"
            )

    def weighted_by_size(gate: tuple[str, dict[str, Any]]) -> bool | None:
        metric, options = gate
        name = metric.removeprefix("task.") if metric.startswith("task.") else "exact_match"
        return group.weights.get(options.get("variant", "acc") if metric == "accuracy" else name)

    # The number that the harness gives the group comes first.
    gates = sorted(first.gates, key=lambda gate: weighted_by_size(gate) is None)
    metric, weighted = gates[0][0], weighted_by_size(gates[0])
    if metric not in ("accuracy", "exact") and not metric.startswith("task."):
        raise ConfigError(
            f"group {group.name}: its number is a mean of its tasks' {metric}, which is not a mean over rows; "
            "import its tasks one by one"
        )
    notes = [note for part in parts.values() for note in part.notes]
    if weighted is None:
        notes.append("the harness gives the group no number of its own; here it is the mean over all rows")
    nested = len({group.parents.get(name) for name in parts}) > 1
    rows = []
    for name, part in parts.items():
        tags = {"task": name, **({"group": group.parents.get(name, group.name)} if nested else {})}
        rows += [{"id": row["id"], **tags, **{key: row[key] for key in row if key != "id"}} for row in part.rows]
    entry = {**first.entry, "tags": ["group", "task"] if nested else ["task"]}
    if weighted is False:
        entry["average_by"] = "task"
    skipped = [reason for part in parts.values() for reason in part.unjudgeable]
    return replace(first, rows=rows, entry=entry, gates=gates, notes=notes, unjudgeable=skipped)


def _models(chosen: Sequence[str] | None, models: list[str], project: Path) -> list[str]:
    for name in chosen or ():
        if name not in models:
            raise ConfigError(f"--model: {project} has no model {name!r}; it has {', '.join(models) or 'none'}")
    return list(chosen) if chosen else models[:1]


def _gates(
    imported_task: Imported, name: str, models: Sequence[str]
) -> tuple[list[tuple[str, dict[str, Any]]], list[str]]:
    """Propose a gate on the task's main number for each model, and say why its tolerance is that."""
    metric, options = imported_task.gates[0]
    n = len(imported_task.rows)
    tolerance: Any
    if metric in ("accuracy", "exact"):
        shown = max(0.01, math.ceil(200 * _Z * math.sqrt(_CHANGED / n)) / 200)
        tolerance = min(shown, _MOST)
        why = f"tolerance {tolerance:g}: about the smallest loss that {n:,} rows show if {_CHANGED:.0%} of them change"
        if shown > _MOST:  # a tolerance as large as the value itself could never be exceeded
            needed = math.ceil(_CHANGED * (_Z / _MOST) ** 2)
            why = f"tolerance {tolerance:g}: {n:,} rows show no loss below {shown:g}: import {needed:,} or more"
    elif metric in ("ppl", "bpb", "target_ppl"):
        tolerance, why = "1%", "tolerance 1%: at most 1% worse than today's baseline"
    else:
        tolerance, why = "2%", "tolerance 2%: at most 2% worse than today's baseline; lmgate measure shows its noise"
    others = [f"{other} with {flow(more)}" if more else other for other, more in imported_task.gates[1:]]
    reasons = [why, *([f"also possible: {', '.join(others)}"] if others else [])]
    shared = {"dataset": name, "tolerance": tolerance, **options}
    return [("no_regression", {"metric": metric, "model": model, **shared}) for model in models or ["MODEL"]], reasons


def entry_lines(name: str, entry: Mapping[str, Any], comments: Iterable[str]) -> list[str]:
    """Return a dataset's entry as lines of YAML, below comments."""
    lines = [f"# {line}" for line in _wrapped(comments)] + [f"{flow(name)}:"]
    for key, value in entry.items():
        if isinstance(value, dict) and key == "extract":
            lines += [f"  {key}:", *(f"    {flow(inner)}: {flow(item)}" for inner, item in value.items())]
        else:
            lines.append(f"  {key}: {flow(value)}")
    return lines


def _wrapped(comments: Iterable[str]) -> list[str]:
    """Return comments in lines that break between words, never in a command or in options, which may hold a pattern."""
    lines: list[str] = []
    for comment in comments:
        lines.append("")
        for word in re.findall(r"(?:`[^`]*`|\{.*\}|\S)+", comment):
            if lines[-1] and len(lines[-1]) + 1 + len(word) > _WIDTH:
                lines.append("")
            lines[-1] += f" {word}" if lines[-1] else word
    return lines


def _write(data: Path, content: str, project: Path, text: str, name: str, gates: Sequence[tuple[str, Any]]) -> None:
    """Write the rows, read them as a gate would, and only then write lmgate.yaml."""
    from pytest_lmgate.cache.files import write_kept

    is_new = not data.exists()
    if not is_new and data.read_bytes() != content.encode():
        raise ConfigError(f"{data} exists and holds something else: choose another --name or --out, or remove it")
    try:
        if is_new:
            write_kept(data, content)
        _read_back(project, text, name, gates)
        write_kept(project, text)
    except BaseException as error:
        if is_new:  # it would stop the next `lmgate import`
            with contextlib.suppress(OSError):
                data.unlink()
        if isinstance(error, OSError):
            raise ConfigError(f"a file cannot be written: {error}") from error
        raise


def _read_back(project: Path, text: str, name: str, gates: Sequence[tuple[str, Any]]) -> None:
    """Read a dataset and gates as pytest would of this text of lmgate.yaml, or raise the error that it would show."""
    with measuring(project=parse_project(text, project)) as session:
        for marker, arguments in gates:
            session.evaluator.bind_gate(parse_marker(marker, (), arguments))
        rows = session.evaluator.resolver.rows(name)
        if rows.spec.references is not None:
            _ = rows.task
        elif rows.spec.question is not None or rows.spec.messages is not None:
            _ = rows.questions
        else:
            session.evaluator.resolver.corpus(name)


def _changes(
    imported_task: Imported, entry: Mapping[str, Any], before: Mapping[str, Any], folder: Path
) -> Iterable[str]:
    """Return how a task differs from the dataset that was written of it."""
    for key in dict.fromkeys([*before, *entry]):
        if key != "path" and before.get(key) != entry.get(key):
            yield f"{key}: was {before.get(key)!r:.200}, would be {entry.get(key)!r:.200}"
    file = folder / str(before.get("path"))
    try:
        rows = [json.loads(line) for line in file.read_bytes().splitlines()]
    except (OSError, ValueError) as error:
        raise DataError(f"{file} cannot be read: {error}") from error
    if wrong := next((number for number, row in enumerate(rows, 1) if not isinstance(row, dict)), None):
        raise DataError(f"{file}: line {wrong}: expected an object of JSON, as `lmgate import` writes it")
    if len(rows) != len(imported_task.rows):
        yield f"rows: were {len(rows):,}, would be {len(imported_task.rows):,}"
    for number, (old, new) in enumerate(zip(rows, json.loads(json.dumps(imported_task.rows)), strict=False), 1):
        for key in dict.fromkeys([*old, *new]):
            if old.get(key) != new.get(key):
                yield f"line {number}: {key}: was {_around(old.get(key), new.get(key))}"


def _around(old: object, new: object) -> str:
    """Return where two values differ first."""
    one, other = (value if isinstance(value, str) else json.dumps(value, ensure_ascii=False) for value in (old, new))
    at = next((at for at, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), min(len(one), len(other)))
    begin = max(0, at - 20)
    return f"{one[begin : at + 40]!r}, would be {other[begin : at + 40]!r} (from character {begin})"
