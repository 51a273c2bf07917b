"""Results as rows: the records that every format becomes, and `read`, which finds the format of a path.

A format is a module with one function, from a path and `ReadOptions` to a `ResultRun`; it returns None for a path that
is not of its format. Packages register more by entry points of the group ``pytest_lmgate.results``. Files are data:
nothing in them is run or unpickled, nothing is unpacked to disk, and what is read at once has a limit.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from pytest_lmgate.errors import ConfigError, DataError, nearest
from pytest_lmgate.settings.metrics import Direction

FORMATS = {
    "lm-eval": "lm_eval_logs",
    "inspect": "inspect_logs",
    "lighteval": "lighteval_details",
    "every-eval-ever": "every_eval_ever",
    "table": "tables",
}
"""The module of each format; a table is asked last, since any file may be one."""
TAGS = ("subject", "subtask", "category", "subset", "level", "difficulty", "language", "domain", "type")
"""Columns, or keys of a document, that name a kind of row."""
_TAG = (str, int)
MOST_BYTES = 2**31
"""Bytes of a file, or of all that is read of an archive."""
_MOST_LINE = 2**26
_LOWER = ("loss", "error", "perplexity", "ppl", "wer", "cer", "ter", "brier", "edit_distance", "bits_per_byte", "toxic")
_HIGHER = ("acc", "exact", "match", "em", "f1", "rouge", "correct", "pass", "score", "includes", "recall", "precision")
Texts = tuple[str, str, str]
"""Prompt, reference and output."""


class ResultRow(msgspec.Struct, frozen=True):
    """One row of a metric; an empty text is unknown."""

    id: str  # as in the file; a repeat's has its number
    score: float
    document: str = ""  # digest of what was asked, the tool's own where it has one
    prompt: str = ""  # digest of what the model read, and of the target
    cluster: str = ""  # rows of one cluster are not independent; empty for the document's or the row's own
    tags: Mapping[str, str] = {}
    texts: Callable[[], Texts] = lambda: ("", "", "")  # made when they are shown


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
class Series:
    """The rows of one metric of a task, under one filter."""

    task: str
    metric: str
    filter: str = ""
    rows: tuple[ResultRow, ...] = ()
    direction: Direction | None = None  # which scores are better; None if neither the file nor the name tells it
    facts: Facts = Facts()
    group: str = ""  # outermost group of tasks
    refused: str = ""  # why the rows cannot be judged
    complete: bool = False  # whether the file says that every row was measured and is here

    @property
    def label(self) -> str:
        """The metric with its filter, as lm-evaluation-harness writes it."""
        return f"{self.metric},{self.filter}" if self.filter else self.metric


@dataclass(frozen=True, kw_only=True)
class ResultRun:
    """What one path holds: a run of a tool."""

    path: Path
    tool: str  # with its version, if known
    model: str = ""
    series: tuple[Series, ...] = ()
    remarks: tuple[str, ...] = ()


@dataclass(frozen=True)
class ReadOptions:
    """How to read a path; columns are for tables."""

    format: str = ""
    id: str = ""
    score: str = ""
    cluster: str = ""
    tags: tuple[str, ...] = ()


Reader = Callable[[Path, ReadOptions], ResultRun | None]


def read(path: Path, options: ReadOptions = ReadOptions()) -> ResultRun:
    """Read the results in a file or folder; DataError if no format takes it, or something in it cannot be."""
    if not path.exists():
        raise DataError(f"{path}: expected a file or folder of results, got nothing of this name")
    for _, reader in _readers(options.format):
        try:
            run = reader(path, options)
        except OSError as error:
            raise DataError(f"{path}: cannot be read: {error.strerror or error}") from None
        if run is not None:
            if not any(series.rows or series.refused for series in run.series):
                raise DataError(f"{path}: expected rows with scores, got none")
            return run
    known = "the results of lm-eval (--log_samples), inspect_ai, lighteval (--save-details) or Every Eval Ever"
    raise DataError(
        f"{path}: expected {options.format or known}, or a .jsonl, .csv or .parquet file with --id COLUMN and --score "
        "COLUMN"
    )


def _readers(name: str) -> Iterator[tuple[str, Reader]]:
    for known, module in FORMATS.items():
        if name in ("", known):
            yield known, import_module(f"pytest_lmgate.tools.judge_results.{module}").read
    if name not in FORMATS:  # which costs time, so only where none of ours takes the path
        others = {each.name: each for each in entry_points(group="pytest_lmgate.results")}
        if name and name not in others:
            known_names = [*FORMATS, *others]
            raise ConfigError.of("format", f"expected one of {', '.join(known_names)}{nearest(name, known_names)}")
        yield from ((each.name, each.load()) for each in others.values() if name in ("", each.name))


def digest(*parts: object) -> str:
    """Return a digest of values by their JSON."""
    text = json.dumps(parts, sort_keys=True, default=str, ensure_ascii=True)
    return hashlib.sha256(text.encode()).hexdigest()


def canonical(value: object) -> str:
    """Return a text that is the same for equal settings, without addresses of functions."""
    import re

    return re.sub(r" at 0x[0-9a-f]+", "", json.dumps(value, sort_keys=True, default=str, ensure_ascii=False))


def number(value: object, where: object, name: str) -> float:
    """Return a score, called by its column; a text, NaN or nothing is an error."""
    if isinstance(value, bool | int | float) and math.isfinite(value):
        return float(value)
    hint = "; a failed request is not a wrong answer" if value is None else ""
    raise DataError(f"{where}: {name}: expected a finite number as score, got {value!r:.60}{hint}")


def direction_of(metric: str, scores: Iterable[float] = (), higher: object = None) -> Direction | None:
    """Return which scores are better: as the tool says, by the metric's name, or higher for right-or-wrong rows."""
    if isinstance(higher, bool):
        return "higher" if higher else "lower"
    name = metric.lower()
    if any(part in name for part in _LOWER):
        return "lower"
    if any(part in name for part in _HIGHER):
        return "higher"
    listed = list(scores)
    return "higher" if listed and all(score in (0, 1) for score in listed) else None


def tags_of(columns: object, options: ReadOptions) -> Mapping[str, str]:
    """Return the tags that a document names."""
    if not isinstance(columns, Mapping):
        return {}
    return {
        name: str(value)
        for name in (options.tags or TAGS)
        if isinstance(value := columns.get(name), _TAG) and len(str(value)) <= 100
    }


def require_small(path: Path) -> None:
    if path.stat().st_size > MOST_BYTES:
        raise DataError(f"{path}: expected at most {MOST_BYTES:,} bytes, got {path.stat().st_size:,}")


def read_bytes(path: Path) -> bytes:
    require_small(path)
    return path.read_bytes()


def from_json(text: bytes, where: object, decode: Callable[[bytes], Any] = msgspec.json.decode) -> Any:
    try:
        return decode(text)
    except msgspec.ValidationError as error:
        raise DataError(f"{where}: not what this format has there: {error}") from None
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise DataError(f"{where}: not JSON: {error}; was the file cut?") from None
    except RecursionError:
        raise DataError(f"{where}: nested too deeply to be read as JSON") from None


def json_object(text: bytes, where: object) -> dict[str, Any]:
    value = from_json(text, where)
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
