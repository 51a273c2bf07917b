"""Writing into an lmgate.yaml, so that all else in it stays as it was."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from pytest_lmgate.cli.console import flow
from pytest_lmgate.errors import ConfigError


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
