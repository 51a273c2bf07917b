"""Writes the pages of docs/reference, and the table of docs/engines.md, from the code.

python docs/reference/generate.py
"""

from __future__ import annotations

import importlib
import json
import re
from collections.abc import Iterator, Mapping
from importlib.resources import files
from pathlib import Path
from typing import Any

import pytest

from pytest_lmgate.backends.base import Backend, Kind, Offer
from pytest_lmgate.backends.table import BACKENDS
from pytest_lmgate.metrics.table import METRICS, Statistics
from pytest_lmgate.plugin.options import add_options
from pytest_lmgate.spec.catalogue import FIXTURES_HELP, MARKERS_HELP, arguments_help
from pytest_lmgate.spec.json_schema import json_schema

HERE = Path(__file__).parent
ENGINES = HERE.parent / "engines.md"
# What a measurement asks of an engine, and the kinds of models that it is defined for; see `require` in evaluate/.
NEEDS: Mapping[Statistics, tuple[Offer, set[Kind]]] = {
    "likelihoods": ("score", {"causal", "encoder-decoder"}),
    "pseudo-likelihoods": ("score", {"masked"}),
    "choices": ("score", {"causal"}),
    "divergences": ("compare", {"causal"}),
    "texts": ("generate", {"causal", "encoder-decoder"}),
}


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
    yield "As `lmgate markers` prints them, and `lmgate markers NAME` with the arguments of one."
    yield "[Protocols](../protocols.md) and [texts](../texts.md) say more of theirs.\n"
    for title, table in (("Markers", MARKERS_HELP), ("Fixtures", FIXTURES_HELP)):
        yield f"## {title}\n"
        for name, words in table.items():
            call, said = _call_and_words(words)
            yield f"### `{name}`\n\n```python\n{call}\n```\n\n{said[:1].upper()}{said[1:]}\n"
            yield "| argument | default | meaning |"
            yield "|---|---|---|"
            for each, (default, meaning) in arguments_help(name).items():
                yield f"| `{each}` | {f'`{default}`' if default else ''} | {_cell(meaning)} |"
            yield ""


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


def engine(name: str) -> type[Backend]:
    """The class of an engine of this package."""
    module, _, attribute = BACKENDS[name][0].partition(":")
    found: type[Backend] = getattr(importlib.import_module(module), attribute)
    return found


def engines_page() -> str:
    """The text of docs/engines.md, whose table says which engine serves which metric."""
    engines = [engine(name) for name in BACKENDS]
    lines = [["metric", *(f"`{name}`" for name in BACKENDS)], ["---"] * (1 + len(engines))]
    for metric in METRICS.values():
        offer, kinds = NEEDS[metric.measures]
        cells = ["yes" if offer in each.offers and kinds & each.kinds else "" for each in engines]
        lines.append([f"`{metric.name}`, {metric.title}", *cells])
    table = "".join(f"|{'|'.join(f' {cell} ' if cell else ' ' for cell in line)}|\n" for line in lines)
    before, _, old = ENGINES.read_text(encoding="utf-8").partition("| metric |")
    _, end, after = old.partition("\n\n")
    return before + table.rstrip("\n") + end + after


def _cell(words: str) -> str:
    """Text that is one cell of a table."""
    one_line = " ".join(words.replace("``", "`").split())
    return re.sub(r"(?<!\\)\|", r"\\|", one_line)


def main() -> None:
    """Write the pages."""
    for name, text in pages().items():
        (HERE / name).write_text(text.rstrip() + "\n", encoding="utf-8")
    ENGINES.write_text(engines_page(), encoding="utf-8")


if __name__ == "__main__":
    main()
