"""lm-evaluation-harness: what ``--log_samples --output_path`` writes, tested with 0.4.13.

``samples_TASK_DATE.jsonl`` has the rows, one for each document and filter, and ``results_DATE.json`` beside it how they
were made, the harness's own averages and a hash of all rows, by which rows that were changed or cut are found.
"""

from __future__ import annotations

import contextlib
import hashlib
import re
from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from functools import cache, partial
from pathlib import Path
from typing import Any

import msgspec

from pytest_lmgate.data.results import rows
from pytest_lmgate.data.results.rows import Columns, Facts, Group, Line, ResultRow, ResultRun, Series, Told
from pytest_lmgate.errors import DataError

_DATE = r"\d{4}-\d\d-\d\dT\d\d-\d\d-\d\d(?:\.\d+)?"
_SAMPLES = re.compile(rf"samples_(.+)_({_DATE})\.jsonl")
_RESULTS = re.compile(rf"results_({_DATE})\.json")
_Json = Mapping[str, Any]


class _Request(msgspec.Struct):
    arg_1: Any = None  # the choice, or the settings of generation


class _Requests(msgspec.Struct):
    gen_args_0: _Request = msgspec.field(default_factory=_Request)


class _Sample(msgspec.Struct):
    """What is read of every row: its texts, most of the file, only if they are shown."""

    doc_id: int
    doc: Any
    filter: str
    metrics: list[str]
    arguments: _Requests
    filtered_resps: list[Any]
    doc_hash: str
    prompt_hash: str
    target_hash: str


def read(path: Path, columns: Columns) -> ResultRun | None:
    """Read a folder, the samples of one task, or a results file with the samples of its run."""
    if path.is_dir():
        files = [*path.rglob("samples_*.jsonl")]
        if not files and any(path.rglob("results_*.json")) and not any(path.rglob("details_*.parquet")):
            raise DataError(f"{path}: it has averages, but no rows: run lm_eval with --log_samples")
    else:
        of_run = _RESULTS.fullmatch(path.name)
        files = [path] if of_run is None else [*path.parent.glob(f"samples_*_{of_run[1]}.jsonl")]
    found = {file: match for file in sorted(files) if (match := _SAMPLES.fullmatch(file.name))}
    if not found:
        return None
    chosen, remarks = _newest(path, found)
    folder, date = chosen[0].parent, found[chosen[0]][2]
    beside = next(folder.glob(f"*_{date}.json"), None)  # called results, or as --output_path says
    results = {} if beside is None else rows.read_json(beside)
    if beside and "configs" not in results:
        raise DataError(f"{beside}: expected the results of lm-evaluation-harness, got a file without configs")
    tasks = {found[file][1]: file for file in chosen}
    if path.is_dir() and (lost := sorted(results.get("configs", {}).keys() - tasks.keys())):
        raise DataError(f"{beside}: the run has no samples of {', '.join(lost[:5])}: it is not whole")
    series = tuple(each for task, file in tasks.items() for each in _series(task, file, results))
    tool = f"lm-eval {results.get('lm_eval_version') or ''}".strip()
    model = str(results.get("model_name") or "")
    groups = _groups(tasks.keys(), results)
    return ResultRun(path=path, tool=tool, model=model, series=series, groups=groups, remarks=remarks)


def _newest(path: Path, found: Mapping[Path, re.Match[str]]) -> tuple[list[Path], tuple[str, ...]]:
    """Return the files of one run: the newest if it has all tasks of the others, which are the same model's."""
    runs: dict[tuple[str, Path], dict[str, Path]] = defaultdict(dict)
    for file, match in found.items():
        runs[match[2], file.parent][match[1]] = file
    newest = max(runs)
    if len({folder for _, folder in runs}) > 1 or any(tasks.keys() - runs[newest].keys() for tasks in runs.values()):
        listed = ", ".join(f"{folder.name} of {date} ({len(tasks)} tasks)" for (date, folder), tasks in runs.items())
        raise DataError(
            f"{path}: it has {len(runs)} runs, of several models or of several tasks: name the folder of one model, "
            f"or the results_DATE.json of one run; they are {listed:.600}"
        )
    remark = f"{path}: {len(runs)} runs of one model; the newest is judged, of {newest[0]}"
    return [*runs[newest].values()], (remark,) if len(runs) > 1 else ()


def _series(task: str, file: Path, results: _Json) -> list[Series]:
    collected, hashes, documents = rows.Collected(), hashlib.sha256(), set()
    generation: dict[str, Any] = {}  # the settings of the rows, one in general
    for line, sample in _samples(file):
        hashes.update(f"{sample.doc_hash}{sample.prompt_hash}{sample.target_hash}".encode())
        documents.add(sample.doc_id)
        _require_responses(sample, line)
        if isinstance(sample.filtered_resps[0], str):  # a text that was generated
            settings = sample.arguments.gen_args_0.arg_1
            generation.setdefault(repr(settings), settings)
        row = ResultRow(
            str(sample.doc_id),
            document=sample.doc_hash,
            prompt=f"{sample.prompt_hash}{sample.target_hash}",
            tags=rows.tags_of(sample.doc),
            texts=partial(_texts, file, line.offset),
        )
        for metric in sample.metrics:
            collected.add(metric, sample.filter, getattr(sample, metric, None), row, line)
    hashed = results.get("task_hashes", {}).get(task)
    if hashed is not None and hashed != hashes.hexdigest():
        raise DataError(
            f"{file}: its rows are not those that the results file of the run has a hash of: rows were changed, moved "
            "or cut"
        )
    expected = results.get("n-samples", {}).get(task, {}).get("effective")
    if expected is not None and expected != len(documents):
        raise DataError(f"{file}: expected {expected} documents, as in the results file, got {len(documents)}")
    told = partial(_told, task, results, sorted(map(rows.canonical, generation.values())))
    return collected.series(task, told, complete=hashed is not None)


def _samples(file: Path) -> Iterator[tuple[Line, Any]]:
    """Return the rows of a file, each with its metrics as attributes."""
    known = frozenset[str]()
    decoder = _decoder(known)
    for line in rows.lines_of(file):
        sample = rows.from_json(line.text, line, decoder.decode)
        if not known.issuperset(sample.metrics):  # the first row, or one of other metrics
            known |= {name for name in sample.metrics if name.isidentifier() and name not in _Sample.__struct_fields__}
            decoder = _decoder(known)
            sample = rows.from_json(line.text, line, decoder.decode)
        yield line, sample


@cache
def _decoder(metrics: frozenset[str]) -> msgspec.json.Decoder[Any]:
    fields = [(name, Any, None) for name in sorted(metrics)]
    return msgspec.json.Decoder(msgspec.defstruct("_Scored", fields, bases=(_Sample,)))


def _require_responses(sample: _Sample, where: Line) -> None:
    if not sample.filtered_resps or None in sample.filtered_resps:
        raise DataError(f"{where}: the model gave no response, so the request failed: run it again")
    for response in sample.filtered_resps:
        if isinstance(response, list) and response and str(response[0]).lower() in ("nan", "none"):
            raise DataError(f"{where}: the model's log-likelihood is NaN or missing")


def _texts(file: Path, offset: int) -> rows.Texts:
    sample = rows.line_again(file, offset)
    arguments, responses = sample["arguments"], sample["filtered_resps"]
    output = responses[0]
    with contextlib.suppress(IndexError, TypeError, ValueError):  # a text, or several
        if isinstance(output, list):  # of choices, the most likely
            best = max(range(len(responses)), key=lambda at: float(responses[at][0]))
            output = arguments.get(f"gen_args_{best}", {}).get("arg_1", "")
    return str(arguments.get("gen_args_0", {}).get("arg_0", "")), str(sample.get("target", "")), str(output)


def _told(task: str, results: _Json, generation: Sequence[str], metric: str, filter_: str) -> Told:
    settings, config = ", ".join(generation) or "none", results.get("configs", {}).get(task)
    if config is None:
        return Told(facts=Facts(generation_settings=settings))
    metrics = [each for each in config.get("metric_list") or () if each.get("metric") == metric]
    filters = [each for each in config.get("filter_list") or () if each.get("name") == filter_]
    shots = results.get("n-shot", {}).get(task)
    seed = results.get("config", {}).get("fewshot_seed") if shots else 0
    facts = Facts(
        task_version=str(results.get("versions", {}).get(task)),
        metric_definition=rows.canonical([metrics, config.get("process_results"), config.get("output_type")]),
        filter_or_solver=rows.canonical(filters),
        number_of_shots=None if shots is None else str(shots),
        fewshot_seed=None if seed is None else str(seed),
        generation_settings=settings,
        repeats=str(config.get("repeats", 1)),
    )
    value = results.get("results", {}).get(task, {}).get(f"{metric},{filter_}")
    return Told(facts=facts, value=value, higher=results.get("higher_is_better", {}).get(task, {}).get(metric))


def _groups(tasks: Collection[str], results: _Json) -> dict[str, Group]:
    """Return the groups whose tasks are all here, with the harness's own averages."""
    members: Mapping[str, Sequence[str]] = results.get("group_subtasks", {})

    def leaves(name: str, above: tuple[str, ...] = ()) -> list[str]:
        inside = [] if name in above else members.get(name, ())
        return [task for each in inside for task in leaves(each, (*above, name))] or [name]

    found = {}
    for name in members.keys() - tasks:
        if set(of_group := dict.fromkeys(leaves(name))) <= set(tasks):
            told = results.get("results", {}).get(name, {})
            found[name] = Group(tuple(of_group), {label.removesuffix(",none"): value for label, value in told.items()})
    return found
