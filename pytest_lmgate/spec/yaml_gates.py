"""The ``gates:`` list of lmgate.yaml: each entry a marker with its arguments by name. Errors name line and key."""

from __future__ import annotations

__all__ = ["YamlGate", "read_gates"]

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from pytest_lmgate.config.file import decode, known_top_level, parse_file
from pytest_lmgate.config.lines import Lines, line_of
from pytest_lmgate.errors import ConfigError, LmgateError, nearest
from pytest_lmgate.metrics.table import MARKERS
from pytest_lmgate.spec.arguments import NO_REGRESSION
from pytest_lmgate.spec.gates import Gate, NoRegression
from pytest_lmgate.spec.markers import parse_marker

_MARKERS = sorted([*MARKERS, NO_REGRESSION])
_NAMES = ("metric", "model", "reference", "dataset", "against")
_EXAMPLE = "- ppl_max: {model: ..., dataset: ..., limit: ...}"
_EXPONENT = re.compile(r"[-+]?\d[\d_]*(\.\d*)?[eE][-+]?\d+")  # a number to everyone but YAML 1.1


@dataclass
class YamlGate:
    """One entry of ``gates:``.

    Attributes:
        marker: Name of the marker.
        arguments: Its arguments by name, as written.
        file: The file it is in.
        key: Its place in the file, as in ``gates[3].ppl_max``.
        line: Its line, from 1.
        lines: The line of each argument.
        gate: What the entry asks for.
    """

    marker: str
    arguments: Mapping[str, Any]
    file: Path
    key: str
    line: int
    lines: Mapping[str, int]
    gate: Gate | NoRegression = field(init=False)

    def problem(self, error: LmgateError) -> str:
        """Return an error's message with the line and the key of the argument that it is about."""
        name = error.argument if isinstance(error, ConfigError) else ""
        if not isinstance(error, ConfigError) or name not in self.lines:
            return f"{self.file}:{self.line}: {self.key}: {error}"
        value = self.arguments[name]
        is_number = isinstance(value, str) and _EXPONENT.fullmatch(value)
        hint = "; YAML takes an exponent only with a dot and a sign, as in 1.0e-3" if is_number else ""
        return f"{self.file}:{self.lines[name]}: {self.key}.{name}: {error.detail}{hint}"


def read_gates(file: Path) -> tuple[list[YamlGate], list[str]]:
    """Read the gates of an lmgate.yaml.

    Returns:
        The gates in the file's order, and what is wrong with the others, a message each.

    Raises:
        ConfigError: The file cannot be read, or is not what it should be as a whole.
    """
    data, root = parse_file(file)
    top = known_top_level(data, lines := Lines(file, root))
    if "gates" not in top:
        decode(data, lines)  # the list may stand below datasets:, by a blank too many
        return [], []
    assert isinstance(root, yaml.MappingNode)
    key, listed = next(pair for pair in reversed(root.value) if pair[0].value == "gates")
    entries = top["gates"]
    if not isinstance(entries, list) or not entries:
        raise ConfigError(
            f"{file}:{line_of(key)}: gates: expected a list of gates such as {_EXAMPLE}, got {_kind(entries)}; "
            "remove the key where there are none"
        )
    gates, problems = [], []
    for index, (entry, node) in enumerate(zip(entries, listed.value, strict=True)):
        try:
            gates.append(_gate(entry, node, file, f"gates[{index}]"))
        except ConfigError as error:
            problems.append(str(error))
    return gates, problems


def _gate(entry: object, node: yaml.Node, file: Path, key: str) -> YamlGate:
    where = f"{file}:{line_of(node)}: {key}"
    if not isinstance(entry, dict):
        raise ConfigError(f"{where}: expected a marker with its arguments, as in {_EXAMPLE}; got {_kind(entry)}")
    if len(entry) != 1:
        keys = ", ".join(map(str, entry)) or "none"
        hint = "; indent the arguments below their marker" if None in entry.values() else ""
        raise ConfigError(f"{where}: expected exactly one marker, as in {_EXAMPLE}; got {keys}{hint}")
    (marker, arguments), (marker_node, arguments_node) = next(iter(entry.items())), node.value[-1]
    where = f"{file}:{line_of(marker_node)}: {key}.{marker}"
    if marker not in _MARKERS:
        known = ", ".join(_MARKERS)
        raise ConfigError(f"{where}: unknown marker{nearest(str(marker), _MARKERS)}; expected one of {known}")
    if not isinstance(arguments, dict):
        raise ConfigError(f"{where}: expected arguments by name, as in {_EXAMPLE}; got {_kind(arguments)}")
    if unnamed := [name for name in arguments if not isinstance(name, str)]:
        before = list(arguments.items())[list(arguments).index(unnamed[0]) - 1]
        is_decimal = isinstance(unnamed[0], int) and arguments[unnamed[0]] is None and isinstance(before[1], int)
        hint = f"; a decimal has a dot: {before[0]}: {before[1]}.{unnamed[0]}" if is_decimal else ""
        raise ConfigError(f"{where}: expected names of arguments, got {unnamed[0]!r}{hint}")
    lines = {name.value: line_of(name) for name, _ in arguments_node.value}  # what is merged in comes first
    found = YamlGate(marker, arguments, file, f"{key}.{marker}", line_of(marker_node), lines)
    try:
        for name in _NAMES:
            if name in arguments:
                _require_name(name, arguments[name])
        found.gate = parse_marker(marker, (), arguments)
    except ConfigError as error:
        raise ConfigError(found.problem(error)) from None
    return found


def _require_name(argument: str, value: object) -> None:
    if isinstance(value, str) and value:
        return
    hint = "" if value is None or isinstance(value, list | dict | str) else " (put it in quotes)"
    raise ConfigError.of(argument, f"expected a name, got {_kind(value)}{hint}")


def _kind(data: object) -> str:
    if data is None or data in ([], {}, ""):
        return "nothing"
    return "a list" if isinstance(data, list) else "a mapping" if isinstance(data, dict) else repr(data)
