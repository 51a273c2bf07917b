"""lighteval: the details of ``--save-details``, parquet with a file for each task, tested with 0.13.0.

``results_DATE.json`` has how they were made and lighteval's own averages. It writes neither the number of rows that a
run should have nor the requests that failed.
"""

from __future__ import annotations

import math
import re
from collections import defaultdict
from collections.abc import Iterable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from pytest_lmgate.data.readers import READERS
from pytest_lmgate.data.results import rows
from pytest_lmgate.data.results.rows import Columns, Facts, Group, ResultRow, ResultRun, Series, Told
from pytest_lmgate.errors import DataError

_DETAILS = re.compile(r"details_(.+)_(\d{4}-\d\d-\d\dT\d\d-\d\d-\d\d(?:\.\d+)?)\.parquet")
_GENERATION = ("generation_size", "stop_sequence", "num_samples", "generation_grammar")
_Json = Mapping[str, Any]


def read(path: Path, columns: Columns) -> ResultRun | None:
    """Read an output folder with one run, or the details of one task."""
    files = sorted(path.rglob("details_*.parquet")) if path.is_dir() else [path]
    tasks = {match[1]: (match[2], file) for file in files if (match := _DETAILS.fullmatch(file.name))}
    runs = sorted({(match[2], str(file.parent)) for file in files if (match := _DETAILS.fullmatch(file.name))})
    if not runs:
        return None
    if len(runs) > 1:
        listed = ", ".join(f"{date} in {folder}" for date, folder in runs)
        raise DataError(f"{path}: it has {len(runs)} runs: name the folder of one of them, which are {listed:.600}")
    root = next((each for each in files[0].parents if each.name == "details"), files[0].parent).parent
    beside = next((path if path.is_dir() else root).rglob(f"results_{runs[0][0]}.json"), None)
    results = {} if beside is None else rows.read_json(beside)
    if path.is_dir() and (lost := results.get("config_tasks", {}).keys() - tasks.keys()):
        raise DataError(f"{beside}: the run has no details of {', '.join(sorted(lost)[:5])}: it is not whole")
    series = tuple(each for task, (_, file) in tasks.items() for each in _series(task, file, results))
    model = results.get("config_general", {}).get("model_name")
    return ResultRun(path=path, tool="lighteval", model=str(model or ""), series=series, groups=_groups(tasks, results))


def _series(task: str, file: Path, results: _Json) -> list[Series]:
    rows.require_small(file)
    collected = rows.Collected()
    for at, row in enumerate(READERS[".parquet"](file, task)):
        where = f"{file}: row {at}"
        doc, metrics, response = (row.get(part) for part in ("doc", "metric", "model_response"))
        if not (isinstance(doc, dict) and isinstance(metrics, dict) and isinstance(response, dict)):
            raise DataError(f"{where}: expected the columns doc, metric and model_response of lighteval's details")
        if not (response.get("text") or response.get("logprobs")):
            raise DataError(f"{where}: the model gave no response, so the request failed: run it again")
        if any(value is not None and math.isnan(value) for value in response.get("logprobs") or ()):
            raise DataError(f"{where}: the model's log-likelihood is NaN")
        shots = [[shot.get("query"), shot.get("choices")] for shot in doc.get("fewshot_samples") or ()]
        made = ResultRow(
            str(at),
            document=rows.digest(doc.get("query"), doc.get("choices"), doc.get("gold_index")),
            prompt=rows.digest(shots, doc.get("instruction")),
            tags=rows.tags_of(doc.get("specific")),
            texts=partial(_texts, doc, response),
        )
        for metric, value in metrics.items():
            collected.add(metric, "", value, made, where)
    return collected.series(task, partial(_told, task, results))


def _groups(tasks: Iterable[str], results: _Json) -> dict[str, Group]:
    """Return the subsets of each task, as in ``mmlu:anatomy|5``, which lighteval averages as ``mmlu:_average|5``."""
    subsets: dict[str, list[str]] = defaultdict(list)
    for task in tasks:
        name, shots = task.rpartition("|")[::2]
        if ":" in name:
            subsets[f"{name.partition(':')[0]}|{shots}"].append(task)
    told = results.get("results", {})
    return {
        name: Group(tuple(of_group), told.get(name.replace("|", ":_average|"), {}))
        for name, of_group in subsets.items()
    }


def _told(task: str, results: _Json, metric: str, _: str) -> Told:
    config, shots = results.get("config_tasks", {}).get(task), task.rpartition("|")[2]
    if config is None:
        return Told(facts=Facts(number_of_shots=shots))
    definition: _Json = next(
        (each for each in config.get("metrics") or () if metric in str(each.get("metric_name"))), {}
    )
    higher = definition.get("higher_is_better")  # of each, where a function makes several metrics
    model = results.get("config_general", {}).get("model_config", {})
    generation = {key: config.get(key) for key in _GENERATION} | {"model": model.get("generation_parameters")}
    facts = Facts(
        task_version=str(config.get("version")),
        metric_definition=rows.canonical(definition),
        filter_or_solver=rows.canonical([config.get("prompt_function"), config.get("hf_filter")]),
        number_of_shots=shots,
        generation_settings=rows.canonical(generation),
        repeats=str(config.get("num_samples") or 1),
    )
    value = results.get("results", {}).get(task, {}).get(metric)
    return Told(facts=facts, value=value, higher=higher.get(metric) if isinstance(higher, dict) else higher)


def _texts(doc: _Json, response: _Json) -> rows.Texts:
    choices, gold, scores = doc.get("choices") or [], doc.get("gold_index"), response.get("logprobs") or []
    right = [str(choices[at]) for at in (gold if isinstance(gold, list) else [gold]) if isinstance(at, int)]
    if response.get("text"):
        output = str(response["text"][0])
    else:
        output = str(choices[scores.index(max(scores))]) if len(scores) == len(choices) else ""
    return str(doc.get("query", "")), " | ".join(right), output
