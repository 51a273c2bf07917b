"""Writes the pages of docs/reference from the code.

python docs/reference/generate.py
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from importlib.resources import files
from pathlib import Path
from typing import Any

import pytest

from pytest_lmgate.plugin.options import add_options
from pytest_lmgate.spec.catalogue import FIXTURES_HELP, MARKERS_HELP
from pytest_lmgate.spec.json_schema import json_schema

HERE = Path(__file__).parent


def pages() -> dict[str, str]:
    """The text of each page by its file's name."""
    return {
        "markers.md": "\n".join(_markers()),
        "options.md": "\n".join(_options()),
        "yaml.md": "\n".join(_yaml()),
        "report.md": "\n".join(_report()),
    }


def _markers() -> Iterator[str]:
    yield "# Markers and fixtures\n"
    yield "As `lmgate markers` prints them. What the arguments of a protocol mean: [protocols](../protocols.md);"
    yield "those of generated texts: [texts](../texts.md).\n"
    for title, table in (("Markers", MARKERS_HELP), ("Fixtures", FIXTURES_HELP)):
        yield f"## {title}\n"
        for name, words in table.items():
            call, said = _call_and_words(words)
            yield f"### `{name}`\n\n```python\n{call}\n```\n\n{said[:1].upper()}{said[1:]}\n"


def _call_and_words(words: str) -> tuple[str, str]:
    call, closing, said = words.partition(")")
    return call + closing, said.lstrip(": ")


def _options() -> Iterator[str]:
    yield "# Options of pytest\n"
    yield "The command line goes before the ini file, and that before the environment."
    yield "[Configuration](../configuration.md#options) says more.\n"
    yield "| option | meaning | environment |"
    yield "|---|---|---|"
    parser = pytest.Parser(_ispytest=True)
    add_options(parser)
    for option in parser.getgroup("lmgate").options:
        shown = option.attrs()
        names = " ".join(option.names())
        metavar = f" {shown['metavar']}" if shown.get("metavar") else ""
        words, _, variable = shown["help"].partition(" [")
        yield f"| `{names}{metavar}` | {_cell(words)} | {f'`{variable[:-1]}`' if variable else 'command line only'} |"


def _yaml() -> Iterator[str]:
    schema = json_schema()
    yield "# Keys of lmgate.yaml\n"
    yield "`lmgate schema` prints the JSON Schema that this page is made of."
    yield "[Configuration](../configuration.md) explains the file by examples.\n"
    for key, name in (("defaults", "Defaults"), ("models", "ModelSpec"), ("datasets", "DatasetSpec")):
        yield f"## `{key}:`\n"
        yield "| key | unless said | meaning |"
        yield "|---|---|---|"
        for each, about in schema["$defs"][name]["properties"].items():
            default = about.get("default")
            shown = "" if default is None or default == {} else f"`{json.dumps(default)}`"
            yield f"| `{each}` | {shown} | {_cell(about.get('description', ''))} |"
        yield ""
    yield "## `gates:`\n"
    yield "A list, each item one marker with its arguments by name: [markers](markers.md).\n"


def _report() -> Iterator[str]:
    schema = json.loads((files("pytest_lmgate.report") / "report.schema.json").read_text(encoding="utf-8"))
    yield "# Keys of the JSON report\n"
    yield "What `--lmgate-report json:FILE` writes."
    yield "The JSON Schema that this page is made of is `pytest_lmgate/report/report.schema.json`.\n"
    yield "| key | type | meaning |"
    yield "|---|---|---|"
    yield from _rows(schema, "")


def _rows(schema: Mapping[str, Any], prefix: str) -> Iterator[str]:
    for key, about in schema.get("properties", {}).items():
        name = f"{prefix}{key}"
        kind = about.get("type") or ("const" if "const" in about else "enum")
        kinds = " or ".join(kind) if isinstance(kind, list) else kind
        allowed = about.get("enum") or ([about["const"]] if "const" in about else [])
        said = about.get("description", "") or ", ".join(f"`{json.dumps(each)}`" for each in allowed)
        yield f"| `{name}` | {kinds} | {_cell(said)} |"
        yield from _rows(about, f"{name}.")
        if isinstance(about.get("items"), dict):
            yield from _rows(about["items"], f"{name}[].")


def _cell(words: str) -> str:
    """Text that is one cell of a table."""
    one_line = " ".join(words.replace("``", "`").split())
    return re.sub(r"(?<!\\)\|", r"\\|", one_line)


def main() -> None:
    """Write the pages."""
    for name, text in pages().items():
        (HERE / name).write_text(text.rstrip() + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
