"""The ``gates:`` of lmgate.yaml as tests: one item per gate, which carries the gate's marker as a Python test would.

The hooks judge them as any marked test. Every lmgate.yaml that pytest comes by is parsed, and one that is no YAML is an
error: its gates may be lost. That takes milliseconds, and the records of gates are imported only if it has some.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from pytest_lmgate.errors import ConfigError, LmgateError
from pytest_lmgate.plugin import options
from pytest_lmgate.settings.metrics import MARKER_NAMES
from pytest_lmgate.settings.options import FILE_NAME, find_project_file, misspelt, read_project_file

if TYPE_CHECKING:
    from pytest_lmgate.settings.file import YamlGate

_OTHER_KEYS = {"devices", "label", "defaults", "models", "datasets"}  # of the top level
_KEYS_OF_GATES = {"gates", "gate", *MARKER_NAMES}  # of a list that is below datasets: by a blank too many
_DEEPEST = 100  # levels; parsers end in odd ways on thousands


class GateFile(pytest.File):
    problems: list[str]  # raised at the end of the collection

    def collect(self) -> Iterator[GateItem]:
        """Yield the gates model by model, so that each model is loaded once."""
        from pytest_lmgate.settings.file import read_gates
        from pytest_lmgate.settings.gates import untaken

        by_testpaths = self.config.args_source is pytest.Config.ArgsSource.TESTPATHS
        if by_testpaths and self.ihook.pytest_ignore_collect(collection_path=self.path, config=self.config):
            return  # pytest ignores no argument, but `add_to_testpaths` added this one
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
            # The node id is given, since pytest splits it at brackets as it does later for --lf.
            item: GateItem = GateItem.from_parent(self, name=name, nodeid=f"{self.nodeid}::{name}", entry=gate)
            by_model.setdefault(gate.gate.evaluation.model_name, []).append(item)
        for items in by_model.values():
            yield from items


class GateItem(pytest.Item):
    def __init__(self, *, entry: YamlGate, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        marker = getattr(pytest.mark, entry.marker)(**entry.arguments)
        self.entry, self.mark = entry, marker.mark
        self.add_marker(marker)
        for name in entry.marks:
            if name not in registered_marks(self.config):  # else --strict-markers refuses it
                self.config.addinivalue_line("markers", f"{name}: a mark of gates in {FILE_NAME}")
            self.add_marker(name)

    def runtest(self) -> None:
        """Do nothing: the hooks measure and judge."""

    def reportinfo(self) -> tuple[Path, int, str]:
        return self.path, self.entry.line - 1, self.name


def registered_marks(config: pytest.Config) -> set[str]:
    """Return the names of all marks that are registered."""
    return {line.partition(":")[0].partition("(")[0].strip() for line in config.getini("markers")}


def gate_file(file_path: Path, parent: pytest.Collector, problems: list[str]) -> GateFile | None:
    explicit = options.project_file(parent.config)
    if file_path.name != (explicit.name if explicit else FILE_NAME) or (explicit and not explicit.samefile(file_path)):
        return None
    if not may_have_gates(file_path):
        return None
    node: GateFile = GateFile.from_parent(parent, path=file_path)
    node.problems = problems
    return node


def wrong_files(folder: pytest.Directory) -> list[str]:
    """Return what is wrong with a folder's lmgate.yaml, even if pytest skips it, such as a broken link."""
    if options.project_file(folder.config):
        return []
    problems = {
        file: f"{file} is not read, since only a file named {FILE_NAME} is: rename it, or leave it out with --ignore"
        for file in misspelt(folder.path)
    }
    file = folder.path / FILE_NAME
    if os.path.lexists(file):  # not in a folder that may not be searched, of which pytest says so
        try:
            read_project_file(file)
        except ConfigError as error:
            problems[file] = str(error)
    ignored = folder.ihook.pytest_ignore_collect
    return [problem for file, problem in problems.items() if not ignored(collection_path=file, config=folder.config)]


def add_to_testpaths(config: pytest.Config) -> None:
    """Collect an lmgate.yaml in rootdir that ``testpaths`` excludes: its gates would silently not run."""
    for file in asked_files(config):
        if not file.is_file() or not _inside(file, config.rootpath) or not may_have_gates(file):
            continue
        if not any(_inside(file, config.invocation_params.dir / arg.partition("::")[0]) for arg in config.args):
            from pytest_lmgate.plugin.private import collect_too

            collect_too(config, file)


def asked_files(config: pytest.Config) -> list[Path]:
    """Return the lmgate.yaml of ``--lmgate-config``, or else the nearest one to each path on the command line."""
    named = options.project_file(config)
    return [named] if named else nearest_files(config)


def nearest_files(config: pytest.Config) -> list[Path]:
    here = config.invocation_params.dir
    # A link counts where it is, not where it leads.
    paths = [Path(os.path.abspath(here / argument.partition("::")[0])) for argument in config.args]  # noqa: PTH100
    found = [find_project_file(path if path.is_dir() else path.parent) for path in paths]
    return list(dict.fromkeys(file for file in found if file is not None))


def entry_of(item: pytest.Item, mark: pytest.Mark) -> YamlGate | None:
    return item.entry if isinstance(item, GateItem) and mark is item.mark else None


def may_have_gates(file: Path) -> bool:
    """Return whether a file has gates, or is so wrong that they may be lost: reading it then says why."""
    try:
        return _may_have_gates(read_project_file(file))
    except ConfigError:
        return True


@functools.lru_cache(maxsize=8)
def _may_have_gates(text: str) -> bool:
    """Look for anything but entries of models and datasets, without making objects of it."""
    import yaml  # imported lazily: sessions without an lmgate.yaml never need it

    levels: list[bool | None] = []  # of each open list None, of each mapping whether a key comes next
    try:
        for event in yaml.parse(text, getattr(yaml, "CSafeLoader", yaml.SafeLoader)):
            is_key, is_top = bool(levels and levels[-1]), len(levels) == 1
            if isinstance(event, yaml.CollectionEndEvent):
                levels.pop()
            elif isinstance(event, yaml.NodeEvent):
                name = event.value if isinstance(event, yaml.ScalarEvent) else None
                is_mapping = isinstance(event, yaml.MappingStartEvent)
                if is_key and (name not in _OTHER_KEYS if is_top else name in _KEYS_OF_GATES or name is None):
                    return True
                is_list = isinstance(event, yaml.SequenceStartEvent) and len(levels) < 3  # where entries are expected
                if is_list or len(levels) == _DEEPEST or not (levels or is_mapping):
                    return True
                if levels and levels[-1] is not None:
                    levels[-1] = not is_key
                if isinstance(event, yaml.CollectionStartEvent):
                    levels.append(True if is_mapping else None)
    except (yaml.YAMLError, ValueError):
        return True
    return False


def placed(file: Path) -> Path:
    return file.parent.resolve() / file.name


def _inside(file: Path, path: Path) -> bool:
    return placed(file).is_relative_to(path.resolve())
