"""Results as rows: the records that every format becomes, and `read`, which finds the format of a path.

A format is a module with one function, from a path and `Columns` to a `ResultRun`; it returns None for a path that is
not of its format. Packages register more by entry points of the group ``pytest_lmgate.results``. Files are data:
nothing in them is run or unpickled, nothing is unpacked to disk, and what is read at once has a limit.
"""

from __future__ import annotations

import codecs
import contextlib
import hashlib
import json
import math
import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from importlib import import_module
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any, Literal

import msgspec
from msgspec.structs import replace

from pytest_lmgate.errors import ConfigError, DataError, nearest
from pytest_lmgate.settings.metrics import Direction

_FORMATS = ("lm_eval_logs", "inspect_logs", "lighteval_details", "every_eval_ever", "tables")
_TAGS = ("subject", "subtask", "category", "subset", "level", "difficulty", "language", "domain", "type")
NAMED = "--id and --score, or id: and score: under results:"
"""How columns are named."""
DATE = r"\d{4}-\d\d-\d\dT\d\d-\d\d-\d\d(?:\.\d+)?"
"""As tools write it into names of files."""
_AVERAGES = re.compile(rf".+_({DATE})\.json")
FILES = {"lm-eval": "samples_*.jsonl", "lighteval": "details_*.parquet", "inspect_ai": "*.eval"}
"""Names of the files that hold a tool's rows."""
MOST_BYTES, MOST_LINE = 2**31, 2**26
"""Bytes of a file, or of all that is read of an archive; and of a line."""
_LOWER = {"loss", "error", "errors", "perplexity", "ppl", "wer", "cer", "ter", "brier", "distance", "bits", "toxicity"}
_HIGHER = {"acc", "accuracy", "exact", "match", "em", "f", "rouge", "correct", "pass", "includes", "recall",
           "precision"}  # fmt: skip
_OTHER = "was it edited, or written by another version of the tool?"
_NO_MEANS = ("perplexity", "bits_per_byte")
_INFINITE = 1e100  # what tools write for infinity is larger, and its squares have no sum
Json = Mapping[str, Any]
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
    score: float = math.nan  # of a metric of the whole corpus, a row has none

    @property
    def unit(self) -> str:
        """The name of its cluster."""
        return self.cluster or self.document or self.id


class Facts(msgspec.Struct, frozen=True, kw_only=True):
    """What two comparable runs share; None if the file does not tell it. Names are shown, without underscores."""

    task_version: str | None = None
    metric_definition: str | None = None
    filter_or_solver: str | None = None
    number_of_shots: str | None = None
    fewshot_seed: str | None = None
    generation_settings: str | None = None
    repeats: str | None = None


class Told(msgspec.Struct, frozen=True, kw_only=True):
    """What a tool tells of one of its metrics."""

    facts: Facts = Facts()
    value: float | None = None  # the tool's own average of the rows
    higher: bool | None = None  # whether higher is better
    complete: bool = False  # whether the tool says that every row was measured and is here


class Series(msgspec.Struct, frozen=True, kw_only=True):
    """The rows of one metric of a task, under one filter."""

    task: str
    metric: str
    filter: str = ""
    tool: str = ""  # of the run
    run: str = ""  # when it was, or its id; empty if the files do not tell
    remarks: tuple[str, ...] = ()  # of the run
    rows: tuple[ResultRow, ...] = ()
    direction: Direction | None = None  # which scores are better; None if neither the file nor the name tells it
    facts: Facts = Facts()
    refused: str = ""  # why the rows cannot be judged
    complete: bool = False  # as it is told
    parts: tuple[Series, ...] = ()  # of a group of tasks, these; the rows are theirs
    weights: Weights | None = None  # of a group, whether each row counts alike, or each task

    @property
    def label(self) -> str:
        """The metric with its filter, as lm-evaluation-harness writes it."""
        return f"{self.metric},{self.filter}" if self.filter else self.metric

    @property
    def name(self) -> str:
        return self.task

    @property
    def title(self) -> str:
        return f"{self.task}: {self.label}"


class Group(msgspec.Struct, frozen=True):
    """Tasks that a tool averages."""

    tasks: tuple[str, ...]
    values: Mapping[str, object] = {}  # the tool's own averages, by the metric's label


def joined(name: str, parts: Sequence[Series], weights: Weights) -> Series:
    """Return the rows of the tasks of a group as one series.

    The task is a tag of each row and a part of its cluster: a document of one task is not that of another.
    """
    facts = {name: _shared([getattr(part.facts, name) for part in parts]) for name in Facts.__struct_fields__}
    agree = len({part.direction for part in parts}) == 1
    return replace(
        parts[0],
        task=name,
        rows=tuple(
            replace(row, tags={**row.tags, "task": part.task}, cluster=f"{part.task} {row.unit}")
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


class ResultRun(msgspec.Struct, frozen=True, kw_only=True):
    """What one path holds: a run of a tool."""

    path: Path
    tool: str  # with its version, if known
    model: str = ""
    date: str = ""  # empty if its series tell their run, or nothing does
    series: tuple[Series, ...] = ()
    groups: Mapping[str, Group] = {}
    remarks: tuple[str, ...] = ()

    def chosen(self, tasks: Sequence[str], metrics: Sequence[str], options: tuple[str, str]) -> list[Series]:
        """Return the series of tasks, or groups of tasks, and of metrics, alone or with a filter as in ``acc,none``.

        All are chosen if none is named. An error about a task or a metric is one of its option.
        """

        def names_of_task(each: Series) -> set[str]:
            return {each.task, *(name for name, group in self.groups.items() if each.task in group.tasks)}

        def names_of_metric(each: Series) -> set[str]:
            return {each.metric, f"{each.metric},{each.filter or 'none'}"}

        of_tasks = _wanted(self.series, names_of_task, tasks, options[0], f"{self.path} has no task")
        where = f"{self.path}: {', '.join(tasks)}" if tasks else f"{self.path}"
        return _wanted(of_tasks, names_of_metric, metrics, options[1], f"{where} has no metric")

    def find(self, task: str, metric: str, filter_: str = "") -> Series:
        """Return the series of a metric.

        A group of tasks is one series, averaged as the tool does: by size, unless its own value is that by task.
        """
        if task in self.groups:
            return self._joined(task, [self.find(each, metric, filter_) for each in self.groups[task].tasks])
        filters = {each.filter or "none": each for each in self.chosen([task], [metric], ("dataset", "metric"))}
        found = filters.get(filter_) if filter_ or len(filters) > 1 else next(iter(filters.values()))
        if found is None:
            known = ", ".join(filters)
            several = f"several filters: expected one of {known}"
            lacking = f"no filter {filter_!r}{nearest(filter_, filters)}; it has {known}" if filter_ else several
            raise ConfigError.of("variant", f"{self.path}: {metric} of the task {task!r} has {lacking}")
        if found.refused:
            raise DataError(f"{self.path}: {found.title} cannot be judged: {found.refused}")
        return found

    def _joined(self, name: str, parts: Sequence[Series]) -> Series:
        if len(parts) == 1:
            return replace(parts[0], task=name)
        by_task = math.fsum(_mean(part.rows) for part in parts) / len(parts)
        averages: dict[Weights, float] = {"size": _mean([row for part in parts for row in part.rows]), "task": by_task}
        values, label = self.groups[name].values, parts[0].label
        told = values.get(label, values.get(f"{label},none"))
        for weights, value in averages.items():
            if not isinstance(told, int | float) or _is_same(told, value):
                return joined(name, parts, weights)
        raise DataError(
            f"{self.path}: {name}: {label}: the tool's value is {told:.6g}, but the mean of its tasks is "
            f"{averages['size']:.6g} by size and {averages['task']:.6g} by task: rows or tasks are missing"
        )


def _wanted(
    series: Sequence[Series], names_of: Callable[[Series], set[str]], wanted: Sequence[str], option: str, lacking: str
) -> list[Series]:
    """Return the series that have a wanted name, or all if none is wanted; ConfigError if a name is of no series."""
    known = sorted({name for each in series for name in names_of(each)})
    for name in sorted({*wanted}.difference(known)):
        listed = ", ".join(each for each in known if not each.endswith(",none"))
        raise ConfigError.of(option, f"{lacking} {name!r}{nearest(name, known)}; it has {listed}")
    return [each for each in series if not wanted or names_of(each).intersection(wanted)]


class Columns(msgspec.Struct, frozen=True):
    """The columns of a table that hold a row's id, its score and its cluster."""

    id: str = ""
    score: str = ""
    cluster: str = ""


def read(path: Path, columns: Columns | None = None) -> ResultRun:
    """Read the results in a file or folder; DataError if no format takes it, or something in it cannot be."""
    if len(tools := [tool for tool, pattern in FILES.items() if any(path.rglob(pattern))]) > 1:
        raise DataError(f"{path}: results of several tools, {' and '.join(tools)}: name the file or folder of one run")
    for reader in _readers():
        try:
            run = reader(path, columns or Columns())
        except OSError as error:
            raise DataError(f"{path}: cannot be read: {error.strerror or error}") from None
        except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
            # The files are another tool's: any value may be there in place of the one that a format has.
            kind = reader.__module__.rpartition(".")[2].replace("_", " ")
            raise DataError(
                f"{path}: something in it is not as {kind} have it ({type(error).__name__}: {error}); {_OTHER}"
            ) from error
        if run is not None:
            if not run.series:
                raise DataError(f"{path}: expected rows with scores, got none")
            (title, count), *_ = Counter(each.title for each in run.series).most_common(1)
            if count > 1:
                raise DataError(f"{path}: {title} is there twice: name the file or the folder of one run")
            name = f"{run.model} {run.date}".strip() if run.date else ""
            facts = {"tool": run.tool, "remarks": run.remarks}
            return replace(run, series=tuple(replace(each, run=each.run or name, **facts) for each in run.series))
    got = "none of them" if path.exists() else "nothing of this name"
    raise DataError(
        f"{path}: expected the results of lm-eval (--log_samples), inspect_ai, lighteval (--save-details) or "
        f"Every Eval Ever, or a .jsonl, .csv or .parquet file whose columns are named: {NAMED} of a model; got {got}"
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

    def add(self, metric: str, filter_: str, score: object, row: ResultRow, where: object) -> None:
        """Add a row with its score; a list or mapping in place of one is of a metric of the whole corpus."""
        if isinstance(score, (int, float)) and -_INFINITE < score < _INFINITE:
            row = replace(row, score=float(score))
        elif not isinstance(score, (list, dict)):
            hint = "; a failed request is not a wrong answer" if score is None else ""
            raise DataError(f"{where}: {metric}: expected a finite number as score, got {score!r:.60}{hint}")
        self._rows[metric, filter_].append(row)

    def series(self, task: str, told: Callable[[str, str], Told] = lambda *_: Told()) -> list[Series]:
        """Return the rows of each metric with what is `told` of it, by its name and filter."""
        found = []
        for (metric, filter_), rows in self._rows.items():
            said, mean, refused = told(metric, filter_), _mean(rows), ""
            if math.isnan(mean):
                refused = "it is a metric of the whole corpus, and its rows hold no scores of their own"
            elif said.value is None and any(part in metric for part in _NO_MEANS):
                refused = "it is not a mean over rows"
            elif said.value is not None and not _is_same(said.value, mean):
                refused = f"the tool's value is {said.value:.6g}, the mean of its rows {mean:.6g}: "
                refused += "rows are missing or there twice, or it is not a mean over rows"
            found.append(
                Series(
                    task=task,
                    metric=metric,
                    filter="" if filter_ == "none" else filter_,
                    rows=tuple(sorted(rows, key=_place)),
                    direction=_direction(metric, said.higher),
                    facts=said.facts,
                    refused=refused,
                    complete=said.complete,
                )
            )
        return found


def _mean(rows: Sequence[ResultRow]) -> float:
    return math.fsum(row.score for row in rows) / max(1, len(rows))


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
        name = metric.lower()
        words = {name, *(word.rstrip("0123456789") for word in re.split(r"[^a-z0-9]+", name))}
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
    found = {name: columns[name] for name in _TAGS if name in columns} if isinstance(columns, dict) else {}
    return {name: str(value)[:100] for name, value in found.items() if isinstance(value, str | int)}


def require_small(path: Path) -> None:
    if path.stat().st_size > MOST_BYTES:
        raise DataError(f"{path}: expected at most {MOST_BYTES:,} bytes, got {path.stat().st_size:,}")


def read_json(path: Path) -> dict[str, Any]:
    require_small(path)
    return json_object(path.read_bytes(), path)


def from_json(text: bytes, where: object, decode: Callable[[bytes], Any] = msgspec.json.decode) -> Any:
    text = text.removeprefix(codecs.BOM_UTF8)  # which Windows may have put there
    try:
        return decode(text)
    except msgspec.ValidationError as error:
        raise DataError(f"{where}: not what this format has there: {error}; {_OTHER}") from None
    except (msgspec.DecodeError, ValueError) as error:
        with contextlib.suppress(ValueError, RecursionError):
            json.loads(text.decode())  # which takes NaN, as Python's tools write it
            raise DataError(f"{where}: expected finite numbers, got NaN or Infinity: measure the row again") from None
        raise DataError(f"{where}: not JSON: {error}; was the file cut?") from None
    except RecursionError:
        raise DataError(f"{where}: nested too deeply to be read as JSON") from None


def json_object(text: bytes, where: object) -> dict[str, Any]:
    # A standard error that is NaN, as tools write it, is no reason to refuse a file; a score is.
    value = from_json(text, where, json.loads if b"NaN" in text else msgspec.json.decode)
    if not isinstance(value, dict):
        raise DataError(f"{where}: expected a JSON object, got {type(value).__name__}")
    return value


def files_of(path: Path, pattern: str, *begin: bytes) -> list[Path]:
    """Return a file, or the files of a folder, of some name and with some words at their beginning."""
    files = sorted(path.rglob(pattern)) if path.is_dir() else [path] if path.match(pattern) else []
    return [file for file in files if not begin or (file.is_file() and _begins(file, begin))]


def _begins(file: Path, words: Sequence[bytes]) -> bool:
    with file.open("rb") as opened:
        begin = opened.read(8192)
    return all(word in begin for word in words)


def newest(path: Path, files: Iterable[Path], name: re.Pattern[str]) -> tuple[dict[str, Path], str, tuple[str, ...]]:
    """Return one run's file of each task, its date, and remarks; `name` has a task and a date.

    It is the newest run if it has all tasks of the others, which are in its folder and so the same model's. A newer run
    that has only averages is an error: the rows beside it are another model's.
    """
    runs: dict[tuple[str, Path], dict[str, Path]] = defaultdict(dict)
    for file in sorted(files):
        if match := name.fullmatch(file.name):
            runs[match[2], file.parent][match[1]] = file
    date, folder = last = max(runs, default=("", path))  # if there is none, a run without tasks
    if any(other != folder or tasks.keys() - runs[last].keys() for (_, other), tasks in runs.items()):
        listed = [f"{other.relative_to(path)} of {at} ({len(tasks)} tasks)" for (at, other), tasks in runs.items()]
        raise DataError(
            f"{path}: it has {len(runs)} runs, of several models or of several tasks: name the folder of one run, or "
            f"its results_DATE.json if lm-eval wrote it; they are {', '.join(listed):.600}"
        )
    others = ((file, _AVERAGES.fullmatch(file.name)) for file in (path.rglob("*.json") if runs else ()))
    if averages := next((file for file, at in others if at and at[1] > date), None):
        raise DataError(
            f"{averages}: a run without rows, newer than all runs with rows, the last of {date}: measure it "
            "again with --log_samples of lm_eval or --save-details of lighteval, or name the folder of another run"
        )
    remark = f"{path}: {len(runs)} runs of one model; the newest is judged, of {date}"
    return runs[last], date, (remark,) if len(runs) > 1 else ()


def lines_of(path: Path) -> Iterator[tuple[str, bytes, int]]:
    """Return the lines of a JSONL file that are not blank: where each is, its text and its offset."""
    require_small(path)
    offset = 0
    with path.open("rb") as file:
        for number, text in enumerate(file, 1):
            if len(text) > MOST_LINE:
                raise DataError(f"{path}:{number}: expected at most {MOST_LINE:,} bytes a line, got {len(text):,}")
            if not text.isspace():
                yield f"{path}:{number}", text, offset
            offset += len(text)
