"""Which lmgate.yaml a test goes by: the nearest one from its own folder upward, as in a repository of several projects.

Each has names, and a baseline beside it. The cache, the models in memory and the options are the session's.
"""

from __future__ import annotations

__all__ = ["ProjectGates", "Projects"]

from dataclasses import dataclass
from pathlib import Path

import pytest

from pytest_lmgate.config import BASELINE_NAME, FILE_NAME, find_project_file, misspelt
from pytest_lmgate.config.file import Project, load_project
from pytest_lmgate.config.options import Options
from pytest_lmgate.errors import BaselineError, ConfigError
from pytest_lmgate.evaluate.evaluator import Evaluator
from pytest_lmgate.judge.baselines import Baselines
from pytest_lmgate.judge.judge import Judge
from pytest_lmgate.plugin import options
from pytest_lmgate.plugin.updates import update


@dataclass(frozen=True)
class ProjectGates:
    """What measures and judges the tests of one lmgate.yaml; `no_baseline` says why none can go by a baseline."""

    evaluator: Evaluator
    baselines: Baselines
    judge: Judge
    no_baseline: str = ""

    def read_baseline(self) -> None:
        """Read the committed baseline, by which a gate goes.

        Raises:
            BaselineError: It cannot be read, or it is not clear which file it is.
        """
        if self.no_baseline:
            raise BaselineError(self.no_baseline)
        self.baselines.read()


class Projects:
    """The projects of a session, each read for the first test that goes by it; all share its measurements."""

    def __init__(self, config: pytest.Config, evaluator: Evaluator, said: Options) -> None:
        self._config, self._evaluator, self._options = config, evaluator, said
        self._files: dict[Path, Path | None] = {}
        self._gates: dict[Path | None, ProjectGates] = {}
        self.folders: list[str] = []
        """Folders of the projects' baselines, as `options.baseline_file` takes them."""

    def of(self, path: Path) -> ProjectGates:
        """Return what judges the tests in the file or folder `path`.

        Raises:
            ConfigError: The lmgate.yaml is not what it should be.
        """
        file = self._file(path)
        if file not in self._gates:
            self._gates[file] = self._read(file)
        return self._gates[file]

    def all(self) -> list[ProjectGates]:
        """Return every project that was read."""
        return list(self._gates.values())

    def _file(self, path: Path) -> Path | None:
        if path not in self._files:
            named, folder = options.project_file(self._config), path if path.is_dir() else path.parent
            found = find_project_file(folder) or find_project_file(self._config.rootpath)
            if named is None and found is not None:
                _refuse_misnamed(folder, found)
            self._files[path] = named or found
        return self._files[path]

    def _read(self, file: Path | None) -> ProjectGates:
        named, root = options.project_file(self._config), self._config.rootpath
        project = Project(root) if file is None else load_project(file.parent, named)
        evaluator, folder = self._evaluator.beside(project), options.baseline_folder(self._config, file)
        path, prefix = options.baseline_file(self._config, folder)
        baselines = Baselines(path, update(self._config), self._options.arguments, prefix)
        self.folders.append(folder)
        return ProjectGates(evaluator, baselines, Judge(evaluator, self._options, baselines), self._no_baseline(file))

    def _no_baseline(self, file: Path | None) -> str:
        """Say why it is unclear which file is a project's baseline; empty if it is clear."""
        root = self._config.rootpath
        if file is None or options.text(self._config, "baseline"):
            return ""
        beside = file.parent / BASELINE_NAME
        if options.project_file(self._config):
            if file.parent == root or not beside.exists():
                return ""
            return (
                f"{beside} lies beside the lmgate.yaml of --lmgate-config, whose baseline is in rootdir, {root}: name "
                "the one that is meant by --lmgate-baseline"
            )
        if file.parent.is_relative_to(root) or root.is_relative_to(file.parent):
            return ""
        return (
            f"{file} lies outside of pytest's rootdir, {root}, so that ids do not tell its gates from those of other "
            "projects: call pytest with --rootdir of a folder that holds them all"
        )


def _refuse_misnamed(folder: Path, found: Path) -> None:
    """Refuse an lmgate.yml, or other spelling, that stands nearer than the file that would be read in its place."""
    for each in (folder, *folder.parents):
        if each == found.parent:
            return
        if wrong := misspelt(each):
            raise ConfigError(f"{wrong[0]} is not read, since only a file named {FILE_NAME} is: rename it")
