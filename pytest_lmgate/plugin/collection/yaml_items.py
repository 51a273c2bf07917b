"""The ``gates:`` of lmgate.yaml as tests: one item a gate, which carries the gate's marker as a Python test would.

Verdicts are made by the hooks, as for any marked test. A file is looked at only if it has the right name, and
parsed only if ``gates``, or a key that may be a misspelling of it, stands in it.
"""

from __future__ import annotations

__all__ = [
    "GateFile",
    "GateItem",
    "add_to_testpaths",
    "asked_files",
    "entry_of",
    "gate_file",
    "mentions_gates",
    "placed",
    "wrong_files",
]

import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from pytest_lmgate.config import FILE_NAME, find_project_file, misspelt, read_project_file
from pytest_lmgate.errors import ConfigError
from pytest_lmgate.plugin import options

if TYPE_CHECKING:
    from pytest_lmgate.spec.yaml_gates import YamlGate

# Wide enough for one line of flow style, and for `gate:`, `Gates:` and any other key at the beginning of a line that is
# not one of the file's, such as `gatse:`; the parser refuses those. Compiled where there is such a file.
_GATES = (
    r"(?im)^(?![ \t]*#).*\bgates?[\"']?\s*:"
    r"|^(?![\"']?(?:defaults|models|datasets)[\"']?\s*:)[\"'\w][^:#\n]*:(?:\s|$)"
)


class GateFile(pytest.File):
    """A file with gates in it."""

    problems: list[str]  # what is wrong with the file goes here; the end of the collection raises it

    def collect(self) -> Iterator[GateItem]:
        """Yield the gates model by model; names are labels, a repeated one with ``#2`` before its bracket.

        A model that does not fit in memory beside the next one is so loaded once. Gates have no body, so that no gate
        can need what an earlier one did; tests in Python can, and keep their order.
        """
        from pytest_lmgate.errors import LmgateError
        from pytest_lmgate.spec.gates import untaken
        from pytest_lmgate.spec.yaml_gates import read_gates

        by_testpaths = self.config.args_source is pytest.Config.ArgsSource.TESTPATHS
        if by_testpaths and self.ihook.pytest_ignore_collect(collection_path=self.path, config=self.config):
            return  # an argument is never ignored by pytest; ours was not the user's
        try:
            gates, problems = read_gates(self.path)
        except LmgateError as error:
            self.problems.append(str(error))
            return
        self.problems += problems
        by_model: dict[str, list[GateItem]] = {}
        names: set[str] = set()
        for gate in gates:
            names.add(name := untaken(gate.gate.label, names))
            # The id as text: pytest takes it apart at the brackets as it does later for --lf, but not the name alone.
            item: GateItem = GateItem.from_parent(self, name=name, nodeid=f"{self.nodeid}::{name}", entry=gate)
            by_model.setdefault(gate.gate.evaluation.model_name, []).append(item)
        for items in by_model.values():
            yield from items


class GateItem(pytest.Item):
    """A gate of lmgate.yaml; it has no body."""

    def __init__(self, *, entry: YamlGate, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        marker = getattr(pytest.mark, entry.marker)(**entry.arguments)
        self.entry, self.mark = entry, marker.mark
        self.add_marker(marker)

    def runtest(self) -> None:
        """Do nothing: the hooks have measured and judged."""

    def reportinfo(self) -> tuple[Path, int, str]:
        """Return file, line from 0, and name."""
        return self.path, self.entry.line - 1, self.name


def gate_file(file_path: Path, parent: pytest.Collector, problems: list[str]) -> GateFile | None:
    """Return the collector of a file, if it is one that may hold gates."""
    explicit = options.project_file(parent.config)
    if file_path.name != (explicit.name if explicit else FILE_NAME) or (explicit and not _same(explicit, file_path)):
        return None
    if not mentions_gates(file_path):
        return None
    node: GateFile = GateFile.from_parent(parent, path=file_path)
    node.problems = problems
    return node


def wrong_files(folder: pytest.Directory) -> list[str]:
    """Say what is wrong with a folder's lmgate.yaml, whether pytest asks for it or not, as for a link to nothing."""
    if options.project_file(folder.config):
        return []
    problems = {
        file: f"{file} is not read, since only a file named {FILE_NAME} is: rename it, or leave it out with --ignore"
        for file in misspelt(folder.path)
    }
    if find_project_file(folder.path) == (file := folder.path / FILE_NAME):
        try:
            read_project_file(file)
        except ConfigError as error:
            problems[file] = str(error)
    ignored = folder.ihook.pytest_ignore_collect
    return [said for file, said in problems.items() if not ignored(collection_path=file, config=folder.config)]


def add_to_testpaths(config: pytest.Config) -> None:
    """Have an lmgate.yaml collected too where ``testpaths`` leave it out, or its gates would silently not run.

    Called where pytest was called without arguments; only for files in rootdir or below. Workers of xdist are
    called as the controller was, and decide for themselves.
    """
    for file in asked_files(config):
        if not file.is_file() or not _inside(file, config.rootpath) or not mentions_gates(file):
            continue
        if not any(_inside(file, config.invocation_params.dir / arg.partition("::")[0]) for arg in config.args):
            config.args.append(str(file))


def asked_files(config: pytest.Config) -> list[Path]:
    """Return the lmgate.yaml that is nearest to each path that pytest was given, or the one that was named."""
    named = options.project_file(config)
    return [named] if named else nearest_files(config)


def nearest_files(config: pytest.Config) -> list[Path]:
    """Return the lmgate.yaml that is nearest to each path that pytest was given."""
    here = config.invocation_params.dir
    # Not resolved, since a link is where it is.
    paths = [Path(os.path.abspath(here / argument.partition("::")[0])) for argument in config.args]  # noqa: PTH100
    found = [find_project_file(path if path.is_dir() else path.parent) for path in paths]
    return list(dict.fromkeys(file for file in found if file is not None))


def entry_of(item: pytest.Item, mark: pytest.Mark) -> YamlGate | None:
    """Return the entry of lmgate.yaml that a mark was made of; None for other marks."""
    return item.entry if isinstance(item, GateItem) and mark is item.mark else None


def mentions_gates(file: Path) -> bool:
    """Whether `gates`, or a key that may be meant so, stands in a file; it is not parsed."""
    try:
        text = read_project_file(file)
    except ConfigError:
        return True  # reading it says why it cannot be
    return "\0" in text or bool(re.search(_GATES, text))  # UTF-16 has zeros, and the parser says what it wants


def placed(file: Path) -> Path:
    """Return where a file is; a link is where it is, not where it leads."""
    return file.parent.resolve() / file.name


def _inside(file: Path, path: Path) -> bool:
    """Whether a file is in a folder, or is the file itself."""
    return placed(file).is_relative_to(path.resolve())


def _same(one: Path, other: Path) -> bool:
    try:
        return one.samefile(other)
    except OSError:
        return False
