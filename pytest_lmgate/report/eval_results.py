"""``.eval_results/*.yaml`` of the Hugging Face hub: a file for each model, with its values on benchmarks of the hub.

The hub shows a value on the model's page, and on the leaderboard of a task of the benchmark. A gate names configuration
and split; the benchmark's own eval.yaml says which task reads these. What has no dataset on the hub, or no task there,
is left out with the reason: no id is guessed.

The formats: https://huggingface.co/docs/hub/eval-results and ``EvalResultEntry`` of huggingface_hub.
"""

from __future__ import annotations

import functools
import hashlib
import math
import re
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import yaml

from pytest_lmgate.errors import encodable
from pytest_lmgate.judge.result import HubDataset, Measured, Results
from pytest_lmgate.report.text import counted, excerpt
from pytest_lmgate.settings.metrics import METRICS

Tasks = Callable[[str], "tuple[_Task, ...] | str"]
_LONGEST_NAME = 100
_COMMIT = re.compile("[0-9a-f]{40}")


class _Task(msgspec.Struct):
    id: str
    config: str = "default"
    split: str = "test"


class _Benchmark(msgspec.Struct):
    tasks: tuple[_Task, ...]


def eval_results(results: Results, *, offline: bool) -> tuple[dict[str, str], list[str]]:
    """Return the text of each file by its name, and sentences about the values that have no place there."""
    tasks = functools.cache(functools.partial(_tasks, offline=offline))
    by_model: dict[str, list[dict[str, Any]]] = {}
    left_out: Counter[str] = Counter()
    for measured in (*results.verdicts, *results.measured):
        entry = _entry(measured, results, tasks)
        if isinstance(entry, str):
            left_out[entry] += 1
        elif entry not in (entries := by_model.setdefault(measured.model, [])):  # two gates may share a measurement
            entries.append(entry)
    names = _file_names(list(by_model))
    texts = {
        names[model]: yaml.safe_dump(entries, sort_keys=False, width=math.inf) for model, entries in by_model.items()
    }
    return texts, [f"{counted(count, 'value')} left out: {reason}" for reason, count in left_out.items()]


def _entry(measured: Measured, results: Results, tasks: Tasks) -> dict[str, Any] | str:
    """Return the entry of a value, or why it has none."""
    hub, row = measured.hub, METRICS.get(measured.metric)
    if measured.value is None or not math.isfinite(measured.value):
        return "nothing was measured, or no finite number"
    if row is not None and row.measures in ("divergences", "self-divergences"):
        return "a divergence compares two models, and the hub has results of one"
    if hub is None:
        return "the data is local or in memory, so it has no id on the hub (a dataset's hub:)"
    if hub.is_part:
        return "limit: or sample: reads a part of the rows, and the hub has results of whole benchmarks"
    task = _task_of(hub, tasks(hub.id))
    if not isinstance(task, _Task):
        return task
    dataset = {"id": hub.id, "task_id": task.id}
    if _COMMIT.fullmatch(hub.revision):
        dataset["revision"] = hub.revision
    date = {"date": results.run.date} if results.run.date else {}
    return {"dataset": dataset, "value": measured.value, **date, "notes": _notes(measured)}


def _task_of(hub: HubDataset, tasks: tuple[_Task, ...] | str) -> _Task | str:
    """Return the task that reads a configuration and split, or why there is none."""
    if isinstance(tasks, str):
        return tasks
    config, split = hub.name or "default", hub.split
    fitting = [task for task in tasks if task.config == config and split in ("", task.split)]
    if len(fitting) == 1:
        return fitting[0]
    there = ", ".join(f"{task.id} ({task.config}, {task.split})" for task in tasks) or "none"
    return (
        f"expected one task of {hub.id}'s eval.yaml to read the configuration {config!r} and the split "
        f"{split or 'that is the only one'!r}, got {len(fitting)}; its tasks: {there}"
    )


def _notes(measured: Measured) -> str:
    """Return what the schema has no key for, in the form of a signature."""
    facts: dict[str, object] = {"metric": measured.metric}
    if measured.interval is not None:
        low, high = measured.interval
        facts["interval95"] = f"[{low!r},{high!r}]"
    facts |= {"stderr": measured.stderr, "n": measured.n, "n_unit": measured.unit}
    told = [f"{key}:{value}" for key, value in facts.items() if value is not None]
    return encodable("|".join(["lmgate", *told, measured.signature]))


def _tasks(dataset: str, *, offline: bool) -> tuple[_Task, ...] | str:
    """Return the tasks of a benchmark by its eval.yaml, as the hub has it now, or why they are not known."""
    import huggingface_hub
    from huggingface_hub.errors import EntryNotFoundError, LocalEntryNotFoundError

    try:
        file = huggingface_hub.hf_hub_download(dataset, "eval.yaml", repo_type="dataset", local_files_only=offline)
        return msgspec.convert(yaml.safe_load(Path(file).read_bytes()), _Benchmark).tasks
    except LocalEntryNotFoundError:
        why = "is not in the local hub cache and cannot be fetched; run once with a network, without --lmgate-offline"
    except EntryNotFoundError:
        return f"{dataset} is not a benchmark of the hub: it has no eval.yaml, which names the tasks"
    except Exception as error:  # of the hub, of YAML, or a file of another form
        why = f"cannot be read: {excerpt(f'{type(error).__name__}: {error}', 300)}"
    return f"the eval.yaml of {dataset}, which names its tasks, {why}"


def _file_names(models: list[str]) -> dict[str, str]:
    """Return a file's name for each model; where two would share one, each gets a digest of the model's name."""
    clean = {model: re.sub(r"[^\w.-]+", "_", model, flags=re.ASCII).strip("._")[:_LONGEST_NAME] for model in models}
    taken = Counter(name.casefold() for name in clean.values())
    digests = {model: hashlib.sha256(model.encode("utf-8", "backslashreplace")).hexdigest()[:8] for model in models}
    return {
        model: f"{name}.yaml" if name and taken[name.casefold()] == 1 else f"{name or 'model'}-{digests[model]}.yaml"
        for model, name in clean.items()
    }
