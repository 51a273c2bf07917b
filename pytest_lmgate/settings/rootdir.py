"""pytest's rootdir and ini file, found without pytest: where the command line looks for what a session would use.

The rules are pytest's own for a call without arguments: the nearest folder upward with a configuration of pytest, else
with a ``setup.py``, else the folder itself. ``tests/settings/test_rootdir.py`` compares them with pytest's.
"""

from __future__ import annotations

import configparser
import importlib
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pytest_lmgate.errors import ConfigError
from pytest_lmgate.settings.options import (
    BASELINE_NAME,
    CACHE_NAME,
    find_project_file,
    is_on,
    key_of,
    named_project_file,
    text_of,
)

_ALWAYS = ("pytest.toml", ".pytest.toml", "pytest.ini", ".pytest.ini")  # these count even without a section
_NAMES = (*_ALWAYS, "pyproject.toml", "tox.ini", "setup.cfg")


@dataclass(frozen=True)
class Root:
    """A rootdir."""

    folder: Path  # the rootdir
    start: Path  # where the search began
    ini: Path | None = None  # pytest's configuration file, if there is one
    settings: Mapping[str, Any] = field(default_factory=dict)  # its content

    def text(self, name: str, typed: str | None = None) -> str | None:
        """Return an option such as ``device``: as given, else from the ini file, else from the environment."""
        return text_of(name, typed, self.settings.get(key_of(name)))

    def is_on(self, name: str) -> bool:
        """Return whether the ini file or else the environment turns an option on, or raise ConfigError."""
        return is_on(name, self.settings.get(key_of(name)))

    def cache(self, given: str | None) -> Path:
        return self._path("cache", given, CACHE_NAME)

    def baseline(self, given: str | None) -> Path:
        """Return the baseline file; by default next to the nearest lmgate.yaml below rootdir."""
        nearest = None if self.project_file(None) else find_project_file(self.start)
        is_below = nearest is not None and nearest.parent.is_relative_to(self.folder)
        if given or self.text("baseline") or nearest is None or not is_below:
            return self._path("baseline", given, BASELINE_NAME)
        return nearest.parent / BASELINE_NAME

    def project_file(self, typed: str | None) -> Path | None:
        """Return the configured lmgate.yaml; None for the nearest."""
        return named_project_file(typed, self.settings.get("lmgate_config"), self.ini, Path.cwd())

    def _path(self, name: str, given: str | None, default: str) -> Path:
        # What is typed is relative to where it is typed; what is configured, to rootdir.
        if given:
            return Path.cwd() / Path(given).expanduser()
        return self.folder / Path(self.text(name) or default).expanduser()


def find_root(start: Path) -> Root:
    last_resort: Path | None = None
    for folder in (start, *start.parents):
        for name in _NAMES:
            file = folder / name
            if not file.is_file():
                continue
            settings = _settings(file)
            if settings is not None:
                return Root(folder, start, file, settings)
            if name == "pyproject.toml":
                last_resort = last_resort or file
    if last_resort is not None:
        return Root(last_resort.parent, start, last_resort)
    with_setup = (folder for folder in (start, *start.parents) if (folder / "setup.py").is_file())
    return Root(next(with_setup, start), start)


def _settings(file: Path) -> Mapping[str, Any] | None:
    """Return a file's settings of pytest; None if it has none."""
    try:
        text = file.read_text(encoding="utf-8")
        found = _of_toml(file, text) if file.suffix == ".toml" else _of_ini(file, text)
    except (OSError, ValueError, configparser.Error) as error:
        raise ConfigError(f"{file}: pytest's configuration cannot be read: {' '.join(str(error).split())}") from error
    return {} if found is None and file.name in _ALWAYS else found


def _of_toml(file: Path, text: str) -> Mapping[str, Any] | None:
    # Python 3.10 has no tomllib; there pytest brings tomli.
    toml = importlib.import_module("tomllib" if sys.version_info >= (3, 11) else "tomli")
    tables: dict[str, Any] = toml.loads(text)
    if file.name in _ALWAYS:
        found: Mapping[str, Any] | None = tables.get("pytest")
        return found
    of_tool: dict[str, Any] = tables.get("tool", {}).get("pytest", {})
    in_ini_form: Mapping[str, Any] | None = of_tool.pop("ini_options", None)
    return of_tool or in_ini_form


def _of_ini(file: Path, text: str) -> Mapping[str, Any] | None:
    parser = configparser.RawConfigParser(strict=False, allow_no_value=True)
    parser.read_string(text)
    section = "tool:pytest" if file.suffix == ".cfg" else "pytest"
    return dict(parser.items(section)) if parser.has_section(section) else None
