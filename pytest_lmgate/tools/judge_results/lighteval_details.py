"""lighteval: the details of ``--save-details``, parquet with a file for each task, tested with 0.13.0.

``results_DATE.json`` beside them has how they were made and lighteval's own averages. It writes neither the number of
rows that a run should have nor the requests that failed.
"""

from __future__ import annotations

import math
import re
from collections import defaultdict
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from pytest_lmgate.data.readers import READERS
from pytest_lmgate.errors import DataError
from pytest_lmgate.tools.judge_results.rows import (
    Facts,
    ReadOptions,
    ResultRow,
    ResultRun,
    Series,
    Texts,
    canonical,
    digest,
    direction_of,
    json_object,
    number,
    read_bytes,
    require_small,
    tags_of,
)

_DETAILS = re.compile(r"details_(.+)_(\d{4}-\d\d-\d\dT\d\d-\d\d-\d\d(?:\.\d+)?)\.parquet")


def read(path: Path, options: ReadOptions) -> ResultRun | None:
    """Read an output folder with one run, or the details of one task."""
    files = sorted(path.rglob("details_*.parquet")) if path.is_dir() else [path]
    found = [(match[1], match[2], file) for file in files if (match := _DETAILS.fullmatch(file.name))]
    if not found:
        return None
    runs = sorted({(date, file.parent) for _, date, file in found})
    if len(runs) > 1:
        listed = ", ".join(f"{date} in {folder}" for date, folder in runs)
        raise DataError(f"{path}: it has {len(runs)} runs: name the folder of one of them, which are {listed:.600}")
    results, where = _results(path, runs[0][0], runs[0][1])
    if path.is_dir() and (lost := results.get("config_tasks", {}).keys() - {task for task, _, _ in found}):
        raise DataError(f"{where}: the run has no details of {', '.join(sorted(lost)[:5])}: it is not whole")
    series = [each for task, _, file in found for each in _series(task, file, results, options)]
    general = results.get("config_general", {})
    sha = general.get("lighteval_sha")
    tool = f"lighteval {sha}" if sha not in (None, "", "?") else "lighteval"
    return ResultRun(path=path, tool=tool, model=str(general.get("model_name") or ""), series=tuple(series))


def _results(path: Path, date: str, folder: Path) -> tuple[dict[str, Any], Path]:
    """Return the results file of a run: in ``results`` beside ``details``, or anywhere in the folder that was named."""
    above = [folder, *folder.parents]
    at = next((each.parent / "results" for each in above if each.name == "details"), folder)
    for root in (at, *([path] if path.is_dir() else [])):
        for file in root.rglob(f"results_{date}.json") if root.is_dir() else ():
            return json_object(read_bytes(file), file), file
    return {}, path


def _series(task: str, file: Path, results: Mapping[str, Any], options: ReadOptions) -> list[Series]:
    require_small(file)
    rows: dict[str, list[ResultRow]] = defaultdict(list)
    refused: dict[str, str] = {}
    for at, row in enumerate(READERS[".parquet"](file, task)):
        where = f"{file}: row {at}"
        doc, metrics, response = (row.get(part) for part in ("doc", "metric", "model_response"))
        if not (isinstance(doc, dict) and isinstance(metrics, dict) and isinstance(response, dict)):
            raise DataError(f"{where}: expected the columns doc, metric and model_response of lighteval's details")
        if not (response.get("text") or response.get("logprobs")):
            raise DataError(f"{where}: the model gave no response, so the request failed: run it again")
        if any(value is not None and math.isnan(value) for value in response.get("logprobs") or ()):
            raise DataError(f"{where}: the model's log-likelihood is NaN")
        shots = [[shot.get("query"), shot.get("choices"), shot.get("gold_index")] for shot in _shots(doc)]
        for metric, value in metrics.items():
            if isinstance(value, list | dict):
                refused[metric] = "it is a metric of the whole corpus, and its rows hold no scores of their own"
                continue
            made = ResultRow(
                id=str(at),
                score=number(value, where, metric),
                document=digest(doc.get("query"), doc.get("choices"), doc.get("gold_index")),
                prompt=digest(shots, doc.get("instruction")),
                tags=tags_of(doc.get("specific"), options),
                texts=partial(_texts, doc, response),
            )
            rows[metric].append(made)
    config = results.get("config_tasks", {}).get(task, {})
    name, _, shown = task.rpartition("|")
    return [
        Series(
            task=task,
            metric=metric,
            rows=tuple(rows.get(metric, ())),
            direction=direction_of(metric, (row.score for row in rows[metric]), _said(config, metric).get("higher")),
            facts=_facts(config, metric, shown, results),
            group=name.partition(":")[0] if ":" in name else "",
            refused=refused.get(metric) or _no_mean(task, metric, rows[metric], results),
        )
        for metric in dict.fromkeys([*rows, *refused])
    ]


def _shots(doc: Mapping[str, Any]) -> Sequence[Mapping[str, Any]]:
    return doc.get("fewshot_samples") or ()


def _said(config: Mapping[str, Any], metric: str) -> dict[str, Any]:
    """Return the direction of a metric, and its functions as the run's settings write them."""
    for each in config.get("metrics") or ():
        if metric in (each.get("metric_name") if isinstance(each.get("metric_name"), list) else [each["metric_name"]]):
            higher = each.get("higher_is_better")
            return {"definition": each, "higher": higher.get(metric) if isinstance(higher, dict) else higher}
    return {}


def _no_mean(task: str, metric: str, rows: Sequence[ResultRow], results: Mapping[str, Any]) -> str:
    """Say why lighteval's value is not the mean of the rows; empty if it is, or not known."""
    value = results.get("results", {}).get(task, {}).get(metric)
    mean = math.fsum(row.score for row in rows) / len(rows)
    if value is None or math.isclose(value, mean, rel_tol=1e-6, abs_tol=1e-9):
        return ""
    return f"lighteval's value is {value:.6g}, the mean of its rows {mean:.6g}: rows are missing, or it is not a mean"


def _facts(config: Mapping[str, Any], metric: str, shots: str, results: Mapping[str, Any]) -> Facts:
    if not config:
        return Facts(number_of_shots=shots)
    model = results.get("config_general", {}).get("model_config", {})
    keys = ("generation_size", "stop_sequence", "num_samples", "generation_grammar")
    generation = {key: config.get(key) for key in keys} | {"model": model.get("generation_parameters")}
    return Facts(
        task_version=str(config.get("version")),
        metric_definition=canonical(_said(config, metric).get("definition")),
        filter_or_solver=canonical(
            [config.get("prompt_function"), config.get("hf_filter"), model.get("system_prompt")]
        ),
        number_of_shots=shots,
        generation_settings=canonical(generation),
        repeats=str(config.get("num_samples") or 1),
    )


def _texts(doc: Mapping[str, Any], response: Mapping[str, Any]) -> Texts:
    choices, gold, scores = doc.get("choices") or [], doc.get("gold_index"), response.get("logprobs") or []
    right = [str(choices[at]) for at in (gold if isinstance(gold, list) else [gold]) if isinstance(at, int)]
    if response.get("text"):
        output = str(response["text"][0])
    else:
        output = str(choices[scores.index(max(scores))]) if len(scores) == len(choices) else ""
    return str(doc.get("query", "")), " | ".join(right), output
