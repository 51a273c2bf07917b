"""lmgate.yaml: read once, decoded entry by entry, its gates too. Errors name file, line, key and what was expected."""

from __future__ import annotations

import functools
import itertools
import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import msgspec
import yaml

from pytest_lmgate.errors import ConfigError, LmgateError, nearest
from pytest_lmgate.settings.decoding import LISTED, arguments_taken, convert, gate_arguments, parse_marker
from pytest_lmgate.settings.entries import (
    DatasetSpec,
    Defaults,
    ModelSpec,
    Project,
    ProjectSpec,
    ResultsSpec,
    ServerSpec,
)
from pytest_lmgate.settings.gates import Gate
from pytest_lmgate.settings.metrics import MARKER_NAMES
from pytest_lmgate.settings.options import find_project_file, read_project_file

_TOP_LEVEL = ("devices", "label", "defaults", "models", "datasets", "gates")
_MOST_VALUES = 1_000_000  # a megabyte of text has fewer, and a kilobyte of aliases may have billions
_MOST_GATES = 10_000  # of one entry, whose lists multiply


@dataclass(frozen=True)
class _Document:
    """A file's content, and the nodes that it was made of, which know their lines; None for an empty file."""

    file: Path
    content: object
    root: yaml.Node | None

    def at(self, keys: Sequence[object], name: str = "") -> str:
        """Return ``lmgate.yaml:3: models.die.dtype`` for a key, given with those above it, wherever it is merged in.

        The key is called `name`, by default its parts with dots between.
        """
        line = self.line(keys)
        return f"{self.file}{f':{line}' if line else ''}: {name or '.'.join(map(str, keys))}"

    def line(self, keys: Sequence[object]) -> int:
        node, line = self.root, 0
        for key in keys:
            pairs = node.value if isinstance(node, yaml.MappingNode) else []
            # The library puts what `<<` merges in before what is written.
            found = next((pair for pair in reversed(pairs) if pair[0].value == str(key)), None)
            if found is None:
                break
            line, node = _line_of(found[0]), found[1]
        return line

    def top_level(self) -> dict[Any, Any]:
        """Return the content by its keys, or raise ConfigError for a key that is not known."""
        top = self.mapping(self.content)
        self.require_known(top, _TOP_LEVEL)
        return top

    def mapping(self, data: object, *keys: str) -> dict[Any, Any]:
        if data is None:
            return {}
        if isinstance(data, dict):
            return data
        hint = _outdent(*keys)
        if isinstance(data, str) and len(keys) == 2:  # an entry of models: or datasets:
            key = "hub" if data.startswith("hub:") else "path"
            hint = f"; write {keys[-1]}: {{{key}: {data.removeprefix('hub:')}}}"
        where = self.at(keys, "" if keys else "top level")
        kind = "a list" if isinstance(data, list) else "text" if isinstance(data, str) else type(data).__name__
        raise ConfigError(f"{where}: expected keys with values, got {kind}{hint}")

    def require_known(self, data: dict[Any, Any], valid: Iterable[str], *keys: str) -> None:
        valid = list(valid)
        if unknown := [name for name in data if name not in valid]:
            name = unknown[0]
            raise ConfigError(
                f"{self.at([*keys, name])}: unknown key{nearest(str(name), valid)}; expected one of {', '.join(valid)}"
                f"{_outdent(*keys, name)}"
            )

    def entries(self, data: object, kind: type[Any], key: str) -> dict[str, Any]:
        entries = self.mapping(data, key)
        if unnamed := [name for name in entries if not isinstance(name, str)]:
            where = self.at([key])
            raise ConfigError(f"{where}: expected names that are text, got {unnamed[0]!r}; put it in quotes")
        return {name: self.entry(entry, kind, key, name) for name, entry in entries.items()}

    def entry(self, data: object, kind: type[Any], *keys: str) -> Any:
        entry = self.mapping(data, *keys)
        self.require_known(entry, kind.__struct_encode_fields__, *keys)
        for key, inside in (("server", ServerSpec), ("results", ResultsSpec)) if kind is ModelSpec else ():
            if isinstance(entry.get(key), dict):
                self.entry(entry[key], inside, *keys, key)  # an error names the key in it
        try:
            return convert(entry, kind)
        except ConfigError as error:
            inner = error.argument.split(".")  # as in load.subfolder
            if inner[0] in entry:
                raise ConfigError(f"{self.at([*keys, *inner])}: {error.detail}") from None
            raise ConfigError(f"{self.at(keys)}: {error}") from None


def _line_of(node: yaml.Node) -> int:
    return int(node.start_mark.line) + 1


def _outdent(*keys: object) -> str:
    """Say where a top-level key belongs that was indented below another."""
    return f"; {keys[-1]}: goes at the start of a line" if len(keys) > 1 and keys[-1] in _TOP_LEVEL else ""


def load_project(start: Path, explicit: Path | None = None) -> Project:
    """Load the models and datasets of the file `explicit`, or of the nearest one from the folder `start` upward."""
    file = explicit or find_project_file(start)
    if file is None:
        return Project(start)
    return parse_project(read_project_file(file, "; check --lmgate-config" if explicit else ""), file)


def parse_project(text: str, file: Path) -> Project:
    """Decode the text of a project's file; the errors are those of `load_project`."""
    return Project(file.parent, file, _decode(_parse(text, file)))


def _decode(document: _Document) -> ProjectSpec:
    top = document.top_level()
    try:
        own = convert({key: top[key] for key in ("devices", "label") if top.get(key) is not None}, ProjectSpec)
    except ConfigError as error:
        raise ConfigError(f"{document.at([error.argument.partition('.')[0]])}: {error.detail}") from None
    spec = msgspec.structs.replace(
        own,
        defaults=document.entry(_of_models(document, top), Defaults, "defaults"),
        models=document.entries(top.get("models"), ModelSpec, "models"),
        datasets=document.entries(top.get("datasets"), DatasetSpec, "datasets"),
    )
    if "baseline" in spec.models:
        raise ConfigError(
            f"{document.at(['models', 'baseline'])}: expected another name, since against: baseline is the committed "
            "baseline and would not measure this model"
        )
    return spec


def _of_models(document: _Document, top: dict[Any, Any]) -> dict[str, Any]:
    """Return the defaults of models; refuse one that is no argument of a gate either, or that has no gate to go to."""
    given = document.mapping(top.get("defaults"), "defaults")
    own = Defaults.__struct_fields__
    for name in given.keys() - set(own):
        if name not in (known := gate_arguments()):
            raise ConfigError(
                f"{document.at(['defaults', name])}: unknown key{nearest(str(name), [*own, *known])}; expected one of "
                f"{', '.join(own)}, or an argument of a gate{_outdent('defaults', name)}"
            )
        if "gates" not in top:
            raise ConfigError(f"{document.at(['defaults', name])}: it is for gates, and the file has no gates:")
    return {name: value for name, value in given.items() if name in own}


@functools.lru_cache(maxsize=8)  # the gates of a file are read first, and its models when all are collected
def _parse(text: str, file: Path) -> _Document:
    try:
        loader = _Loader(text)  # a SafeLoader
        node = loader.get_single_node()
        if node is not None:
            _values(node, {})
        return _Document(file, None if node is None else loader.construct_document(node), node)
    except yaml.MarkedYAMLError as error:
        line = f":{error.problem_mark.line + 1}" if error.problem_mark else ""
        what = ", ".join(part for part in (error.context, error.problem) if part)
        raise ConfigError(f"{file}{line}: not valid YAML: {what}{_brace_hint(text, error.problem_mark)}") from error
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        # ValueError: the library passes on what int() and date() say of 0x_ and 2024-13-45.
        raise ConfigError(f"{file}: not valid YAML: {' '.join(str(error).split())}") from error


def _values(node: yaml.Node, known: dict[yaml.Node, int | None]) -> int:
    """Count the values below a node, with those that its aliases repeat; refuse aliases without end."""
    if node in known:
        count = known[node]
        if count is None:
            raise yaml.constructor.ConstructorError(
                None, None, "an alias repeats what it is in itself", node.start_mark
            )
        return count
    known[node] = None
    nodes = [each for pair in node.value for each in pair] if isinstance(node, yaml.MappingNode) else node.value
    is_scalar = isinstance(node, yaml.ScalarNode)
    if is_scalar and (half := re.search(r"[\ud800-\udfff]", node.value)):
        text = f"{half[0]!r} is half of a surrogate pair, which is not valid UTF-8"
        raise yaml.constructor.ConstructorError(None, None, text, node.start_mark)
    known[node] = count = 1 if is_scalar else 1 + sum(_values(each, known) for each in nodes)
    if count > _MOST_VALUES:
        text = f"with its aliases it has more than {_MOST_VALUES:,} values; write out what is needed of them"
        raise yaml.constructor.ConstructorError(None, None, text, node.start_mark)
    return count


def _brace_hint(text: str, mark: Any) -> str:
    """Say how to write a text that begins with a field, if the line has one."""
    line = text.splitlines()[mark.line : mark.line + 1] if mark else []
    if line and re.search(r":\s+\{[\w .-]*\}\s*[^\s,}\]#]", line[0]):
        return "; a text that begins with { needs quotes: prompt: '{question} Answer:'"
    return ""


class _Loader(yaml.SafeLoader):
    """Refuses duplicate keys, which YAML forbids, and numbers that only YAML 1.1 has: ``1:30`` (90), ``010`` (8)."""

    def compose_mapping_node(self, anchor: Any) -> yaml.MappingNode:
        node = super().compose_mapping_node(anchor)
        seen: set[tuple[str, str]] = set()
        for key, _ in node.value:
            if not isinstance(key, yaml.ScalarNode):
                continue
            if (key.tag, key.value) in seen:
                raise yaml.constructor.ConstructorError(
                    None, None, f"key {key.value!r} is written twice", key.start_mark
                )
            seen.add((key.tag, key.value))
        return node

    def construct_plain_number(self, node: yaml.ScalarNode) -> int | float:
        is_int = node.tag.endswith("int")
        value = self.construct_yaml_int(node) if is_int else self.construct_yaml_float(node)
        if re.search(r"[_:]" + r"|^[-+]?0[\db]" * is_int, node.value):
            text = f"{node.value} would be the number {value}; write a number in plain digits, or a text in quotes"
            raise yaml.constructor.ConstructorError(None, None, text, node.start_mark)
        return value


for _kind_of_number in ("int", "float"):
    _Loader.add_constructor(f"tag:yaml.org,2002:{_kind_of_number}", _Loader.construct_plain_number)

_EXAMPLE = "- ppl_max: {model: ..., dataset: ..., limit: ...}"
_EXPONENT = re.compile(r"[-+]?\d[\d_]*(\.\d*)?[eE][-+]?\d+")  # a number to everyone but YAML 1.1


@dataclass
class YamlGate:
    """One entry of ``gates:``."""

    marker: str  # name of the marker
    arguments: Mapping[str, Any]  # its arguments by name, as written
    file: Path  # its file
    key: str  # its place in the file, as in ``gates[3].ppl_max``
    line: int  # its line, from 1
    lines: Mapping[str, int]  # the line of each argument
    defaults: Mapping[str, int] = field(default_factory=dict)  # the line of each of the file's defaults
    gate: Gate = field(init=False)  # the gate that it defines
    marks: tuple[str, ...] = ()  # names of pytest's own marks
    is_one_of_many: bool = False  # whether a list makes other gates of the same entry

    def problem(self, error: LmgateError) -> str:
        name = error.argument if isinstance(error, ConfigError) else ""
        if not isinstance(error, ConfigError) or name not in (self.lines.keys() | self.defaults.keys()):
            return f"{self.file}:{self.line}: {self.key}: {error}"
        value, hint = self.arguments.get(name), ""
        if isinstance(value, str) and _EXPONENT.fullmatch(value):
            hint = "; YAML takes an exponent only with a dot and a sign, as in 1.0e-3"
        if isinstance(value, list) and name in _SINGLE:
            hint = f"; only {', '.join(LISTED)} take a list, and a mapping gives each of its names a value"
        if name not in self.lines:
            return f"{self.file}:{self.defaults[name]}: {self.key}: defaults.{name}: {error.detail}{hint}"
        return f"{self.file}:{self.lines[name]}: {self.key}.{name}: {error.detail}{hint}"


def read_gates(file: Path) -> tuple[list[YamlGate], list[str]]:
    """Read the gates of an lmgate.yaml.

    Returns:
        The gates in the file's order, and a message for each wrong entry.
    """
    document = _parse(read_project_file(file), file)
    top = document.top_level()
    if "gates" not in top:
        _decode(document)  # the list may be below datasets:, by a blank too many
        return [], []
    assert isinstance(document.root, yaml.MappingNode)
    key, listed = next(pair for pair in reversed(document.root.value) if pair[0].value == "gates")
    entries = top["gates"]
    if not isinstance(entries, list) or not entries:
        raise ConfigError(
            f"{file}:{_line_of(key)}: gates: expected a list of gates such as {_EXAMPLE}, got {_kind(entries)}; "
            "remove the key if there are none"
        )
    own = document.mapping(top.get("defaults"), "defaults")
    defaults = {name: value for name, value in own.items() if name not in Defaults.__struct_fields__}
    lines = {name: document.line(["defaults", name]) for name in defaults}
    gates, problems, used = list[YamlGate](), list[str](), set[str]()
    for index, (entry, node) in enumerate(zip(entries, listed.value, strict=True)):
        try:
            gates += _gates(entry, node, file, f"gates[{index}]", defaults, lines, used)
        except ConfigError as error:
            problems.append(str(error))
    by_label: dict[str, list[YamlGate]] = {}
    for gate in gates:
        alike = by_label.setdefault(gate.gate.label, [])
        if twin := next((each for each in alike if (each.gate, each.marks) == (gate.gate, gate.marks)), None):
            what = f"it is {twin.key} in line {twin.line} once more: change what was meant to differ, or remove it"
            problems.append(f"{file}:{gate.line}: {gate.key}: {what}")
        alike.append(gate)
    if not problems:
        problems += [
            f"{document.at(['defaults', name])}: no gate uses it: none takes {name}, or each gives its own; remove it"
            for name in defaults
            if name not in used and name in gate_arguments()  # of others, decoding the file says more
        ]
    return gates, problems


def _gates(
    entry: object,
    node: yaml.Node,
    file: Path,
    key: str,
    defaults: Mapping[str, Any],
    default_lines: Mapping[str, int],
    used: set[str],
) -> list[YamlGate]:
    """Return the gates of an entry: several where arguments are lists."""
    where = f"{file}:{_line_of(node)}: {key}"
    if not isinstance(entry, dict):
        raise ConfigError(f"{where}: expected a marker with its arguments, as in {_EXAMPLE}; got {_kind(entry)}")
    if len(entry) != 1:
        keys = ", ".join(map(str, entry)) or "none"
        hint = "; indent the arguments below their marker" if None in entry.values() else ""
        raise ConfigError(f"{where}: expected exactly one marker, as in {_EXAMPLE}; got {keys}{hint}")
    (marker, arguments), (marker_node, arguments_node) = next(iter(entry.items())), node.value[-1]
    where = f"{file}:{_line_of(marker_node)}: {key}.{marker}"
    if marker not in MARKER_NAMES:
        known = sorted(MARKER_NAMES)
        raise ConfigError(f"{where}: unknown marker{nearest(str(marker), known)}; expected one of {', '.join(known)}")
    if not isinstance(arguments, dict):
        raise ConfigError(f"{where}: expected arguments by name, as in {_EXAMPLE}; got {_kind(arguments)}")
    if unnamed := [name for name in arguments if not isinstance(name, str)]:
        before = list(arguments.items())[list(arguments).index(unnamed[0]) - 1]
        is_decimal = isinstance(unnamed[0], int) and arguments[unnamed[0]] is None and isinstance(before[1], int)
        hint = f"; a decimal has a dot: {before[0]}: {before[1]}.{unnamed[0]}" if is_decimal else ""
        raise ConfigError(f"{where}: expected names of arguments, got {unnamed[0]!r}{hint}")
    lines = {name.value: _line_of(name) for name, _ in arguments_node.value}  # what is merged in comes first
    gate = YamlGate(marker, arguments, file, f"{key}.{marker}", _line_of(marker_node), lines, default_lines)
    gates: list[YamlGate] = []
    try:
        for given in _written_out(marker, arguments, defaults, used):
            marks = _marks(given.pop("marks", None))
            gates.append(gate := replace(gate, arguments=given, marks=marks))
            for name in ("metric", "model", "reference", "dataset", "against"):
                if name in given:
                    _require_name(name, given[name])
            gate.gate = parse_marker(marker, (), given)
    except ConfigError as error:
        raise ConfigError(gate.problem(error)) from None
    for each in gates:
        each.is_one_of_many = len(gates) > 1
    return gates


_SINGLE = ("limit", "tolerance", "within", "against", "reference", "confidence", "protocol", "max_length")
_INSTEAD = {"tolerance": "within", "within": "tolerance"}  # a gate that gives one takes no default of the other


def _written_out(
    marker: str, arguments: Mapping[str, Any], defaults: Mapping[str, Any], used: set[str]
) -> Iterator[dict[str, Any]]:
    """Yield the arguments of each gate as if it had been written out by itself; note which defaults are `used`."""
    takes_metric = "metric" in arguments_taken(marker)
    metric = arguments.get("metric", defaults.get("metric")) if takes_metric else None
    for each in _names("metric", metric):
        taken = arguments_taken(marker, each) | {"marks"}
        known = taken | gate_arguments()  # for this metric a null may leave out what another one takes
        inherited = {
            name: value
            for name, value in defaults.items()
            if name in taken and not {name, _INSTEAD.get(name)} & arguments.keys()
        }
        used.update(inherited)
        given = {**inherited, **arguments}
        lists = {
            name: _names(name, value)
            for name, value in given.items()
            if name in LISTED and name in taken and isinstance(value, list)
        }
        axes = lists | ({"metric": [each]} if "metric" in lists else {})
        if (count := math.prod(map(len, axes.values()))) > _MOST_GATES:
            of = ", ".join(f"{len(values):,} of {name}" for name, values in axes.items())
            raise ConfigError(f"expected at most {_MOST_GATES:,} gates of an entry, got {count:,}: {of}; write several")
        for values in itertools.product(*axes.values()):
            chosen = dict(zip(axes, values, strict=True))
            written = {
                name: chosen.get(name, _own_value(name, value, lists, chosen) if name in known else value)
                for name, value in given.items()
            }
            # A null takes a default away, or leaves the argument out for one name of a list.
            may_be_left_out = {name for name in given if name in defaults or isinstance(given[name], dict)}
            yield {
                name: value
                for name, value in written.items()
                if value is not None or name not in may_be_left_out or name == "add_bos_token"  # whose null is a value
            }


def _names(argument: str, value: object) -> list[Any]:
    """Return the names of a list, or a single one as it is."""
    if not isinstance(value, list):
        return [value]
    if not value:
        raise ConfigError.of(argument, "expected a name or a list of names, got an empty list")
    for each in value:
        if not isinstance(each, str | int):
            raise ConfigError.of(argument, f"expected a list of single values, got {_kind(each)} in it")
        if value.count(each) > 1:
            raise ConfigError.of(argument, f"expected different values, got {each!r} twice")
    return value


def _own_value(argument: str, value: Any, lists: Mapping[str, list[Any]], chosen: Mapping[str, Any]) -> Any:
    """Return a value, of a mapping from the names in a list that of the chosen name."""
    if not isinstance(value, dict):
        return value
    if not lists:
        what = "a mapping, which gives each name of a list its own value: but this gate has no list for it"
        raise ConfigError.of(argument, f"expected a single value, got {what}")
    by = max(lists, key=lambda name: len(value.keys() & set(lists[name])))
    missing = [f"{name} is missing" for name in lists[by] if name not in value]
    extra = [f"got {name!r}{_meant(name, lists[by])}" for name in value if name not in lists[by]]
    if missing or extra:
        names = ", ".join(map(str, lists[by]))
        raise ConfigError.of(argument, f"expected a value for each {by}, {names}: {', '.join([*extra, *missing])}")
    if same := [name for name, names in lists.items() if name != by and value.keys() == set(names)]:
        raise ConfigError.of(argument, f"its keys may be names of {by} or of {same[0]}: write these gates one by one")
    return _own_value(argument, value[chosen[by]], {name: lists[name] for name in lists if name != by}, chosen)


def _meant(name: object, names: list[Any]) -> str:
    if str(name) in map(str, names):
        return " in quotes (write it as in the list)"
    return nearest(str(name), map(str, names))


# Marks of pytest that do nothing, or something else, without arguments of their own.
_NEED_ARGUMENTS = ("parametrize", "usefixtures", "skipif", "filterwarnings", "xdist_group")


def _marks(given: object) -> tuple[str, ...]:
    names = [given] if isinstance(given, str) else given
    if names is None:
        return ()
    if not isinstance(names, list) or not names or not all(isinstance(name, str) and name for name in names):
        raise ConfigError.of("marks", f"expected names of marks, as in [nightly], got {_kind(given)}")
    for name in names:
        if not name.isidentifier() or name in (*MARKER_NAMES, *_NEED_ARGUMENTS):
            what = "a gate" if name in MARKER_NAMES else "a mark that needs arguments" if name.isidentifier() else ""
            raise ConfigError.of("marks", f"expected the name of a mark, got {name!r}{what and f', {what}'}")
    return tuple(names)


def _require_name(argument: str, value: object) -> None:
    if isinstance(value, str) and value:
        return
    hint = "" if value is None or isinstance(value, list | dict | str) else " (put it in quotes)"
    raise ConfigError.of(argument, f"expected a name, got {_kind(value)}{hint}")


def _kind(data: object) -> str:
    if data is None or data in ([], {}, ""):
        return "nothing"
    return "a list" if isinstance(data, list) else "a mapping" if isinstance(data, dict) else repr(data)
