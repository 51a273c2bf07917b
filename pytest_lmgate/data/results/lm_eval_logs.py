"""lm-evaluation-harness: what ``--log_samples --output_path`` writes, tested with 0.4.13.

``samples_TASK_DATE.jsonl`` has the rows, one for each document and filter, and ``results_DATE.json`` beside it how they
were made, the harness's own averages and a hash of all rows, by which rows that were changed or cut are found.
"""

from __future__ import annotations

import contextlib
import hashlib
import re
from collections.abc import Iterator, Mapping, Sequence, Set
from functools import cache, partial
from pathlib import Path
from typing import Any

import msgspec

from pytest_lmgate.data.results import rows
from pytest_lmgate.errors import DataError

_SAMPLES = re.compile(rf"samples_(.+)_({rows.DATE})\.jsonl")
_RESULTS = re.compile(rf"results_({rows.DATE})\.json")


class _Requests(msgspec.Struct):
    gen_args_0: dict[str, msgspec.Raw] = {}  # arg_1 is the choice, or the settings of generation


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


def read(path: Path, columns: rows.Columns) -> rows.ResultRun | None:
    """Read a folder, the samples of one task, or a results file with the samples of its run."""
    of_run = _RESULTS.fullmatch(path.name)
    files = path.parent.glob(f"samples_*_{of_run[1]}.jsonl") if of_run else rows.files_of(path, rows.FILES["lm-eval"])
    tasks, date, remarks = rows.newest(path, files, _SAMPLES)
    if not tasks:
        if any(path.rglob("results_*.json")) and not any(path.rglob(rows.FILES["lighteval"])):
            raise DataError(f"{path}: it has averages, but no rows: run lm_eval with --log_samples")
        return None
    folder = next(iter(tasks.values())).parent
    beside = next(folder.glob(f"*_{date}.json"), None)  # called results, or as --output_path says
    results = {} if beside is None else rows.read_json(beside)
    if beside and "configs" not in results:
        raise DataError(f"{beside}: expected the results of lm-evaluation-harness, got a file without configs")
    if path.is_dir() and (lost := sorted(results.get("configs", {}).keys() - tasks.keys())):
        raise DataError(f"{beside}: the run has no samples of {', '.join(lost[:5])}: it is not whole")
    series = tuple(each for task, file in tasks.items() for each in _series(task, file, results))
    tool, model = f"lm-eval {results.get('lm_eval_version') or ''}".strip(), str(results.get("model_name") or "")
    groups = _groups(tasks.keys(), results)
    return rows.ResultRun(path=path, tool=tool, model=model, date=date, series=series, groups=groups, remarks=remarks)


def _series(task: str, file: Path, results: rows.Json) -> list[rows.Series]:
    collected, hashes, documents = rows.Collected(), hashlib.sha256(), set()
    generation: set[bytes] = set()  # the settings of the rows, one in general
    for where, offset, sample in _samples(file):
        hashes.update(f"{sample.doc_hash}{sample.prompt_hash}{sample.target_hash}".encode())
        documents.add(sample.doc_id)
        if not sample.filtered_resps or None in sample.filtered_resps:
            raise DataError(f"{where}: the model gave no response, so the request failed: run it again")
        for response in sample.filtered_resps:
            if isinstance(response, list) and response and str(response[0]).lower() in ("nan", "none"):
                raise DataError(f"{where}: the model's log-likelihood is NaN or missing")
        if isinstance(sample.filtered_resps[0], str):  # a text that was generated
            generation.add(bytes(sample.arguments.gen_args_0.get("arg_1", b"null")))
        row = rows.ResultRow(
            str(sample.doc_id),
            document=sample.doc_hash,
            prompt=f"{sample.prompt_hash}{sample.target_hash}",
            tags=rows.tags_of(sample.doc),
            texts=partial(_texts, file, offset),
        )
        for metric in sample.metrics:
            collected.add(metric, sample.filter, getattr(sample, _attribute(metric)), row, where)
    hashed = results.get("task_hashes", {}).get(task)
    if hashed is not None and hashed != hashes.hexdigest():
        raise DataError(f"{file}: its rows do not have the hash in the results file: rows were changed, moved or cut")
    expected = results.get("n-samples", {}).get(task, {}).get("effective")
    if expected is not None and expected != len(documents):
        raise DataError(f"{file}: expected {expected} documents, as in the results file, got {len(documents)}")
    settings = sorted({rows.canonical(msgspec.json.decode(each)) for each in generation})
    return collected.series(task, partial(_told, task, results, ", ".join(settings) or "none"))


def _samples(file: Path) -> Iterator[tuple[str, int, Any]]:
    """Return the rows of a file, each with the scores of its metrics as attributes, and where it is."""
    known = frozenset[str]()
    for where, text, offset in rows.lines_of(file):
        sample = rows.from_json(text, where, _decoder(known).decode)
        if not known.issuperset(sample.metrics):  # the first row, or one of other metrics
            known |= {*sample.metrics}
            sample = rows.from_json(text, where, _decoder(known).decode)
        yield where, offset, sample


@cache
def _decoder(metrics: frozenset[str]) -> msgspec.json.Decoder[Any]:
    fields = [(_attribute(metric), Any, msgspec.field(name=metric, default=None)) for metric in metrics]
    return msgspec.json.Decoder(msgspec.defstruct("_Scored", fields, bases=(_Sample,)))


@cache
def _attribute(metric: str) -> str:
    return f"score_{metric.encode().hex()}"  # of any name, as pass@1


def _texts(file: Path, offset: int) -> rows.Texts:
    with file.open("rb") as opened:
        opened.seek(offset)
        sample = rows.json_object(opened.readline(), file)
    arguments, responses = sample["arguments"], sample["filtered_resps"]
    output = responses[0]
    with contextlib.suppress(IndexError, TypeError, ValueError):  # a text, or several
        if isinstance(output, list):  # of choices, the most likely
            best = max(range(len(responses)), key=lambda at: float(responses[at][0]))
            output = arguments.get(f"gen_args_{best}", {}).get("arg_1", "")
    return str(arguments.get("gen_args_0", {}).get("arg_0", "")), str(sample.get("target", "")), str(output)


def _told(task: str, results: rows.Json, settings: str, metric: str, filter_: str) -> rows.Told:
    config = results.get("configs", {}).get(task)
    if config is None:
        return rows.Told(facts=rows.Facts(generation_settings=settings))
    metrics = [each for each in config.get("metric_list") or () if each.get("metric") == metric]
    filters = [each for each in config.get("filter_list") or () if each.get("name") == filter_]
    shots = results.get("n-shot", {}).get(task)
    seed = results.get("config", {}).get("fewshot_seed") if shots else "none"  # of no examples
    facts = rows.Facts(
        task_version=str(results.get("versions", {}).get(task)),
        metric_definition=rows.canonical([metrics, config.get("process_results"), config.get("output_type")]),
        filter_or_solver=rows.canonical(filters),
        number_of_shots=None if shots is None else str(shots),
        fewshot_seed=None if seed is None else str(seed),
        generation_settings=settings,
        repeats=str(config.get("repeats", 1)),
    )
    value = results.get("results", {}).get(task, {}).get(f"{metric},{filter_}")
    higher = results.get("higher_is_better", {}).get(task, {}).get(metric)
    return rows.Told(facts=facts, value=value, higher=higher, complete=task in results.get("task_hashes", {}))


def _groups(tasks: Set[str], results: rows.Json) -> dict[str, rows.Group]:
    """Return the groups whose tasks are all here, with the harness's own averages."""
    members: Mapping[str, Sequence[str]] = results.get("group_subtasks", {})

    def leaves(name: str, above: tuple[str, ...] = ()) -> list[str]:
        inside = [] if name in above else members.get(name, ())
        return [task for each in inside for task in leaves(each, (*above, name))] or [name]

    found = {}
    for name in members.keys() - tasks:
        if tasks >= {*(inside := dict.fromkeys(leaves(name)))}:
            found[name] = rows.Group(tuple(inside), {**results.get("results", {}).get(name, {})})
    return found
