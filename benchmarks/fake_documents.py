"""Made-up documents for tasks of lm-evaluation-harness: rows with the columns that a task's templates and code read.

The templates say which columns there are and of what shape. What they leave open, and what code of a task reads, is
found by trying: an error of the task names the column that lacks, or another shape is tried.
"""

from __future__ import annotations

import functools
import random
import re
import types
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import jinja2
from jinja2 import nodes

WORDS = "the cat sat on a mat and the dog ran to the log by the old red barn near a lake at noon".split()  # noqa: SIM905
_TEXT_METHODS = {name for name in dir(str) if not name.startswith("_")} - {"index"}
_LIST_FILTERS = {"join", "list", "first", "last", "random", "sort", "unique", "map", "select", "sum", "batch"}
_KEYS = ("doc_to_text", "doc_to_target", "doc_to_choice", "description", "gen_prefix", "doc_to_decontamination_query")
_TRIES = 40
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
        names = (
            {each.name for each in node.target.find_all(nodes.Name)} | {node.target.name}
            if isinstance(node.target, nodes.Name)
            else {each.name for each in node.target.find_all(nodes.Name)}
        )
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
        return (
            None
            if node.name in bound or node.name in ("range", "dict", "namespace")
            else found.setdefault(node.name, Shape())
        )
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


def rows_of(found: Mapping[str, Shape], number: int, seed: int = 0) -> list[dict[str, Any]]:
    drawn = random.Random(seed)
    return [{name: shape.value(drawn, row) for name, shape in found.items()} for row in range(number)]


def fitting(
    config: Mapping[str, Any],
    load: Callable[[list[dict[str, Any]]], Any],
    number: int,
    known: Mapping[str, Shape] | None = None,
    tries: int = _TRIES,
) -> tuple[Any, dict[str, Shape]]:
    """Return what `load` returns for documents that the task accepts, and their shapes.

    Args:
        config: The task's YAML, with its functions.
        load: Loads the task with these documents; an error refuses them.
        number: Of documents.
        known: Shapes that another task of the folder accepted, to begin with.
        tries: How often other documents are tried.

    Raises:
        Exception: The last error of the task, if no documents were found that it accepts.
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
