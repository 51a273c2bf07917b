"""What commands share: options, the rootdir of pytest, and output as text or, with ``--json``, for programs.

pytest's rootdir and ini file are found without pytest, by pytest's own rules for a call without arguments: the nearest
folder upward with a configuration of pytest, else with a ``setup.py``, else the folder itself.
``tests/cli/test_rootdir.py`` compares them with pytest's.
"""

from __future__ import annotations

import configparser
import importlib
import re
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

import typer

from pytest_lmgate.errors import ConfigError, escape_controls
from pytest_lmgate.settings.options import (
    BASELINE_NAME,
    CACHE_NAME,
    OPTIONS,
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


AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON document.")]


def _option(name: str) -> Any:
    option = OPTIONS[name]
    words = option.help if option.help.startswith("lmgate") else f"{option.help[:1].upper()}{option.help[1:]}"
    return typer.Option(f"--{name}", metavar=option.metavar or None, help=f"{words}.")


CacheOption = Annotated[str | None, _option("cache")]
BaselineOption = Annotated[str | None, _option("baseline")]
ConfigOption = Annotated[str | None, _option("config")]
DeviceOption = Annotated[str | None, _option("device")]
OfflineOption = Annotated[bool, _option("offline")]

_UNITS = {"": 1, "K": 10**3, "M": 10**6, "G": 10**9, "T": 10**12, "KI": 2**10, "MI": 2**20, "GI": 2**30, "TI": 2**40}
_AGES = ((86400, "d"), (3600, "h"), (60, "min"))


def root() -> Root:
    return find_root(Path.cwd())


def show(data: object, text: str, *, as_json: bool) -> None:
    """Print `data` as JSON or `text`, escaped for the terminal."""
    if as_json:
        from pytest_lmgate.judge.result import to_json

        typer.echo(to_json(data), nl=False)
    else:
        typer.echo(escape_controls(text))


def note(sentence: str) -> None:
    """Print a sentence to stderr, escaped for the terminal."""
    typer.echo(escape_controls(sentence, line=True), err=True)


def flow(value: object) -> str:
    """Return YAML in one line, with braces and brackets, and texts with line breaks in quotes."""
    import yaml  # imported lazily: few commands write YAML

    class OneLine(yaml.SafeDumper):
        pass

    def represent(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
        return dumper.represent_scalar("tag:yaml.org,2002:str", text, style='"' if "\n" in text else None)

    OneLine.add_representer(str, represent)
    text: str = yaml.dump(
        value, Dumper=OneLine, default_flow_style=True, sort_keys=False, allow_unicode=True, width=10**6
    )
    return text.strip().removesuffix("\n...")


def bytes_of(written: str) -> int:
    """Return the bytes of a size such as ``500M``, ``2GB`` or ``1.5GiB``."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([KMGT]?I?)B?", written.strip().upper())
    # A bare 2 is 2 bytes to us and 2 GB to whoever types it: it would empty the cache.
    if match is None or match[2] not in _UNITS or (match[0][-1] not in "KMGTIB" and float(match[1])):
        raise typer.BadParameter(f"expected a size with its unit, such as 500M, 2GB or 1.5GiB, got {written!r}")
    return int(float(match[1]) * _UNITS[match[2]])


def age(seconds: float) -> str:
    """Return how long ago something was: ``3 d``."""
    size, unit = next(((size, unit) for size, unit in _AGES if seconds >= size), (1, "s"))
    return f"{int(max(seconds, 0) / size)} {unit}"
