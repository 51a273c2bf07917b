"""Decoding lmgate.yaml, all but its gates. Errors name file, key, what was expected, the nearest name."""

from __future__ import annotations

__all__ = ["Project", "decode", "known_top_level", "load_project", "parse_file"]

import errno
import functools
import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec
import yaml

from pytest_lmgate.config import FILE_NAME, find_project_file, misspelt, read_project_file
from pytest_lmgate.config.lines import Lines
from pytest_lmgate.config.specs import DatasetSpec, Defaults, ModelSpec, ProjectSpec
from pytest_lmgate.errors import ConfigError, nearest

_TOP_LEVEL = ("defaults", "models", "datasets", "gates")


@dataclass(frozen=True)
class Project:
    """A decoded lmgate.yaml and the folder that its paths are relative to."""

    folder: Path
    file: Path | None = None
    spec: ProjectSpec = field(default_factory=ProjectSpec)

    @property
    def origin(self) -> str:
        """Where the names come from, for messages."""
        if self.file:
            return str(self.file)
        misnamed = "".join(f"; {file.name} is not read" for file in misspelt(self.folder))
        return f"no {FILE_NAME} was found from {self.folder} upward{misnamed}"

    def path(self, written: str) -> Path:
        """Resolve a path as written in the file; it need not be there.

        Raises:
            ConfigError: Nothing can be there: it is too long, has a zero character, or the home of an unknown user.
        """
        try:
            path = self.folder / Path(written).expanduser()
            path.lstat()
        except (ValueError, RuntimeError) as error:
            raise ConfigError(f"{written[:60]!r} cannot be a path: {error}") from error
        except OSError as error:
            if error.errno == errno.ENAMETOOLONG:
                raise ConfigError(
                    f"{written[:60]!r}... ({len(written):,} characters) cannot be a path: {error.strerror}"
                ) from error
        return path


def load_project(start: Path, explicit: Path | None = None) -> Project:
    """Load the project's file.

    Args:
        start: Folder to search from, upward (pytest's rootdir).
        explicit: The file itself (``--lmgate-config``).

    Raises:
        ConfigError: The explicit file does not exist, or a file is not what it should be.
    """
    file = explicit or find_project_file(start)
    if file is None:
        return Project(start)
    data, root = parse_file(file, hint="; check --lmgate-config" if explicit else "")
    return Project(file.parent, file, decode(data, Lines(file, root)))


def parse_file(file: Path, hint: str = "") -> tuple[object, yaml.Node | None]:
    """Read a file, and the nodes that its content was made of, which know their lines.

    Args:
        file: The file.
        hint: What to say where there is none to read.

    Raises:
        ConfigError: It cannot be read, or is not YAML.
    """
    return _parse(read_project_file(file, hint), file)


def known_top_level(data: object, lines: Lines) -> dict[Any, Any]:
    """Return a file's content by its keys.

    Raises:
        ConfigError: It has no keys, or one that is not known.
    """
    top = _mapping(data, lines)
    _known(top, _TOP_LEVEL, lines)
    return top


@functools.lru_cache(maxsize=8)  # the gates of a file are read first, and its models when all are collected
def _parse(text: str, file: Path) -> tuple[object, yaml.Node | None]:
    try:
        loader = _Loader(text)  # a SafeLoader
        node = loader.get_single_node()
        return (None if node is None else loader.construct_document(node)), node
    except yaml.MarkedYAMLError as error:
        line = f":{error.problem_mark.line + 1}" if error.problem_mark else ""
        what = ", ".join(part for part in (error.context, error.problem) if part)
        raise ConfigError(f"{file}{line}: not valid YAML: {what}{_quote_line(text, error.problem_mark)}") from error
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        # ValueError: the library passes on what int() and date() say of 0x_ and 2024-13-45.
        raise ConfigError(f"{file}: not valid YAML: {' '.join(str(error).split())}") from error


def _quote_line(text: str, mark: Any) -> str:
    """Say how to write a text that begins with a field, where that is what stands in the line."""
    line = text.splitlines()[mark.line : mark.line + 1] if mark else []
    if line and re.search(r":\s+\{[\w .-]*\}\s*[^\s,}\]#]", line[0]):
        return "; a text that begins with { goes in quotes: prompt: '{question} Answer:'"
    return ""


def decode(data: object, lines: Lines) -> ProjectSpec:
    """Return the models and datasets of a file's content, decoded entry by entry.

    Raises:
        ConfigError: An entry is not what it should be; the message names it.
    """
    top = known_top_level(data, lines)
    return ProjectSpec(
        defaults=_convert(top.get("defaults"), Defaults, lines, "defaults"),
        models=_entries(top.get("models"), ModelSpec, lines, "models"),
        datasets=_entries(top.get("datasets"), DatasetSpec, lines, "datasets"),
    )


def _entries(data: object, kind: type[Any], lines: Lines, key: str) -> dict[str, Any]:
    found = {}
    for name, entry in _mapping(data, lines, key).items():
        if not isinstance(name, str):
            raise ConfigError(f"{lines.at([key])}: expected names that are text, got {name!r}; put it in quotes")
        found[name] = _convert(entry, kind, lines, key, name)
    return found


def _mapping(data: object, lines: Lines, *keys: str) -> dict[Any, Any]:
    """Require a mapping; nothing written is an empty one."""
    if data is None:
        return {}
    if not isinstance(data, dict):
        where = lines.at(keys, "" if keys else "top level")
        hint = _outdent(*keys)
        if isinstance(data, str) and len(keys) == 2:  # an entry of models: or datasets:
            key = "hub" if data.startswith("hub:") else "path"
            hint = f"; say {keys[-1]}: {{{key}: {data.removeprefix('hub:')}}}"
        raise ConfigError(f"{where}: expected keys with values, got {_kind(data)}{hint}")
    return data


def _known(data: dict[Any, Any], valid: Iterable[str], lines: Lines, *keys: str) -> None:
    valid = list(valid)
    for name in data:
        if name not in valid:
            raise ConfigError(
                f"{lines.at([*keys, name])}: unknown key{nearest(str(name), valid)}; expected one of {', '.join(valid)}"
                f"{_outdent(*keys, name)}"
            )


def _outdent(*keys: object) -> str:
    """Say where a key of the top level goes that was written below another."""
    return f"; {keys[-1]}: goes at the start of a line" if len(keys) > 1 and keys[-1] in _TOP_LEVEL else ""


def _convert(data: object, kind: type[Any], lines: Lines, *keys: str) -> Any:
    entry = _mapping(data, lines, *keys)
    _known(entry, (f.encode_name for f in msgspec.structs.fields(kind)), lines, *keys)
    try:
        return msgspec.convert(entry, kind)
    except msgspec.ValidationError as error:
        # msgspec says "Expected `int`, got `str` - at `$.limit`", or "... - at `key` in `$.load`".
        message, _, path = str(error).partition(" - at ")
        of_a_key, _, inner = path.rpartition(" in ")
        inner = re.sub(r"[`$]", "", inner) + (": key" if of_a_key else "")
        key = re.sub(r"\W.*", "", inner.removeprefix("."))
        where = lines.at([*keys, key], ".".join(keys) + inner)
        raise ConfigError(f"{where}: {message[:1].lower()}{message[1:]}{_quote(key, entry.get(key))}") from None
    except ConfigError as error:
        inner_keys = error.argument.split(".")  # as in load.subfolder
        if inner_keys[0] in entry:
            raise ConfigError(f"{lines.at([*keys, *inner_keys])}: {error.detail}") from None
        raise ConfigError(f"{lines.at(keys)}: {error}") from None


def _quote(key: str, value: object) -> str:
    """Say how to write a template that YAML takes for a mapping: ``prompt: {question}``."""
    if not isinstance(value, dict) or not value or any(each is not None for each in value.values()):
        return ""
    return f"; put it in quotes: {key}: '{{{', '.join(map(str, value))}}}'"


def _kind(data: object) -> str:
    return "a list" if isinstance(data, list) else "text" if isinstance(data, str) else type(data).__name__


class _Loader(yaml.SafeLoader):
    """A safe loader that refuses what reads otherwise than it looks.

    A key that is written twice, which YAML forbids and the library lets pass; looked at as written, before ``<<``
    merges other mappings in, since what a merge brings may be overridden. And numbers that only YAML 1.1 has:
    ``1:30`` is 90, ``2_5`` is 25, ``010`` is 8.
    """

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
