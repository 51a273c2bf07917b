"""Results as rows: the records that every format becomes, and `read`, which finds the format of a path.

A format is a module with one function, from a path and `Columns` to a `ResultRun`; it returns None for a path that is
not of its format. Packages register more by entry points of the group ``pytest_lmgate.results``. Files are data:
nothing in them is run or unpickled, nothing is unpacked to disk, and what is read at once has a limit.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import partial
from importlib import import_module
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any, Literal, NamedTuple

import msgspec

from pytest_lmgate.errors import ConfigError, DataError, nearest
from pytest_lmgate.settings.metrics import Direction

_FORMATS = ("lm_eval_logs", "inspect_logs", "lighteval_details", "every_eval_ever", "tables")
_TAGS = ("subject", "subtask", "category", "subset", "level", "difficulty", "language", "domain", "type")
MOST_BYTES = 2**31
"""Bytes of a file, or of all that is read of an archive."""
_MOST_LINE = 2**26
_LOWER = {"loss", "error", "errors", "perplexity", "ppl", "wer", "cer", "ter", "brier", "distance", "bits", "toxicity"}
_HIGHER = {"acc", "accuracy", "exact", "match", "em", "f", "rouge", "correct", "pass", "includes", "recall",
           "precision"}  # fmt: skip
_NO_MEANS = ("perplexity", "bits_per_byte")
Weights = Literal["size", "task"]
Texts = tuple[str, str, str]
"""Prompt, reference and output."""


class ResultRow(msgspec.Struct, frozen=True):
    """One row of a metric; an empty text is unknown."""

    id: str  # as in the file; a repeat's has its number
    document: str = ""  # digest of what was asked, the tool's own where it has one
    prompt: str = ""  # digest of what the model read, and of the target
    cluster: str = ""  # rows of one cluster are not independent; empty for the document's or the row's own
    tags: Mapping[str, str] = {}
    texts: Callable[[], Texts] = lambda: ("", "", "")  # made when they are shown
    score: float = math.nan


@dataclass(frozen=True, kw_only=True)
class Facts:
    """What two comparable runs share; None if the file does not tell it. Names are shown, without underscores."""

    task_version: str | None = None
    metric_definition: str | None = None
    filter_or_solver: str | None = None
    number_of_shots: str | None = None
    fewshot_seed: str | None = None
    generation_settings: str | None = None
    repeats: str | None = None


@dataclass(frozen=True, kw_only=True)
class Told:
    """What a tool tells of one of its metrics."""

    facts: Facts = Facts()
    value: float | None = None  # the tool's own average of the rows
    higher: bool | None = None  # whether higher is better


@dataclass(frozen=True, kw_only=True)
class Series:
    """The rows of one metric of a task, under one filter."""

    task: str
    metric: str
    filter: str = ""
    rows: tuple[ResultRow, ...] = ()
    direction: Direction | None = None  # which scores are better; None if neither the file nor the name tells it
    facts: Facts = Facts()
    refused: str = ""  # why the rows cannot be judged
    complete: bool = False  # whether the file says that every row was measured and is here
    parts: tuple[Series, ...] = ()  # of a group of tasks, these; the rows are theirs
    weights: Weights | None = None  # of a group, whether each row counts alike, or each task

    @property
    def label(self) -> str:
        """The metric with its filter, as lm-evaluation-harness writes it."""
        return f"{self.metric},{self.filter}" if self.filter else self.metric


@dataclass(frozen=True)
class Group:
    """Tasks that a tool averages."""

    tasks: tuple[str, ...]
    values: Mapping[str, object] = field(default_factory=dict)  # the tool's own averages, by the metric's label


def joined(name: str, parts: Sequence[Series], weights: Weights) -> Series:
    """Return the rows of the tasks of a group as one series.

    The task is a tag of each row and a part of its cluster: a document of one task is not that of another.
    """
    facts = {field.name: _shared([getattr(part.facts, field.name) for part in parts]) for field in fields(Facts)}
    agree = len({part.direction for part in parts}) == 1
    return replace(
        parts[0],
        task=name,
        rows=tuple(
            msgspec.structs.replace(
                row,
                tags={**row.tags, "task": part.task},
                cluster=f"{part.task} {row.cluster or row.document or row.id}",
            )
            for part in parts
            for row in part.rows
        ),
        facts=Facts(**facts),
        refused="" if agree else "its tasks do not agree on which scores are better",
        complete=all(part.complete for part in parts),
        parts=tuple(parts),
        weights=weights,
    )


def _shared(told: Sequence[str | None]) -> str | None:
    """Return a fact of several tasks: a digest if they differ, None if one does not tell it."""
    return None if None in told else told[0] if len({*told}) == 1 else digest(*told)[:12]


@dataclass(frozen=True, kw_only=True)
class ResultRun:
    """What one path holds: a run of a tool."""

    path: Path
    tool: str  # with its version, if known
    model: str = ""
    series: tuple[Series, ...] = ()
    groups: Mapping[str, Group] = field(default_factory=dict)
    remarks: tuple[str, ...] = ()

    def find(self, task: str, metric: str, filter_: str = "") -> Series:
        """Return the series of a metric, alone or with its filter as in ``acc,none``; errors list what there is.

        A group of tasks is one series, averaged as the tool does: by size, unless its own value is that by task.
        """
        if task in self.groups:
            return self._joined(task, [self.find(each, metric, filter_) for each in self.groups[task].tasks])
        of_task = [each for each in self.series if each.task == task]
        self._require("dataset", "the results have no task", task, [*[each.task for each in self.series], *self.groups])
        called = [(each.metric, f"{each.metric},{each.filter or 'none'}") for each in of_task]
        self._require(
            "metric",
            f"the task {task!r} has no metric",
            metric,
            [name for name, _ in called],
            *(full for _, full in called),
        )
        named = [each for each, names in zip(of_task, called, strict=True) if metric in names]
        filters = list(dict.fromkeys(each.filter or "none" for each in named))
        if filter_:
            self._require("variant", f"{metric} of the task {task!r} has no filter", filter_, filters)
            named = [each for each in named if (each.filter or "none") == filter_]
        elif len(filters) > 1:
            message = f"{metric} of the task {task!r} has several filters: expected one of {', '.join(filters)}"
            raise ConfigError.of("variant", f"{self.path}: {message}")
        where = f"{self.path}: {task}: {named[0].label}"
        if len(named) > 1:
            raise DataError(f"{where} is there twice: name the file or the folder of one run")
        if named[0].refused:
            raise DataError(f"{where} cannot be judged: {named[0].refused}")
        return named[0]

    def _joined(self, name: str, parts: Sequence[Series]) -> Series:
        if len(parts) == 1:
            return replace(parts[0], task=name)
        sizes = [len(part.rows) for part in parts]
        means = [math.fsum(row.score for row in part.rows) / len(part.rows) for part in parts]
        by_size = math.fsum(mean * size for mean, size in zip(means, sizes, strict=True)) / sum(sizes)
        averages: dict[Weights, float] = {"size": by_size, "task": math.fsum(means) / len(means)}
        told = self.groups[name].values.get(parts[0].label)
        for weights, value in averages.items():
            if not isinstance(told, int | float) or _is_same(told, value):
                return joined(name, parts, weights)
        raise DataError(
            f"{self.path}: {name}: {parts[0].label}: the tool's value is {told:.6g}, but the mean of its tasks is "
            f"{averages['size']:.6g} by size and {averages['task']:.6g} by task: rows or tasks are missing"
        )

    def _require(self, argument: str, lacking: str, name: str, known: Sequence[str], *others: str) -> None:
        if name not in (*known, *others):
            listed = ", ".join(dict.fromkeys(known))
            raise ConfigError.of(argument, f"{self.path}: {lacking} {name!r}{nearest(name, known)}; it has {listed}")


@dataclass(frozen=True)
class Columns:
    """The columns of a table that hold a row's id, its score and its cluster."""

    id: str = ""
    score: str = ""
    cluster: str = ""


def read(path: Path, columns: Columns = Columns()) -> ResultRun:
    """Read the results in a file or folder; DataError if no format takes it, or something in it cannot be."""
    for reader in _readers():
        try:
            run = reader(path, columns)
        except OSError as error:
            raise DataError(f"{path}: cannot be read: {error.strerror or error}") from None
        except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
            # The files are another tool's: any value may be there in place of the one that a format has.
            kind = reader.__module__.rpartition(".")[2].replace("_", " ")
            raise DataError(
                f"{path}: something in it is not as {kind} have it ({type(error).__name__}: {error}); was it edited, "
                "or written by another version of the tool?"
            ) from error
        if run is not None:
            if not run.series:
                raise DataError(f"{path}: expected rows with scores, got none")
            return run
    raise DataError(
        f"{path}: expected the results of lm-eval (--log_samples), inspect_ai, lighteval (--save-details) or "
        f"Every Eval Ever, or a .jsonl, .csv or .parquet file whose columns are named: --id and --score, or id: "
        f"and score: under results: of a model; got "
        f"{'none of them' if path.exists() else 'nothing of this name'}"
    )


def _readers() -> Iterator[Callable[[Path, Columns], ResultRun | None]]:
    for module in _FORMATS:
        yield import_module(f"pytest_lmgate.data.results.{module}").read
    for point in entry_points(group="pytest_lmgate.results"):  # which takes time, so only where no format of ours fits
        yield point.load()


class Collected:
    """Collects the rows of a task, metric by metric."""

    def __init__(self) -> None:
        self._rows: dict[tuple[str, str], list[ResultRow]] = defaultdict(list)
        self._corpus: set[tuple[str, str]] = set()

    def add(self, metric: str, filter_: str, score: object, row: ResultRow, where: object) -> None:
        """Add a row with its score; a list or mapping in place of one is of a metric of the whole corpus."""
        if isinstance(score, (list, dict)):
            self._corpus.add((metric, filter_))
            self._rows.setdefault((metric, filter_), [])
        elif isinstance(score, (int, float)) and math.isfinite(score):
            self._rows[metric, filter_].append(msgspec.structs.replace(row, score=float(score)))
        else:
            hint = "; a failed request is not a wrong answer" if score is None else ""
            raise DataError(f"{where}: {metric}: expected a finite number as score, got {score!r:.60}{hint}")

    def series(
        self,
        task: str,
        told: Callable[[str, str], Told] = lambda *_: Told(),
        *,
        complete: bool = False,
    ) -> list[Series]:
        """Return the rows of each metric with what is `told` of it, by its name and filter."""
        found = []
        for (metric, filter_), rows in self._rows.items():
            said, refused = told(metric, filter_), ""
            mean = math.fsum(row.score for row in rows) / max(1, len(rows))
            if (metric, filter_) in self._corpus:
                refused = "it is a metric of the whole corpus, and its rows hold no scores of their own"
            elif said.value is None and any(part in metric for part in _NO_MEANS):
                refused = "it is not a mean over rows"
            elif said.value is not None and not _is_same(said.value, mean):
                refused = (
                    f"the tool's value is {said.value:.6g}, the mean of its rows {mean:.6g}: rows are missing, or it "
                )
                refused += "is not a mean over rows"
            found.append(
                Series(
                    task=task,
                    metric=metric,
                    filter="" if filter_ == "none" else filter_,
                    rows=tuple(sorted(rows, key=_place)),
                    direction=_direction(metric, said.higher),
                    facts=said.facts,
                    refused=refused,
                    complete=complete,
                )
            )
        return found


def _is_same(told: float, mean: float) -> bool:
    return math.isclose(told, mean, rel_tol=1e-6, abs_tol=1e-9)


def _place(row: ResultRow) -> list[tuple[int, str]]:
    """Return by what rows are ordered: a tool may write them as they end, and a baseline needs one order."""
    if row.id.isdecimal() and len(row.id) < 19:  # most are, and what follows takes five times as long
        return [(-1, ""), (int(row.id), ""), (-1, "")]
    return [(int(part), "") if part.isdecimal() else (-1, part) for part in re.split(r"(\d{1,18})", row.id)]


def _direction(metric: str, higher: bool | None) -> Direction | None:
    """Return which scores are better: as the tool says, else by the words of the metric's name, if they agree."""
    if higher is None:
        words = {word.rstrip("0123456789") or word for word in re.split(r"[^a-z0-9]+", metric.lower())} | {
            metric.lower()
        }
        ups, downs = bool(words & _HIGHER or metric == "score"), bool(words & _LOWER)
        higher = ups if ups != downs else None
    return None if higher is None else "higher" if higher else "lower"


def digest(*parts: object) -> str:
    """Return a digest of values by their JSON."""
    return hashlib.sha256(canonical(parts).encode()).hexdigest()


def canonical(value: object) -> str:
    """Return a text that is the same for equal settings, without addresses of functions."""
    return re.sub(r" at 0x[0-9a-f]+", "", json.dumps(value, sort_keys=True, default=str))


def tags_of(columns: object) -> Mapping[str, str]:
    """Return the tags that a document names."""
    if not isinstance(columns, dict):
        return {}
    found = {name: columns[name] for name in _TAGS if name in columns}
    return {name: str(value)[:100] for name, value in found.items() if isinstance(value, str | int)}


def require_small(path: Path) -> None:
    if path.stat().st_size > MOST_BYTES:
        raise DataError(f"{path}: expected at most {MOST_BYTES:,} bytes, got {path.stat().st_size:,}")


def read_json(path: Path) -> dict[str, Any]:
    require_small(path)
    return json_object(path.read_bytes(), path)


def from_json(text: bytes, where: object, decode: Callable[[bytes], Any] = msgspec.json.decode) -> Any:
    try:
        return decode(text)
    except msgspec.ValidationError as error:
        raise DataError(f"{where}: not what this format has there: {error}") from None
    except (msgspec.DecodeError, ValueError) as error:
        raise DataError(f"{where}: not JSON: {error}; was the file cut?") from None
    except RecursionError:
        raise DataError(f"{where}: nested too deeply to be read as JSON") from None


def json_object(text: bytes, where: object) -> dict[str, Any]:
    # A standard error that is NaN, as tools write it, is no reason to refuse a file; a score is.
    value = from_json(text, where, json.loads if b"NaN" in text else msgspec.json.decode)
    if not isinstance(value, dict):
        raise DataError(f"{where}: expected a JSON object, got {type(value).__name__}")
    return value


class Line(NamedTuple):
    """A line of a JSONL file, and where it is."""

    text: bytes
    path: Path
    number: int
    offset: int

    def __str__(self) -> str:
        return f"{self.path}:{self.number}"


def lines_of(path: Path) -> Iterator[Line]:
    """Return the lines of a JSONL file that are not blank."""
    offset = 0
    with path.open("rb") as file:
        for number, text in enumerate(iter(partial(file.readline, _MOST_LINE + 1), b""), 1):
            if len(text) > _MOST_LINE or offset > MOST_BYTES:
                raise DataError(f"{path}:{number}: expected at most {_MOST_LINE:,} bytes a line, {MOST_BYTES:,} in all")
            if not text.isspace():
                yield Line(text, path, number, offset)
            offset += len(text)


def line_again(path: Path, offset: int) -> dict[str, Any]:
    """Return the object of a line that was read: its texts are needed only if they are shown."""
    with path.open("rb") as file:
        file.seek(offset)
        return json_object(file.readline(_MOST_LINE), path)
