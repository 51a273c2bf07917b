"""What several tools ask of an lmgate.yaml: the gate that a name means, and new lines in it.

Lines are added so that all else in the file stays as it was.
"""

from __future__ import annotations

import re
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from pytest_lmgate.cli.console import flow
from pytest_lmgate.errors import ConfigError, nearest
from pytest_lmgate.settings.file import YamlGate, read_gates
from pytest_lmgate.settings.gates import untaken


def gates_in(file: Path | None) -> list[YamlGate]:
    """Return the gates of an lmgate.yaml, if there is one; ConfigError if one of them is wrong."""
    gates, problems = read_gates(file) if file else ([], [])
    if problems:
        raise ConfigError(problems[0])
    return gates


def gates_by_label(file: Path) -> dict[str, YamlGate]:
    """Return the gates of an lmgate.yaml by their labels."""
    gates_by_name: dict[str, YamlGate] = {}
    for gate in gates_in(file):
        gates_by_name[untaken(gate.gate.label, gates_by_name)] = gate
    return gates_by_name


def find_gate(file: Path, name: str) -> tuple[YamlGate, str]:
    """Return a gate of an lmgate.yaml by its id or label, and its label."""
    gates_by_name = gates_by_label(file)
    label = re.sub(r"^[^\[]*\.ya?ml::", "", name)
    if re.match(r"[^\[]*\.py(::|$)", name):
        raise ConfigError(
            f"{name}: this command runs no Python tests, whose markers and fixtures pytest alone knows: write the "
            f"gate into {file}, with the same names and arguments, and name that one"
        )
    if label not in gates_by_name:
        listed = ", ".join(gates_by_name) or "none"
        raise ConfigError(f"{file}: no gate is called {label!r}{nearest(label, gates_by_name)}; it has {listed}")
    return gates_by_name[label], label


def require_writable(paths: Mapping[str, Path], inputs: Sequence[Path] = ()) -> None:
    """Refuse files that cannot be written, are inputs or are given twice, before anything is measured."""
    for option, path in paths.items():
        if path.exists() and any(source.exists() and path.samefile(source) for source in inputs):
            raise ConfigError(f"{option} {path}: expected another file than those of the models and the dataset")
        try:
            if path.is_file() or path.is_dir():
                path.open("ab").close()
            elif not path.exists():
                tempfile.TemporaryFile(dir=path.parent).close()
        except OSError as error:
            raise ConfigError(f"{option} {path}: cannot be written: {error.strerror}") from error
    if len({path.resolve() for path in paths.values()}) < len(paths):
        raise ConfigError(f"expected a file for each of {' and '.join(paths)}, got one for several")


def gate_line(gate: tuple[str, dict[str, Any]]) -> str:
    return f"- {gate[0]}: {flow(gate[1])}"


def insert(text: str, added: Mapping[str, Sequence[str]], file: Path) -> str:
    """Return the text of an lmgate.yaml with lines at the end of some of its sections, all else as it was."""
    top = yaml.compose(text)
    sections = {key.value: (key, value) for key, value in top.value} if isinstance(top, yaml.MappingNode) else {}
    whole = text.splitlines(keepends=True)
    if whole and not whole[-1].endswith("\n"):
        whole[-1] += "\n"
    # The last first, so that the lines before it stay where they are; sections that are new come at the end.
    for section in [
        *(section for section in reversed(sections) if section in added),
        *(section for section in added if section not in sections),
    ]:
        begin, indent, last = [f"{section}:\n"], 2, len(whole) - 1
        if section in sections:
            key, value = sections[section]
            is_empty = isinstance(value, yaml.ScalarNode)
            if isinstance(value, yaml.CollectionNode) and value.flow_style:
                raise ConfigError(
                    f"{file}:{key.start_mark.line + 1}: {section}: expected its entries on lines of their own, got "
                    "braces or brackets; write it so, and one can be added"
                )
            begin, indent = [], key.start_mark.column + 2 if is_empty else value.start_mark.column
            last = key.start_mark.line if is_empty else _last_line(value)
        whole[last + 1 : last + 1] = begin + [f"{' ' * indent}{line}\n" for line in added[section]]
    return "".join(whole)


def _last_line(node: yaml.Node) -> int:
    """Return the last line of a node, from 0; a block's own end is behind the comments that follow it."""
    if not isinstance(node, yaml.CollectionNode) or node.flow_style:
        mark = node.end_mark
        return mark.line - 1 if mark.column == 0 and mark.line > node.start_mark.line else mark.line
    last = node.value[-1]
    if isinstance(last, tuple):
        last = last[1] if last[1].value or not isinstance(last[1], yaml.ScalarNode) else last[0]
    return _last_line(last)
