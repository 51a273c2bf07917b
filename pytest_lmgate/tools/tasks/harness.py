"""Finds tasks of lm-evaluation-harness, has them write their requests, and runs their scoring.

No other module imports the harness but `private.py` beside this one.
Documents, few-shot examples, prompts, targets and settings are those of the harness's own `Task` objects, as
``simple_evaluate`` of 0.4.13 prepares them; the random seeds are its defaults too.
"""

from __future__ import annotations

import contextlib
import functools
import io
import json
import logging
import math
import os
import random
import re
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from types import CodeType, ModuleType
from typing import Any

from pytest_lmgate.errors import ConfigError, DataError, MetricInputError, nearest
from pytest_lmgate.tools.tasks.private import filters_of, load_yaml, metrics_of

FEWSHOT_SEED = 1234
"""Seed of the few-shot examples, the harness's own default."""
_SEEDS = (0, 1234)  # of `random`, with which some tasks shuffle their choices, and of NumPy
_CLIENTS = {"anthropic", "cohere", "genai", "litellm", "mistralai", "openai"}  # libraries that ask a served model
_MAX_NEW_TOKENS = 256  # where a task sets none (``HFLM.max_gen_toks``)


@dataclass(frozen=True)
class Found:
    """A task, or the tasks of a group."""

    name: str  # as it was asked for
    tasks: dict[str, Any]  # the harness's objects by name
    files: dict[str, Path]  # the YAML file of each
    parents: dict[str, str]  # the group that each task is a direct member of, where groups are nested
    weights: dict[str, bool]  # whether each metric of the group weights tasks by their size; empty for a single task
    is_group: bool = False


@dataclass(frozen=True)
class Document:
    """One document of a task with its requests: the arguments that the harness would call a model with."""

    id: int
    doc: Any
    kinds: frozenset[str]
    arguments: list[tuple[Any, ...]]


@contextlib.contextmanager
def quietly() -> Iterator[None]:
    """Silence the harness, which logs, prints and draws bars."""
    with contextlib.redirect_stderr(io.StringIO()) as shown, contextlib.redirect_stdout(shown):
        before = logging.root.manager.disable
        logging.disable(logging.CRITICAL)
        try:
            yield
        except SystemExit as error:
            output = " ".join(shown.getvalue().split())
            raise ConfigError(f"code of the task ends Python, exit code {error.code}: {output[-300:]}") from error
        finally:
            logging.disable(before)


def installed() -> str:
    try:
        return version("lm_eval")
    except PackageNotFoundError:
        raise ConfigError(
            "lm-evaluation-harness is not installed, and only it knows its tasks: pip install 'pytest-lmgate[tasks]'"
        ) from None


def find(name: str, include_path: Path | None = None) -> Found:
    installed()
    with quietly():
        from lm_eval.api.group import Group

        manager = _manager(name, include_path)
        if name not in manager.task_index:
            shown = f"{nearest(name, manager.all_tasks)}; `lm-eval ls tasks` lists them"
            raise ConfigError(f"lm-evaluation-harness {installed()} has no task {name!r}{shown}")
        seed()
        try:
            loaded = manager.load(name)
        except Exception as error:
            raise _reason(name, error) from error
    groups, tasks = loaded["groups"], loaded["tasks"]
    if not tasks:
        raise ConfigError(f"{name}: the group has no task")
    files = {}
    for task_name, task in tasks.items():  # a class is not told its file
        config_source = (task.config.metadata or {}).get("config_source")
        files[task_name] = Path(str(config_source or manager.task_index[task_name].yaml_path))
    top = groups.get(name)
    parents = {
        child.task_name: group.name
        for group in groups.values()
        for child in group
        if group is not top and not isinstance(child, Group)
    }
    weights = {}
    for metric in (top.aggregate_metric_list or ()) if top is not None else ():
        weights[str(metric.metric)] = bool(metric.weight_by_size)
    return Found(name, tasks, files, parents, weights, is_group=len(tasks) > 1 or top is not None)


def _manager(name: str, include_path: Path | None) -> Any:
    """Return the harness's index of tasks: of the user's folder alone where that has the task, which takes no time."""
    from lm_eval.tasks import TaskManager

    if include_path is not None:
        manager = TaskManager(include_path=str(include_path), include_defaults=False)
        entry = manager.task_index.get(name)
        if entry is not None and set(_members(entry.cfg or {})) <= manager.task_index.keys():
            return manager
        if entry is None:
            _require_readable(name, include_path)
    return TaskManager(include_path=None if include_path is None else str(include_path))


def _require_readable(name: str, folder: Path) -> None:
    """Refuse a file of the task that the harness passes over, as one whose ``include:`` is not there."""
    names_it = re.compile(
        rb"^(?:task|group):\s*[\"']?" + re.escape(name.encode()) + rb"[\"']?\s*(?:#.*)?$", re.MULTILINE
    )
    for path in sorted(folder.rglob("*.yaml")):
        try:
            if names_it.search(path.read_bytes()):
                load_yaml(path, with_functions=False)
        except Exception as error:
            raise ConfigError(f"task {name!r}: {path} cannot be read: {' '.join(str(error).split())}") from error


def _members(config: Mapping[str, Any]) -> Iterator[str]:
    """Return the names of the tasks that a group takes from elsewhere."""
    listed = config.get("task")
    for member in listed if isinstance(listed, list) else ():
        if isinstance(member, str):
            yield member
        elif "group" in member:
            yield from _members(member)
        else:
            yield str(member.get("task"))


def seed() -> None:
    """Set the seeds that ``simple_evaluate`` sets before it loads tasks."""
    import numpy as np

    random.seed(_SEEDS[0])
    np.random.seed(_SEEDS[1])


def _reason(name: str, error: Exception) -> ConfigError | DataError:
    """Say why a task cannot be loaded: its data are missing, or its code fails."""
    reason = " ".join(str(error).split()) or "no reason given"
    for frame, _ in traceback.walk_tb(error.__traceback__):
        task: Any = frame.f_locals.get("self")
        if frame.f_code.co_name == "download" and hasattr(task, "DATASET_PATH"):
            config = getattr(task, "config", None)
            arguments = [str(part) for part in (task.DATASET_PATH, task.DATASET_NAME) if part is not None]
            which = getattr(config, "task", None) or name
            if files := (getattr(config, "dataset_kwargs", None) or {}).get("data_files"):
                return DataError(
                    f"task {which}: its files {files!s:.200} cannot be read, or have no rows: {type(error).__name__}: "
                    f"{reason:.200}"
                )
            return DataError(
                f"task {which}: its dataset {' '.join(arguments)} is not here and "
                f"cannot be fetched ({type(error).__name__}: {reason:.200}); fetch it where the hub can be reached, by "
                f'this command or python -c "import datasets; datasets.load_dataset({", ".join(map(repr, arguments))})"'
                ", and take the folder HF_HOME along"
            )
    return ConfigError(f"task {name}: the harness cannot load it: {type(error).__name__}: {reason:.300}")


def prepare(task: Any, *, shots: int | None, seed: int, split: str | None) -> int:
    """Set a task's shots and split as ``simple_evaluate`` does; return the shots."""
    name, default_shots = task.task_name, task.get_config("num_fewshot")
    if shots is not None and default_shots == 0 and shots > 0:
        raise ConfigError(
            f"task {name}: it is defined without examples (num_fewshot: 0), which the harness keeps; leave out --shots"
        )
    if split is not None:
        if split not in task.dataset:
            raise ConfigError(
                f"task {name}: no split {split!r}{nearest(split, task.dataset)}; it has {', '.join(task.dataset)}"
            )
        task.set_config("test_split", split)
    number = default_shots if shots is None or default_shots == 0 else shots
    task.set_config("num_fewshot", number or 0)
    task.set_fewshot_seed(seed=seed)
    return number or 0


def documents(task: Any, *, rows: int | None, chat: bool) -> list[Document]:
    """Return a task's documents with their requests; with `chat`, a prompt is a list of messages."""
    with quietly():
        template: Callable[..., str] | None = (lambda messages, **_: json.dumps(messages)) if chat else None
        try:
            task.build_all_requests(
                limit=rows, apply_chat_template=chat, fewshot_as_multiturn=chat, chat_template=template
            )
        except Exception as error:
            reason = " ".join(str(error).split())
            raise ConfigError(
                f"task {task.task_name}: the harness cannot make its requests: {type(error).__name__}: {reason:.300}"
            ) from error
    by_document: dict[int, list[Any]] = {}
    for instance in task.instances:
        by_document.setdefault(instance.doc_id, []).append(instance)
    listed = []
    for index, instances in by_document.items():
        instances.sort(key=lambda instance: instance.idx)
        arguments = [tuple(instance.args) for instance in instances]
        if chat:
            arguments = [(_messages(prompt), *rest) for prompt, *rest in arguments]
        kinds = frozenset(instance.request_type for instance in instances)
        listed.append(Document(index, instances[0].doc, kinds, arguments))
    return listed


def _messages(written: str) -> list[dict[str, str]]:
    return [{"role": message["role"], "content": message["content"]} for message in json.loads(written)]


def described(task: Any) -> str:
    path, name = task.DATASET_PATH, task.DATASET_NAME
    split = task.get_config("test_split") or task.get_config("validation_split")
    shown = " ".join(str(part) for part in (path, name) if part)
    revision = (task.get_config("dataset_kwargs") or {}).get("revision")
    with contextlib.suppress(AttributeError, KeyError, TypeError):
        for source in task.dataset[split].info.download_checksums or ():
            if match := re.search(r"@([0-9a-f]{40})/", source):
                revision = match[1][:12]
    return f"{shown}{f' at {revision}' if revision else ''}, split {split}"


def aggregations(task: Any) -> dict[str, str]:
    """Return the name of each metric's aggregation, as the harness registers it; empty for one of the task's own.

    A function of the task's own that makes the mean of numbers, NumPy's for example, is ``mean`` too.
    """
    from lm_eval.api.registry import aggregation_registry

    names = {id(aggregation_registry.get(name)): name for name in aggregation_registry}
    return {
        str(metric): names.get(id(function)) or ("mean" if _is_mean(function) else "")
        for metric, function in task.aggregation().items()
    }


def _is_mean(aggregation: Callable[[list[float]], Any]) -> bool:
    """Return whether a function makes the mean of numbers that are drawn at random, of ones and zeros too."""
    drawn = random.Random(0)
    lists = [[drawn.uniform(-9, 9) for _ in range(n)] for n in (1, 2, 7)] + [[1.0, 0.0, 0.0], [0.0, 0.0], [1.0] * 5]
    with quietly():
        try:
            return all(
                math.isclose(aggregation(values), math.fsum(values) / len(values), abs_tol=1e-12) for values in lists
            )
        except Exception:  # it reads no numbers
            return False


def is_standard(task: Any, metric: str) -> bool:
    """Return whether a task scores a metric with the harness's own function of this name, not with code of its own."""
    from lm_eval.api.registry import metric_registry

    function = metrics_of(task).get(metric)
    return function is not None and metric in metric_registry and metric_registry.get(metric) is function


def steps_of(ensemble: Any) -> list[tuple[str, dict[str, Any]]] | None:
    """Return an ensemble's filters by their registered names, with their arguments; None if one is the task's own."""
    from lm_eval.api.registry import filter_registry

    names = {filter_registry.get(name): name for name in filter_registry}
    steps = [(names.get(part.func, ""), dict(part.keywords)) for part in ensemble.filters]
    return steps if all(name for name, _ in steps) else None


def generation(given: Mapping[str, Any]) -> dict[str, Any]:
    """Return generation settings by their names in lmgate.yaml, from those that the harness would call a model with."""
    from lm_eval.models.utils import normalize_gen_kwargs

    with quietly():
        settings = dict(normalize_gen_kwargs(dict(given), _MAX_NEW_TOKENS))
    samples, stop = settings.pop("do_sample"), [text for text in settings.pop("until", []) if text]
    options: dict[str, Any] = {"stop": stop} if stop else {}
    options["max_new_tokens"] = settings.pop("max_gen_toks")
    if (beams := settings.pop("num_beams", 1)) != 1:
        options["num_beams"] = beams
    sampling = {key: settings.pop(key, None) for key in ("temperature", "top_p", "top_k")}
    if samples:
        options |= {key: value for key, value in sampling.items() if value is not None} | {"seed": FEWSHOT_SEED}
    if settings:
        raise ConfigError(f"its generation setting {next(iter(settings))} has no counterpart in lmgate.yaml")
    return options


def has_own_scoring(task: Any) -> bool:
    """Return whether the task scores its documents by its own code, not by the harness's `ConfigurableTask`."""
    from lm_eval.api.task import ConfigurableTask

    plain = type(task).process_results is ConfigurableTask.process_results
    return not plain or callable(task.config.process_results)


def scoring_of(task: Any) -> str:
    """Return an identity of a task's scoring code: tasks of a group often share it in separate files."""
    function: Any = task.config.process_results or type(task).process_results
    bound = (function.args, sorted(function.keywords.items())) if isinstance(function, functools.partial) else ()
    code = getattr(function, "func", function).__code__
    source = Path(code.co_filename).resolve()
    return repr((str(source), code.co_qualname, bound, task.config.filter_list))


def judge_of(task: Any) -> str:
    """Return the library by which a task's scoring code asks another model; empty if it does not."""
    functions, seen = [task.config.process_results, type(task).process_results], set[int]()
    while functions:
        function: Any = functions.pop()
        function = getattr(function, "func", function)  # of a partial
        code, names = getattr(function, "__code__", None), getattr(function, "__globals__", {})
        if code is None or id(code) in seen:
            continue
        seen.add(id(code))
        for name in _names(code):
            value = names.get(name)
            source = value.__name__ if isinstance(value, ModuleType) else getattr(value, "__module__", None) or ""
            if library := _CLIENTS & {name, str(source).partition(".")[0]}:
                return library.pop()
            if source == function.__module__:
                functions.append(value)
    return ""


def _names(code: CodeType) -> Iterator[str]:
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _names(constant)


def relative_file(source: Path, folder: Path) -> str:
    """Return a task's YAML file relative to the harness's own tasks if it is one of them, else to a folder."""
    if source.is_relative_to(_own_tasks()):
        return source.relative_to(_own_tasks()).as_posix()
    return Path(os.path.relpath(source, folder)).as_posix()


def _own_tasks() -> Path:
    import lm_eval.tasks

    return Path(str(lm_eval.tasks.__file__)).parent


class _Documents(list[Any]):
    """Documents as the harness reads them of a dataset."""

    @property
    def features(self) -> dict[str, None]:
        return dict.fromkeys(self[0])


class _AnySplit(dict[str, _Documents]):
    def __missing__(self, split: str) -> _Documents:
        return self["all"]


def offline_task(file: str, folder: Path, document: Mapping[str, Any]) -> Any:
    """Return a task that scores documents like the given one; nothing is fetched. See `relative_file`."""
    installed()
    with quietly():
        from lm_eval.api.task import ConfigurableTask

        path = next((path for path in (folder / file, _own_tasks() / file) if path.is_file()), None)
        if path is None:
            raise ConfigError(
                f"task: no file {file} in {folder} or among the tasks of lm-evaluation-harness {installed()}"
            )
        splits = _AnySplit(all=_Documents([document]))
        try:
            read = load_yaml(path, with_functions=True)
            config = {key: value for key, value in read.items() if key not in ("tag", "group", "task_list")}
            base = config.pop("class", ConfigurableTask)
            download = {"download": lambda self, *_, **__: setattr(self, "dataset", splits)}
            offline = type(base.__name__, (base,), download)
            if not issubclass(base, ConfigurableTask):
                return offline()
            # The documents are frozen as `process_docs` left them.
            return offline(config={**config, "process_docs": None, "fewshot_config": None, "custom_dataset": None})
        except Exception as error:
            raise ConfigError(
                f"task: the harness cannot load {file}: {type(error).__name__}: {error!s:.300}"
            ) from error


def scores(task: Any, documents: Sequence[Mapping[str, Any]], texts: Sequence[str]) -> list[dict[str, Any]]:
    """Return what a task's own filters and code make of texts, by metric: ``acc``, or ``acc.FILTER`` if it has several.

    Of multiple choice, a text is the choices' log-likelihoods, as a list in JSON.
    """
    from lm_eval.api.instance import Instance

    with quietly():
        instances = []
        for index, (doc, text) in enumerate(zip(documents, texts, strict=True)):
            instance = Instance("generate_until", dict(doc), ("", {}), 0, metadata=(task.task_name, index, 1))
            is_choice = task.OUTPUT_TYPE == "multiple_choice"
            instance.resps.append([(value, False) for value in json.loads(text)] if is_choice else text)
            instances.append(instance)
        try:
            for ensemble in filters_of(task):
                ensemble.apply(instances)
            by_row = []
            for instance in instances:
                of_row = {}
                for name, answer in instance.filtered_resps.items():
                    for metric, value in task.process_results(instance.doc, answer if is_choice else [answer]).items():
                        of_row[label_of(task, metric, name)] = value
                by_row.append(of_row)
        except Exception as error:
            reason = " ".join(str(error).split())
            raise MetricInputError(f"task: its scoring code fails: {type(error).__name__}: {reason:.300}") from error
    return by_row


def label_of(task: Any, metric: str, ensemble: str) -> str:
    """Return the name of a metric under a filter, in the letters that names of metrics may have."""
    return re.sub(r"[^A-Za-z0-9_.]", "_", metric if len(filters_of(task)) == 1 else f"{metric}.{ensemble}")
