"""The ``gates:`` list of lmgate.yaml: each entry a marker with its arguments by name. Errors name line and key."""

from __future__ import annotations

__all__ = ["YamlGate", "read_gates"]

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from pytest_lmgate.config.file import known_top_level, parse_file
from pytest_lmgate.config.lines import Lines, line_of
from pytest_lmgate.errors import ConfigError, nearest
from pytest_lmgate.spec.markers import parse_marker

_NAMES = ("metric", "model", "reference", "dataset", "against")
_EXAMPLE = "- ppl_max: {model: ..., dataset: ..., limit: ...}"
# What parse_marker and Evaluator.check begin with, where they speak of one argument.
_ARGUMENT = re.compile(r"got an unexpected keyword argument '(?P<unknown>[^']*)'|(?P<name>\w+)(?P<colon>: )?")
_EXPONENT = re.compile(r"[-+]?\d[\d_]*(\.\d*)?[eE][-+]?\d+")  # a number to everyone but YAML 1.1


@dataclass(frozen=True)
class YamlGate:
    """One entry of ``gates:``.

    Attributes:
        marker: Name of the marker.
        arguments: Its arguments by name, as written.
        label: Short name, as in ``ppl_max[int8-wikitext2]``.
        file: The file it is in.
        key: Its place in the file, as in ``gates[3].ppl_max``.
        line: Its line, from 1.
        lines: The line of each argument.
    """

    marker: str
    arguments: Mapping[str, Any]
    label: str
    file: Path
    key: str
    line: int
    lines: Mapping[str, int]

    def problem(self, message: str) -> str:
        """Return an error's message with the line and the key of the argument that it is about."""
        return _located(message, self.file, self.key, self.line, self.arguments, self.lines)


def read_gates(file: Path, markers: Collection[str]) -> tuple[list[YamlGate], list[str]]:
    """Read the gates of a file.

    Args:
        file: An lmgate.yaml.
        markers: The markers there are.

    Returns:
        The gates in the file's order, and what is wrong with the others, a message each.

    Raises:
        ConfigError: The file cannot be read, or is not what it should be as a whole.
    """
    data, root = parse_file(file)
    top = known_top_level(data, Lines(file, root))
    if "gates" not in top:
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
            gates.append(_gate(entry, node, markers, file, f"gates[{index}]"))
        except ConfigError as error:
            problems.append(str(error))
    return gates, problems


def _gate(entry: object, node: yaml.Node, markers: Collection[str], file: Path, key: str) -> YamlGate:
    where = f"{file}:{line_of(node)}: {key}"
    if not isinstance(entry, dict):
        raise ConfigError(f"{where}: expected a marker with its arguments, as in {_EXAMPLE}; got {_kind(entry)}")
    if len(entry) != 1:
        keys = ", ".join(map(str, entry)) or "none"
        hint = "; indent the arguments below their marker" if None in entry.values() else ""
        raise ConfigError(f"{where}: expected exactly one marker, as in {_EXAMPLE}; got {keys}{hint}")
    (marker, arguments), (marker_node, arguments_node) = next(iter(entry.items())), node.value[-1]
    line, where = line_of(marker_node), f"{file}:{line_of(marker_node)}: {key}.{marker}"
    if marker not in markers:
        known = ", ".join(sorted(markers))
        raise ConfigError(f"{where}: unknown marker{nearest(str(marker), markers)}; expected one of {known}")
    if not isinstance(arguments, dict):
        raise ConfigError(f"{where}: expected arguments by name, as in {_EXAMPLE}; got {_kind(arguments)}")
    lines = {name.value: line_of(name) for name, _ in arguments_node.value}  # what is merged in comes first
    for name, value in arguments.items():
        if not isinstance(name, str):
            raise ConfigError(f"{where}: expected names of arguments, got {name!r}")
        if name in _NAMES and not (isinstance(value, str) and value):
            raise ConfigError(
                f"{file}:{lines[name]}: {key}.{marker}.{name}: expected a name, got {_kind(value)}"
                + (" (put it in quotes)" if value is not None and not isinstance(value, list | dict | str) else "")
            )
    try:
        label = parse_marker(marker, (), arguments).label
    except ConfigError as error:
        raise ConfigError(_located(str(error), file, f"{key}.{marker}", line, arguments, lines)) from None
    return YamlGate(marker, arguments, label, file, f"{key}.{marker}", line, lines)


def _located(
    message: str, file: Path, key: str, line: int, arguments: Mapping[str, Any], lines: Mapping[str, int]
) -> str:
    found = _ARGUMENT.match(message)
    name = str(found["unknown"] or found["name"]) if found else ""
    if not found or name not in lines:
        return f"{file}:{line}: {key}: {message}"
    if found["unknown"]:
        message = f"unknown argument{message[found.end() :]}"
    elif found["colon"]:
        message = message[found.end() :]
    elif not message.startswith(f"{name} {arguments[name]!r}"):
        # "model 'fp61' is not known" may speak of the one under `against`, and what is "meant" may be the one here.
        others = (other for other in _NAMES if message.startswith(f"{name} {arguments.get(other)!r}"))
        name = next(others, name)
    value = arguments[name]
    if isinstance(value, str) and _EXPONENT.fullmatch(value):
        message += "; YAML takes an exponent only with a dot and a sign, as in 1.0e-3"
    return f"{file}:{lines[name]}: {key}.{name}: {message}"


def _kind(data: object) -> str:
    if data is None or data in ([], {}, ""):
        return "nothing"
    return "a list" if isinstance(data, list) else "a mapping" if isinstance(data, dict) else repr(data)
