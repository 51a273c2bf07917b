"""How many tasks of the installed lm-evaluation-harness `lmgate import` takes, by kind, and why not the others.

    python benchmarks/tasks_coverage.py              # all tasks, with made-up documents
    python benchmarks/tasks_coverage.py --seconds 300   # as many as that, in a random order

Each task is imported as the command does it, with its own code, templates and examples; only its dataset is made up.
Where no documents are found that a task accepts, and for the tasks that are left when the seconds are over, the YAML
alone decides: the columns "by YAML" and "not by YAML".

The templates of a task say which columns there are and of what shape. What they leave open, and what code of a task
reads, is found by trying: an error of the task names the column that lacks, or another shape is tried.
"""

from __future__ import annotations

import argparse
import collections
import functools
import os
import random
import re
import sys
import time
import types
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

# Anything a task would fetch; the library evaluate tries again and again for minutes.
os.environ |= {"HF_HUB_OFFLINE": "1", "HF_EVALUATE_OFFLINE": "1"}

import datasets
import jinja2
import pyarrow
from jinja2 import nodes

from pytest_lmgate.errors import LmgateError
from pytest_lmgate.tools.tasks import harness
from pytest_lmgate.tools.tasks.freeze import freeze

_ROWS, _TRIES, _AGAIN, _WANTED = 8, 60, 4, 0.95


WORDS = "the cat sat on a mat and the dog ran to the log by the old red barn near a lake at noon".split()  # noqa: SIM905
_TEXT_METHODS = {name for name in dir(str) if not name.startswith("_")} - {"index"}
_LIST_FILTERS = {"join", "list", "first", "last", "random", "sort", "unique", "map", "select", "sum", "batch"}
_KEYS = ("doc_to_text", "doc_to_target", "doc_to_choice", "description", "gen_prefix", "doc_to_decontamination_query")
_LENGTH = 4  # of a list


class Shape:
    """What a column holds: parts by name, elements, one of some constants, or a text."""

    def __init__(self) -> None:
        self.parts: dict[str, Shape] = {}
        self.element: Shape | None = None
        self.constants: list[Any] = []
        self.tried = 0  # how many of the usual constants were tried, where it is looked up in a table

    def value(self, drawn: random.Random, row: int) -> Any:
        if self.parts:
            return {name: each.value(drawn, row) for name, each in self.parts.items()}
        if self.element is not None:
            return [self.element.value(drawn, row + at) for at in range(_LENGTH)]
        if self.constants:
            return self.constants[row % len(self.constants)]
        return text(drawn, row)


def text(drawn: random.Random, row: int) -> str:
    return " ".join(drawn.choices(WORDS, k=4)) + f" {WORDS[row % len(WORDS)]}"


def shapes(config: Mapping[str, Any]) -> dict[str, Shape]:
    """Return the shapes of the columns that a task's templates name."""
    found: dict[str, Shape] = {}
    shots = config.get("fewshot_config")
    sources = [config, *([shots] if isinstance(shots, dict) else [])]
    for key in _KEYS:
        for source in sources:
            template = source.get(key)
            if not isinstance(template, str):
                continue
            if "{" not in template:
                if re.fullmatch(r"\w+", template) and key != "description" and not template.isdigit():
                    shape = found.setdefault(template, Shape())
                    if key == "doc_to_choice":
                        shape.element = Shape()
                    elif key == "doc_to_target" and config.get("doc_to_choice"):
                        shape.constants = [0, 1]
                continue
            try:
                tree = jinja2.Environment(autoescape=False).parse(template)
            except jinja2.TemplateError:
                continue
            _walk(tree, found, set())
    return found


def _walk(node: nodes.Node, found: dict[str, Shape], bound: set[str]) -> None:
    if isinstance(node, nodes.For):
        if (listed := _shape(node.iter, found, bound)) is not None:
            listed.element = listed.element or Shape()
        names = {each.name for each in node.target.find_all(nodes.Name)}
        if isinstance(node.target, nodes.Name):
            names.add(node.target.name)
        bound = bound | names | {"loop"}
    if isinstance(node, nodes.Assign):
        bound |= {each.name for each in [node.target] if isinstance(each, nodes.Name)}
    if isinstance(node, nodes.Filter) and node.node is not None and node.name in _LIST_FILTERS:
        listed = _shape(node.node, found, bound)
        if listed is not None and not listed.parts:
            listed.element = listed.element or Shape()
    if isinstance(node, nodes.Compare) and isinstance(node.ops[0].expr, nodes.Const | nodes.List):
        shape = _shape(node.expr, found, bound)
        if shape is not None:
            expr = node.ops[0].expr
            shape.constants += [expr.value] if isinstance(expr, nodes.Const) else _constants(expr)
    if (
        isinstance(node, nodes.Call)
        and isinstance(node.node, nodes.Getattr)
        and node.node.attr == "index"
        and node.args
    ):
        listed, sought = node.node.node, _shape(node.args[0], found, bound)
        if isinstance(listed, nodes.List) and sought is not None:
            sought.constants += _constants(listed)
    if isinstance(node, nodes.Sub) and isinstance(node.right, nodes.Const):
        number = _shape(node.left, found, bound)
        if number is not None and not number.constants:
            number.constants = [1, 2]
    if isinstance(node, nodes.Getitem):
        index = _shape(node.arg, found, bound)
        if index is not None and not index.constants:
            index.constants = [0, 1]
            if isinstance(node.node, nodes.Dict):
                index.constants = [each.key.value for each in node.node.items if isinstance(each.key, nodes.Const)]
    _shape(node, found, bound)
    for child in node.iter_child_nodes():
        _walk(child, found, bound)


def _constants(node: nodes.List) -> list[Any]:
    return [each.value for each in node.items if isinstance(each, nodes.Const)]


def _shape(node: nodes.Node, found: dict[str, Shape], bound: set[str]) -> Shape | None:
    """Return the shape of what an expression names, if it names a column or a part of one."""
    if isinstance(node, nodes.Name):
        is_column = node.name not in bound and node.name not in ("range", "dict", "namespace")
        return found.setdefault(node.name, Shape()) if is_column else None
    if isinstance(node, nodes.Getattr) and node.attr not in _TEXT_METHODS | {"index", "items", "values", "keys"}:
        outer = _shape(node.node, found, bound)
        return None if outer is None else outer.parts.setdefault(node.attr, Shape())
    if isinstance(node, nodes.Getitem) and not isinstance(node.arg, nodes.Slice):
        outer = _shape(node.node, found, bound)
        if outer is None:
            return None
        if isinstance(node.arg, nodes.Const) and isinstance(node.arg.value, str):
            return outer.parts.setdefault(node.arg.value, Shape())
        outer.element = outer.element or Shape()
        return outer.element
    return None


def rows_of(found: Mapping[str, Shape], number: int) -> list[dict[str, Any]]:
    drawn = random.Random(0)
    return [{name: shape.value(drawn, row) for name, shape in found.items()} for row in range(number)]


def fitting(
    config: Mapping[str, Any],
    load: Callable[[list[dict[str, Any]]], Any],
    number: int,
    known: Mapping[str, Shape] | None = None,
    tries: int = 40,
) -> tuple[Any, dict[str, Shape]]:
    """Return what `load` returns for documents that the task accepts, and their shapes.

    An error of `load` refuses the documents; the last one is raised if none are accepted. `known` has shapes of another
    task of the folder, to begin with.
    """
    found = {**shapes(config), **(known or {})}
    drawn, last, constants = random.Random(1), "", code_constants(config)
    for attempt in range(tries):
        rows = rows_of(found, number) if found else [{"text": "a"}] * number
        try:
            return load(rows), found
        except Exception as error:
            if attempt == tries - 1:
                raise
            cause: BaseException = error
            while cause.__cause__ is not None:
                cause = cause.__cause__
            name = _lacking(cause)
            held = next((column for column in found if any(row.get(column) == name for row in rows)), None)
            is_column = name is not None and name not in found and " " not in name.strip()
            if is_column and (held is None or drawn.random() < 0.5):  # a value may be called as a column is
                assert name is not None
                if last in found and "string indices" in str(cause):
                    found[last].parts.setdefault(name, Shape())
                found[name], last = Shape(), name
                continue
            if held is not None and drawn.random() < 0.7:
                shape = found[held]
                shape.parts, shape.element = {}, None
                shape.constants = list(_CONSTANTS[shape.tried % _LOOKED_UP])
                shape.tried += 1
                continue
            _mutate(found, config.get("doc_to_target"), str(cause), held or last, constants, drawn)
    raise AssertionError


def code_constants(config: Mapping[str, Any]) -> list[Any]:
    """Return texts that a task's functions compare with or look up: constants, and keys of tables that they use."""
    found: dict[Any, None] = {}
    bound: list[str] = []  # to parameters of functions

    def look(function: Any, depth: int = 0) -> None:
        if isinstance(function, functools.partial):
            for value in function.keywords.values():
                found.update(dict.fromkeys(value if isinstance(value, list | dict) else [value]))
                bound.extend([value] if isinstance(value, str) else [])
            function = function.func
        code = getattr(function, "__code__", None)
        if code is None or depth > 3:
            return
        names = getattr(function, "__globals__", {})
        for each in walk(code):
            found.update(dict.fromkeys(value for value in each.co_consts if isinstance(value, str) and len(value) < 40))
            for value in each.co_consts:
                if isinstance(value, tuple | frozenset):
                    found.update(dict.fromkeys(one for one in value if isinstance(one, str)))
            for name in each.co_names:
                value = names.get(name)
                if isinstance(value, dict | list | tuple) and len(value) < 100:
                    found.update(dict.fromkeys(one for one in value if isinstance(one, str)))
                elif callable(value) and getattr(value, "__module__", "") == getattr(function, "__module__", None):
                    look(value, depth + 1)

    def walk(code: types.CodeType) -> Iterator[types.CodeType]:
        yield code
        for each in code.co_consts:
            if isinstance(each, types.CodeType):
                yield from walk(each)

    for value in [*config.values(), *(config.get("fewshot_config") or {}).values()]:
        if callable(value):
            look(value)
    texts = [each for each in found if isinstance(each, str) and each]
    return [*texts, *(f"{begin}{end}" for begin in texts if begin[-1] in "._-/" for end in bound)]


def _lacking(error: BaseException) -> str | None:
    if isinstance(error, KeyError) and error.args and isinstance(error.args[0], str):
        return re.sub(r".*[Cc]olumn (?:to remove )?\[?'?([\w ]+)'?\]?.*", r"\1", error.args[0])
    if match := re.search(
        r"'(\w+)' is undefined|[Cc]olumn (?:name )?\[?'?(\w+)'?\]? |has no attribute '(\w+)'", str(error)
    ):
        return match[1] or match[2]
    return None


_LOOKED_UP = 9  # of these are looked up in tables
_CONSTANTS: tuple[list[Any], ...] = (
    ["A", "B"], [0, 1], [1, 2], ["1", "2"], ["0", "1"], [0.5, 1.5], [True, False], ["yes", "no"], ["True", "False"],
    ["['a cat', 'a dog', 'a log', 'a mat']"], ["{'a': 'a cat'}"], [[0], [1]], [["a cat"], ["a dog"]],
    ["#### 7", "#### 42"],
    [{"text": ["a cat", "a dog"], "label": ["A", "B"]}], [{"text": ["a cat"], "answer_start": [0]}], ["2020-01-02"],
)  # fmt: skip


def _mutate(
    found: dict[str, Shape], target: Any, said: str, last: str, constants: Sequence[Any], drawn: random.Random
) -> None:
    """Give another shape to the column that the error seems to be about, else to any."""
    if not found:
        return
    names = [name for name in found if name in said] or ([last] if last in found and drawn.random() < 0.7 else [])
    if not names and isinstance(target, str) and drawn.random() < 0.5:
        names = [name for name in found if name in target]
    if "size 0" in said and constants:
        names = [name for name in found if name in constants]
    shape = found[drawn.choice(names or list(found))]
    shape.parts, shape.element, shape.constants = {}, None, []
    attribute = re.search(r"object' has no attribute '(\w+)'", said)
    if attribute and attribute[1] not in _TEXT_METHODS and drawn.random() < 0.7:
        shape.parts[attribute[1]] = Shape()
        return
    others = [each for each in constants if each not in found]
    if others and drawn.random() < (0.9 if "size 0" in said else 0.4):
        shape.constants = [drawn.choice(others)]
    elif drawn.random() < 0.3:
        shape.element = Shape()
        if drawn.random() < 0.3:
            shape.element.constants = [0, 1]
    else:
        shape.constants = list(drawn.choice(_CONSTANTS))


class AnySplit(dict[str, Any]):
    def __missing__(self, split: str) -> Any:
        return self["all"]


def main() -> int:
    asked = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    asked.add_argument("--seconds", type=float, default=float("inf"), help="Import no more then: their YAML decides.")
    asked.add_argument("--only", help="Only tasks whose names match.")
    given = asked.parse_args()
    datasets.disable_progress_bars()
    datasets.disable_caching()  # which hashes each function that documents go through, and its module
    with harness.quietly():
        from lm_eval.tasks import TaskManager
        from lm_eval.tasks._index import Kind

        index = TaskManager().task_index
    entries = [each for each in index.values() if each.kind is Kind.TASK]
    if given.seconds < float("inf"):
        random.Random(0).shuffle(entries)
    if given.only:
        entries = [each for each in entries if re.search(given.only, each.name)]
    outcomes: dict[str, collections.Counter[str]] = collections.defaultdict(collections.Counter)
    reasons: collections.Counter[str] = collections.Counter()
    by_reading: collections.Counter[str] = collections.Counter()
    unrun: collections.Counter[str] = collections.Counter()
    known: dict[str, dict[str, Shape]] = {}
    tried: set[str] = set()
    begun = time.monotonic()
    for number, entry in enumerate(entries):
        config = entry.cfg
        own = ", own code" * bool(config.get("process_results"))
        kind = f"{config.get('output_type', 'generate_until')}{own}"
        in_time = time.monotonic() - begun < given.seconds
        outcome, why = imported(entry, known, tried) if in_time else ("not run", "")
        outcomes[kind][outcome] += 1
        if outcome == "refused":
            reasons[_general(why)] += 1
        elif outcome == "not run":
            lacking = refused_by_yaml(config)
            outcomes[kind]["by YAML"] += not lacking
            by_reading[lacking] += 1
            unrun[f"{Path(entry.yaml_path).parts[-2]}: {_general(why)}"] += in_time
        if given.only:
            print(entry.name, outcome, why)
        if number % 500 == 499:
            print(f"{number + 1:,} of {len(entries):,}, {time.monotonic() - begun:.0f} s", file=sys.stderr)
    columns = ("imported", "refused", "by YAML", "not by YAML")
    print(f"{'kind':34}{'tasks':>8}" + "".join(f"{column:>13}" for column in columns))
    total: collections.Counter[str] = sum(outcomes.values(), collections.Counter())
    for kind, counts in [*sorted(outcomes.items(), key=lambda each: -sum(each[1].values())), ("all", total)]:
        counts["not by YAML"] = counts["not run"] - counts["by YAML"]
        number = sum(counts[outcome] for outcome in ("imported", "refused", "not run"))
        print(f"{kind:34}{number:8,}" + "".join(f"{counts[column]:13,}" for column in columns))
    share = (total["imported"] + total["by YAML"]) / max(1, number)
    print(
        f"\nlm-evaluation-harness {harness.installed()}, {number:,} task files: {share:.1%} can be imported; "
        f"{total['imported'] + total['refused']:,} were run with made-up documents"
    )
    del by_reading[""]
    for title, counted in (
        ("refused, because", reasons),
        ("not by YAML, because", by_reading),
        ("no documents found that the task accepts", +unrun),
    ):
        print(f"\n{title}")
        for reason, times in counted.most_common(25):
            print(f"{times:7,}  {reason:.150}")
    return 0 if share >= _WANTED or given.only else 1


def imported(entry: Any, known: dict[str, dict[str, Shape]], tried: set[str]) -> tuple[str, str]:
    """Import one task, and return what came of it with the reason."""
    from lm_eval.api.task import ConfigurableTask
    from lm_eval.tasks._factory import TaskFactory
    from lm_eval.tasks._yaml_loader import load_yaml

    def load(rows: list[dict[str, Any]]) -> Any:
        dataset = AnySplit(all=datasets.Dataset(pyarrow.Table.from_pylist(rows), fingerprint="made-up"))
        ConfigurableTask.download = lambda self, *_, **__: setattr(self, "dataset", dataset)
        harness.seed()
        with harness.quietly():
            task = TaskFactory().build(entry, overrides={"custom_dataset": None}, registry={})
        harness.prepare(task, shots=None, seed=1234, split=None)
        documents = harness.documents(task, rows=_ROWS, chat=False)
        try:
            return freeze(task, documents, chat=False, file="task.yaml")
        except LmgateError as error:
            if type(error).__name__ == "ConfigError" and "its scoring code fails" not in str(error):
                return error  # the code may fail because of the documents
            raise

    folder = str(Path(entry.yaml_path).parent)
    try:
        config = load_yaml(entry.yaml_path)
        # Where documents were sought in vain for one task of a folder, they are not for its hundreds of others.
        found, known[folder] = fitting(config, load, _ROWS, known.get(folder), _AGAIN if folder in tried else _TRIES)
    except (Exception, SystemExit) as error:  # slr_bench ends Python if a program lacks
        tried.add(folder)
        return "not run", f"{type(error).__name__}: {error}"
    if isinstance(found, LmgateError):
        return "refused", str(found)
    return "imported", ""


def refused_by_yaml(config: dict[str, Any]) -> str:
    """Return why no metric of a task could be gated, as far as its YAML says; empty if one could."""
    if config.get("doc_to_image") or config.get("doc_to_audio"):
        return "images or sound"
    if config.get("unsafe_code"):
        return "it runs the code that a model writes"
    kind, own = config.get("output_type", "generate_until"), bool(config.get("process_results"))
    metrics = {str(each["metric"]): each.get("aggregation") for each in config.get("metric_list") or ()}
    if kind == "multiple_choice":
        plain = ("acc", "acc_norm", "acc_bytes")
        fits = any(how in ("mean", None) for name, how in metrics.items() if own or name in plain)
    elif kind == "generate_until":
        standard = ("exact_match", "bleu", "chrf", "ter")
        fits = any(
            how in ("mean", "nanmean", "bleu", "chrf", "chrf++", "ter") or (how is None and name in standard)
            for name, how in metrics.items()
        )
    elif own and kind == "loglikelihood":
        return f"{kind} with code of its own"
    else:
        return ""
    return (
        ""
        if fits or not metrics
        else f"no metric that is a mean over rows: {', '.join(Path(each).name for each in metrics)}"
    )


def _general(reason: str) -> str:
    return re.sub(r"\b(document|row) \d+", r"\1 N", " ".join(reason.split()))[:160]


if __name__ == "__main__":
    sys.exit(main())
