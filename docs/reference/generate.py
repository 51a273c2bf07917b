"""Writes the pages of docs/reference, and the table of docs/engines.md, from the code.

python docs/reference/generate.py
"""

from __future__ import annotations

import importlib
import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import msgspec
import pytest

from pytest_lmgate.engines.base import Backend, Kind, Offer
from pytest_lmgate.engines.registry import BACKENDS
from pytest_lmgate.judge import attribution, result
from pytest_lmgate.metrics import score
from pytest_lmgate.plugin.options import add_options
from pytest_lmgate.settings.gates import Tolerance
from pytest_lmgate.settings.help import arguments_help, documented, fixtures_help, json_schema, markers_help
from pytest_lmgate.settings.metrics import METRICS, Statistics
from pytest_lmgate.settings.options import OPTIONS
from pytest_lmgate.stats import comparison

HERE = Path(__file__).parent
ENGINES = HERE.parent / "engines.md"
# What a measurement asks of an engine, and the kinds of models that it is defined for; see `require` in measure/.
NEEDS: Mapping[Statistics, tuple[Offer, set[Kind]]] = {
    "likelihoods": ("score", {"causal", "encoder-decoder"}),
    "pseudo-likelihoods": ("score", {"masked"}),
    "choices": ("score", {"causal"}),
    "divergences": ("compare", {"causal"}),
    "self-divergences": ("sample", {"causal"}),
    "texts": ("generate", {"causal", "encoder-decoder"}),
}


def pages() -> dict[str, str]:
    """The text of each page by its file's name."""
    return {
        "markers.md": "\n".join(_markers()),
        "options.md": "\n".join(_options()),
        "yaml.md": "\n".join(_yaml()),
        "report.md": "\n".join(_report()),
        "report.schema.json": json.dumps(report_schema(), indent=2),
    }


def _markers() -> Iterator[str]:
    yield "# Markers and fixtures\n"
    yield "As `lmgate markers` prints them, and `lmgate markers NAME` with the arguments of one."
    yield "[Protocols](../protocols.md) and [texts](../texts.md) say more of theirs.\n"
    for title, table in (("Markers", markers_help()), ("Fixtures", fixtures_help())):
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
    yield "The command line goes before the ini file, and that before the environment, where an option has a variable."
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
        known = OPTIONS.get(names.removeprefix("--lmgate-"))
        place = (
            f"`{variable[:-1]}`"
            if variable
            else "command line only"
            if names == "--no-lmgate" or (known and known.effect)
            else ""
        )
        yield f"| `{names}{metavar}` | {_cell(words)} | {place} |"


def _yaml() -> Iterator[str]:
    schema = json_schema()
    yield "# Keys of lmgate.yaml\n"
    yield "`lmgate schema` prints the JSON Schema that this page is made of."
    yield "[Configuration](../configuration.md) explains the file by examples.\n"
    records = {
        "`defaults:`": "Defaults",
        "`models:`": "ModelSpec",
        "`server:` of a model, to start one": "ServerSpec",
        "`results:` of a model, with columns": "ResultsSpec",
        "`datasets:`": "DatasetSpec",
    }
    for title, name in records.items():
        yield f"## {title}\n"
        yield "| key | default | meaning |"
        yield "|---|---|---|"
        for each, about in schema["$defs"][name]["properties"].items():
            default = about.get("default")
            shown = "" if default is None or default == {} else f"`{json.dumps(default)}`"
            yield f"| `{each}` | {shown} | {_cell(about.get('description', ''))} |"
        yield ""
    yield "## `gates:`\n"
    yield "A list, each item one marker with its arguments by name: [markers](markers.md)."
    yield "`marks:` names pytest's own marks for the gate. `defaults:` takes arguments of gates too, and a list makes"
    yield "a gate of each value: [many gates in few lines](../configuration.md#many-gates-in-few-lines).\n"


def report_schema() -> dict[str, Any]:
    """The JSON Schema of the JSON report, draft 2020-12, with what the records' docstrings say of each key."""
    _, definitions = msgspec.json.schema_components([result.Results], ref_template="#/$defs/{name}")
    rooms = (score, result, comparison, attribution)
    records = {name: each for room in rooms for name, each in vars(room).items() if isinstance(each, type)}
    for name, definition in definitions.items():
        record = records.get(name, Tolerance)
        described: dict[str, str] = {}
        for each in reversed(record.__mro__):
            described |= documented(each.__doc__ or "")[1]
        definition["description"] = documented(record.__doc__ or "")[0]
        keys = getattr(record, "__struct_encode_fields__", ())
        named = dict(zip(keys, getattr(record, "__struct_fields__", ()), strict=True))
        for key, about in definition["properties"].items():
            if words := described.get(named.get(key, key)):
                about["description"] = re.sub(r"\bNone\b", "null", words)
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "$id": "urn:pytest-lmgate:report:1",
        "title": "The JSON report of pytest-lmgate, schema 1",
        "$ref": "#/$defs/Results",
        "$defs": definitions,
    }


def _report() -> Iterator[str]:
    yield "# Keys of the JSON report\n"
    yield "What `--lmgate-report json:FILE` writes, and `--lmgate-history` without texts: one `Results`."
    yield "A key that is not always there is left out where it has its default."
    yield "[report.schema.json](report.schema.json) is the JSON Schema that this page is made of.\n"
    for name, definition in report_schema()["$defs"].items():
        yield f"## {name}\n\n{definition['description'].replace('``', '`')}\n"
        yield "| key | type | meaning |"
        yield "|---|---|---|"
        for key, about in definition["properties"].items():
            yield f"| `{key}` | {_cell(_kind(about))} | {_cell(about.get('description', ''))} |"
        yield ""


def _kind(about: Mapping[str, Any]) -> str:
    """The type of a key in words; that of another record is a link."""
    if name := about.get("$ref", "").rpartition("/")[2]:
        return f"[{name}](#{name.lower()})"
    if "anyOf" in about:
        return " or ".join(map(_kind, about["anyOf"]))
    if "enum" in about:
        return ", ".join(f"`{json.dumps(each)}`" for each in about["enum"])
    if about.get("type") == "array":
        items = about.get("items") or about["prefixItems"][0]
        return f"{'pair' if about.get('maxItems') == 2 else 'list'} of {_kind(items).replace(' or ', '/')}"
    return str(about["type"])


def engine(name: str) -> type[Backend]:
    """The class of an engine of this package."""
    module, _, attribute = BACKENDS[name][0].partition(":")
    found: type[Backend] = getattr(importlib.import_module(module), attribute)
    return found


def engines_page() -> str:
    """The text of docs/engines.md, whose table says which engine serves which metric."""
    engines = [engine(name) for name in BACKENDS]
    lines = [["metric", *(f"`{name}`" for name in BACKENDS)], ["---"] * (1 + len(engines))]
    alike: dict[tuple[str, ...], list[str]] = {}  # metrics with the same cells share a line
    for metric in METRICS.values():
        offer, kinds = NEEDS[metric.measures]
        cells = ["yes" if offer in each.offers and kinds & each.kinds else "" for each in engines]
        if metric.name == "kl":
            cells = [cell or "sampled" * ("score" in each.offers) for cell, each in zip(cells, engines, strict=True)]
        alike.setdefault(tuple(cells), []).append(f"`{metric.name}`")
    lines += [[", ".join(names), *cells] for cells, names in alike.items()]
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
