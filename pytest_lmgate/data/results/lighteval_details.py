"""lighteval: the details of ``--save-details``, parquet with a file for each task, tested with 0.13.0.

``results_DATE.json`` has how they were made and lighteval's own averages. It writes neither the number of rows that a
run should have nor the requests that failed.
"""

from __future__ import annotations

import math
import re
from collections import defaultdict
from functools import partial
from pathlib import Path

from pytest_lmgate.data.corpus import READERS
from pytest_lmgate.data.results import rows
from pytest_lmgate.errors import DataError

_DETAILS = re.compile(rf"details_(.+)_({rows.DATE})\.parquet")
_GENERATION = ("generation_size", "stop_sequence", "num_samples", "generation_grammar")


def read(path: Path, columns: rows.Columns) -> rows.ResultRun | None:
    """Read an output folder with one run, or the details of one task."""
    tasks, date, remarks = rows.newest(path, rows.files_of(path, rows.FILES["lighteval"]), _DETAILS)
    if not tasks:
        return None
    details = next((each for each in path.parents if each.name == "details"), path.parent)
    beside = next((path if path.is_dir() else details.parent).rglob(f"results_{date}.json"), None)
    results = {} if beside is None else rows.read_json(beside)
    if path.is_dir() and (lost := sorted(results.get("config_tasks", {}).keys() - tasks.keys())):
        raise DataError(f"{beside}: the run has no details of {', '.join(lost[:5])}: it is not whole")
    series = tuple(each for task, file in tasks.items() for each in _series(task, file, results))
    model, groups = str(results.get("config_general", {}).get("model_name") or ""), _groups(tasks, results)
    return rows.ResultRun(
        path=path, tool="lighteval", model=model, date=date, series=series, groups=groups, remarks=remarks
    )


def _series(task: str, file: Path, results: rows.Json) -> list[rows.Series]:
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
        made = rows.ResultRow(
            str(at),
            document=rows.digest(doc.get("query"), doc.get("choices"), doc.get("gold_index")),
            prompt=rows.digest(shots, doc.get("instruction")),
            tags=rows.tags_of(doc.get("specific")),
            texts=partial(_texts, doc, response),
        )
        for metric, value in metrics.items():
            collected.add(metric, "", value, made, where)
    return collected.series(task, partial(_told, task, results))


def _groups(tasks: dict[str, Path], results: rows.Json) -> dict[str, rows.Group]:
    """Return the subsets of each task, as in ``mmlu:anatomy|5``, which lighteval averages as ``mmlu:_average|5``."""
    subsets: dict[str, list[str]] = defaultdict(list)  # by the name of their average
    for task in tasks:
        name, shots = task.rpartition("|")[::2]
        if ":" in name:
            subsets[f"{name.partition(':')[0]}:_average|{shots}"].append(task)
    told = results.get("results", {})
    found = {name: rows.Group(tuple(inside), {**told.get(name, {})}) for name, inside in subsets.items()}
    return {name.replace(":_average", ""): group for name, group in found.items()}


def _told(task: str, results: rows.Json, metric: str, _: str) -> rows.Told:
    config, shots = results.get("config_tasks", {}).get(task), task.rpartition("|")[2]
    if config is None:
        return rows.Told(facts=rows.Facts(number_of_shots=shots))
    named = [each for each in config.get("metrics") or () if metric in str(each.get("metric_name"))]
    definition = named[0] if named else {}
    higher = definition.get("higher_is_better")  # of each, where a function makes several metrics
    model = results.get("config_general", {}).get("model_config", {})
    generation = {key: config.get(key) for key in _GENERATION} | {"model": model.get("generation_parameters")}
    facts = rows.Facts(
        task_version=str(config.get("version")),
        metric_definition=rows.canonical(definition),
        filter_or_solver=rows.canonical([config.get("prompt_function"), config.get("hf_filter")]),
        number_of_shots=shots,
        generation_settings=rows.canonical(generation),
        repeats=str(config.get("num_samples") or 1),
    )
    value = results.get("results", {}).get(task, {}).get(metric)
    return rows.Told(facts=facts, value=value, higher=higher.get(metric) if isinstance(higher, dict) else higher)


def _texts(doc: rows.Json, response: rows.Json) -> rows.Texts:
    choices, gold, scores = doc.get("choices") or [], doc.get("gold_index"), response.get("logprobs") or []
    right = [str(choices[at]) for at in (gold if isinstance(gold, list) else [gold]) if isinstance(at, int)]
    if response.get("text"):
        output = str(response["text"][0])
    else:
        output = str(choices[scores.index(max(scores))]) if len(scores) == len(choices) else ""
    return str(doc.get("query", "")), " | ".join(right), output
