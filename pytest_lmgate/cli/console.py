"""What commands share: options, the rootdir of pytest, and output as text or, with ``--json``, for programs."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated, Any

import typer

from pytest_lmgate.errors import escape_controls
from pytest_lmgate.settings.options import OPTIONS
from pytest_lmgate.settings.rootdir import Root, find_root

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
