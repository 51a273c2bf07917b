"""lm-evaluation-harness: what ``--log_samples --output_path`` writes, tested with 0.4.13.

``samples_TASK_DATE.jsonl`` has the rows, one for each document and filter, and ``results_DATE.json`` beside it how they
were made, the harness's own averages and a hash of all rows, by which rows that were changed or cut are found.
"""

from __future__ import annotations

import hashlib
import math
import re
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import msgspec

from pytest_lmgate.errors import DataError
from pytest_lmgate.tools.judge_results.rows import (
    Facts,
    Line,
    ReadOptions,
    ResultRow,
    ResultRun,
    Series,
    Texts,
    canonical,
    digest,
    direction_of,
    from_json,
    json_object,
    line_again,
    lines_of,
    number,
    read_bytes,
    tags_of,
)

_DATE = r"\d{4}-\d\d-\d\dT\d\d-\d\d-\d\d(?:\.\d+)?"
_SAMPLES = re.compile(rf"samples_(.+)_({_DATE})\.jsonl")
_RESULTS = re.compile(rf".+_({_DATE})\.json")
_NO_MEANS = ("perplexity", "bits_per_byte")


class _Sample(msgspec.Struct):
    """What is read of every row: its texts, most of the file, only if they are shown."""

    doc_id: int
    doc: msgspec.Raw
    filter: str
    metrics: list[str]
    arguments: msgspec.Raw = msgspec.Raw(b"null")
    filtered_resps: list[Any] = []
    target: msgspec.Raw = msgspec.Raw(b"null")
    doc_hash: str = ""
    prompt_hash: str = ""
    target_hash: str = ""


def read(path: Path, options: ReadOptions) -> ResultRun | None:
    """Read a folder, the samples of one task, or a results file with the samples of its run."""
    if path.is_dir():
        files = [file for file in path.rglob("samples_*.jsonl") if _SAMPLES.fullmatch(file.name)]
        if not files and any(_RESULTS.fullmatch(file.name) for file in path.rglob("results_*.json")):
            if any(path.rglob("details_*.parquet")):  # lighteval's
                return None
            raise DataError(f"{path}: it has averages, but no rows: run lm_eval with --log_samples")
    elif _SAMPLES.fullmatch(path.name):
        files = [path]
    elif (of_run := _RESULTS.fullmatch(path.name)) and path.name.startswith("results"):
        files = [file for file in path.parent.glob(f"samples_*_{of_run[1]}.jsonl") if _SAMPLES.fullmatch(file.name)]
    else:
        return None
    if not files:
        return None
    chosen, remarks = _newest(path, files)
    date = _date(chosen[0])
    found = next((file for file in chosen[0].parent.glob(f"*_{date}.json") if _RESULTS.fullmatch(file.name)), None)
    results = {} if found is None else json_object(read_bytes(found), found)
    if not isinstance(results.get("configs", {}), dict) or (found and "configs" not in results):
        raise DataError(f"{found}: expected the results of lm-evaluation-harness, got a file without configs")
    tasks = {_SAMPLES.fullmatch(file.name)[1]: file for file in chosen}  # type: ignore[index]
    if path.is_dir() and (lost := sorted(results.get("configs", {}).keys() - tasks.keys())):
        raise DataError(f"{found}: the run has no samples of {', '.join(lost[:5])}: it is not whole")
    series = [each for task, file in sorted(tasks.items()) for each in _series(task, file, results, options)]
    version = results.get("lm_eval_version") or ""
    model = results.get("model_name") or ("" if path.is_file() else chosen[0].parent.name)
    return ResultRun(
        path=path, tool=f"lm-eval {version}".strip(), model=str(model), series=tuple(series), remarks=remarks
    )


def _date(file: Path) -> str:
    return str(_SAMPLES.fullmatch(file.name)[2])  # type: ignore[index]


def _newest(path: Path, files: Sequence[Path]) -> tuple[list[Path], tuple[str, ...]]:
    """Return the files of one run: the newest if it has all tasks of the others, which are the same model's."""
    runs = defaultdict(list)
    for file in files:
        runs[file.parent, _date(file)].append(file)
    newest = max(runs, key=lambda run: run[1])
    names = [{_SAMPLES.fullmatch(file.name)[1] for file in each} for each in runs.values()]  # type: ignore[index]
    everything = {_SAMPLES.fullmatch(file.name)[1] for file in runs[newest]}  # type: ignore[index]
    if len({folder for folder, _ in runs}) > 1 or not all(each <= everything for each in names):
        listed = ", ".join(f"{folder.name} of {date} ({len(of_run)} tasks)" for (folder, date), of_run in runs.items())
        raise DataError(
            f"{path}: it has {len(runs)} runs, of several models or of several tasks: name the folder of one model, "
            f"or the results_DATE.json of one run; they are {listed:.600}"
        )
    remark = f"{path}: {len(runs)} runs of one model; the newest is judged, of {newest[1]}"
    return runs[newest], (remark,) if len(runs) > 1 else ()


def _series(task: str, file: Path, results: Mapping[str, Any], options: ReadOptions) -> list[Series]:
    rows: dict[tuple[str, str], list[ResultRow]] = defaultdict(list)
    refused: dict[tuple[str, str], str] = {}
    hashes, documents = hashlib.sha256(), set()
    generation: dict[str, Any] = {}  # the settings of the rows, one in general
    for line, sample in _samples(file):
        hashes.update(f"{sample.doc_hash}{sample.prompt_hash}{sample.target_hash}".encode())
        documents.add(sample.doc_id)
        _require_responses(sample, line)
        document, prompt = sample.doc_hash, f"{sample.prompt_hash}{sample.target_hash}"
        asked: Any = None
        if not sample.prompt_hash or isinstance(sample.filtered_resps[0], str):  # a text that was generated
            text, asked = _asked(from_json(bytes(sample.arguments), line))
            prompt = prompt if sample.prompt_hash else digest(text, bytes(sample.target).decode())
        if isinstance(asked, dict):
            generation.setdefault(repr(asked), asked)
        row: dict[str, Any] = {
            "id": str(sample.doc_id),
            "document": document or digest(bytes(sample.doc).decode()),
            "prompt": prompt,
            "tags": tags_of(from_json(bytes(sample.doc), line), options),
            "texts": partial(_texts, file, line.offset),
        }
        for metric in sample.metrics:
            key = metric, sample.filter
            value = getattr(sample, metric, None)
            if isinstance(value, list | dict):
                refused[key] = "it is a metric of the whole corpus, and its rows hold no scores of their own"
            else:
                rows[key].append(ResultRow(score=number(value, line, metric), **row))
    hashed = results.get("task_hashes", {}).get(task)
    if hashed is not None and hashed != hashes.hexdigest():
        raise DataError(
            f"{file}: its rows are not those that the results file of the run has a hash of: rows were changed, moved "
            "or cut"
        )
    expected = results.get("n-samples", {}).get(task, {}).get("effective")
    if expected is not None and expected != len(documents):
        raise DataError(f"{file}: expected {expected} documents, as in the results file, got {len(documents)}")
    found = []
    for key in dict.fromkeys([*rows, *refused]):
        facts = _facts(task, *key, results, list(generation.values()))
        reason = refused.get(key) or _no_mean(task, *key, rows[key], results)
        higher = results.get("higher_is_better", {}).get(task, {}).get(key[0])
        found.append(
            Series(
                task=task,
                metric=key[0],
                filter="" if key[1] == "none" else key[1],
                rows=tuple(rows.get(key, ())),
                direction=direction_of(key[0], (row.score for row in rows.get(key, ())), higher),
                facts=facts,
                group=_group(task, results.get("group_subtasks", {})),
                refused=reason,
                complete=hashed is not None,
            )
        )
    return found


def _samples(file: Path) -> Iterator[tuple[Line, Any]]:
    """Return the rows of a file, each with its metrics as attributes."""
    decoders: dict[tuple[str, ...], msgspec.json.Decoder[Any]] = {}
    decoder, known = msgspec.json.Decoder(_Sample), set[str]()
    for line in lines_of(file):
        sample = from_json(line.text, line, decoder.decode)
        if not known.issuperset(sample.metrics):  # the first row, or one of other metrics
            names = tuple(sample.metrics)
            if names not in decoders:
                fields = [(name, Any, None) for name in names if name.isidentifier()]
                made = msgspec.defstruct("_Scored", fields, bases=(_Sample,))
                decoders[names] = msgspec.json.Decoder(made)
            decoder, known = decoders[names], set(names)
            sample = from_json(line.text, line, decoder.decode)
        yield line, sample


def _asked(arguments: Any) -> tuple[Any, Any]:
    """Return the prompt and what follows it: a choice, or generation settings."""
    if isinstance(arguments, dict):
        first = arguments.get("gen_args_0")
        return (first.get("arg_0"), first.get("arg_1")) if isinstance(first, dict) else (None, None)
    first = arguments[0] if isinstance(arguments, list) and arguments else []
    return (first[0] if first else None, first[1] if len(first) > 1 else None)


def _require_responses(sample: _Sample, where: Line) -> None:
    if not sample.filtered_resps or None in sample.filtered_resps:
        raise DataError(f"{where}: the model gave no response, so the request failed: run it again")
    for response in sample.filtered_resps:
        if isinstance(response, list) and response and str(response[0]).lower() == "nan":
            raise DataError(f"{where}: the model's log-likelihood is NaN")


def _texts(file: Path, offset: int) -> Texts:
    sample = line_again(file, offset)
    arguments, responses = sample.get("arguments"), sample["filtered_resps"]
    prompt, output = _asked(arguments)[0], responses[0]
    if isinstance(output, list) and isinstance(arguments, dict):  # of choices, the most likely
        best = max(range(len(responses)), key=lambda at: float(responses[at][0]))
        output = arguments.get(f"gen_args_{best}", {}).get("arg_1", "")
    return str(prompt or ""), str(sample.get("target", "")), str(output)


def _no_mean(task: str, metric: str, name: str, rows: Sequence[ResultRow], results: Mapping[str, Any]) -> str:
    """Say why the harness's value is not the mean of the rows; empty if it is, or not known."""
    value = results.get("results", {}).get(task, {}).get(f"{metric},{name}")
    mean = math.fsum(row.score for row in rows) / len(rows)
    if isinstance(value, int | float):
        if math.isclose(value, mean, rel_tol=1e-6, abs_tol=1e-9):
            return ""
        return f"the harness's value is {value:.6g}, the mean of its rows {mean:.6g}: it is not a mean over rows"
    return "it is not a mean over rows" if any(part in metric for part in _NO_MEANS) else ""


def _facts(task: str, metric: str, name: str, results: Mapping[str, Any], generation: Sequence[Any]) -> Facts:
    settings = ", ".join(sorted({canonical(each) for each in generation})) or "none"
    config = results.get("configs", {}).get(task)
    if config is None:
        return Facts(generation_settings=settings, repeats="1")
    metrics = [each for each in config.get("metric_list") or () if each.get("metric") == metric]
    filters = [each for each in config.get("filter_list") or () if each.get("name") == name]
    shots = results.get("n-shot", {}).get(task)
    seed = results.get("config", {}).get("fewshot_seed") if shots else 0
    return Facts(
        task_version=str(results.get("versions", {}).get(task)),
        metric_definition=canonical([metrics, config.get("process_results"), config.get("output_type")]),
        filter_or_solver=canonical(filters),
        number_of_shots=None if shots is None else str(shots),
        fewshot_seed=None if seed is None else str(seed),
        generation_settings=settings,
        repeats=str(config.get("repeats", 1)),
    )


def _group(task: str, groups: Mapping[str, Sequence[str]]) -> str:
    """Return the outermost group of a task; empty if it is in none."""
    name, seen = task, {task}
    while parent := next((group for group, members in groups.items() if name in members and group not in seen), ""):
        seen.add(parent)
        name = parent
    return "" if name == task else name
