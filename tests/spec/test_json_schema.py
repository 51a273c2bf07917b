"""The JSON Schema of lmgate.yaml: whatever is decoded is valid, and a misspelt key is not."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml
from typer.testing import CliRunner

from pytest_lmgate.cli.app import app
from pytest_lmgate.config.file import load_project
from pytest_lmgate.config.specs import DatasetSpec, ModelSpec
from pytest_lmgate.errors import ConfigError
from pytest_lmgate.metrics.table import MARKERS
from pytest_lmgate.spec.json_schema import json_schema
from pytest_lmgate.spec.yaml_gates import read_gates

ROOT = Path(__file__).parents[2]
SCHEMA = json_schema()
VALIDATOR = jsonschema.Draft202012Validator(SCHEMA)


def documented() -> list[str]:
    """The blocks of lmgate.yaml in the guides."""
    texts = [file.read_text(encoding="utf-8") for file in [*sorted((ROOT / "docs").glob("*.md")), ROOT / "README.md"]]
    blocks = [block for text in texts for block in re.findall(r"^```yaml\n(.*?)^```", text, flags=re.M | re.S)]
    return [block for block in blocks if re.match(r"(defaults|models|datasets|gates):", block)]


def is_refused(file: Path) -> bool:
    """Whether reading a file finds something wrong."""
    try:
        load_project(file.parent)
        return bool(read_gates(file)[1])
    except ConfigError:
        return True


def test_the_schema_is_one_and_the_command_prints_it() -> None:
    jsonschema.Draft202012Validator.check_schema(SCHEMA)
    assert json.loads(CliRunner().invoke(app, ["schema"]).stdout) == SCHEMA


def test_the_example_s_file_is_valid() -> None:
    VALIDATOR.validate(yaml.safe_load((ROOT / "example_project" / "lmgate.yaml").read_text(encoding="utf-8")))


@pytest.mark.parametrize("text", documented())
def test_what_the_guides_show_is_decoded_and_valid(text: str, tmp_path: Path) -> None:
    file = tmp_path / "lmgate.yaml"
    file.write_text(text, encoding="utf-8")
    assert not is_refused(file)
    VALIDATOR.validate(yaml.safe_load(text))


def test_the_guides_show_a_good_part_of_it() -> None:
    assert len(documented()) >= 10


@pytest.mark.parametrize(
    "wrong",
    [
        "modells: {}",
        "models: {m: {pth: x}}",
        "models: {m: {dtype: float32}}",
        "models: {m: {path: x, dtype: fp16}}",
        "models: {m: {path: x, device: gpu}}",
        "models: {m: {path: x, trust_remote_code: maybe}}",
        "datasets: {d: {path: x, limit: many}}",
        "gates: []",
        "gates: [{ppl_mx: {model: a, dataset: b, limit: 1}}]",
        "gates: [{ppl_max: {model: a, dataset: b}}]",
        "gates: [{ppl_max: {model: a, dataset: b, limit: many}}]",
        "gates: [{ppl_max: {model: a, dataset: b, limit: 1, strid: 8}}]",
        "gates: [{ppl_max: {model: a, dataset: b, limit: 1}, bpb_max: {model: a, dataset: b, limit: 1}}]",
        "gates: [{no_regression: {metric: ppl, model: a, dataset: b, tolerance: 1 percent}}]",
        "gates: [{no_regression: {metric: ppl, model: a, dataset: b}}]",
    ],
)
def test_what_is_refused_where_the_file_is_read_is_not_valid(wrong: str, tmp_path: Path) -> None:
    file = tmp_path / "lmgate.yaml"
    file.write_text(wrong, encoding="utf-8")
    assert is_refused(file)
    assert not VALIDATOR.is_valid(yaml.safe_load(wrong))


@pytest.mark.parametrize("spec", [ModelSpec, DatasetSpec])
def test_every_key_of_an_entry_is_explained(spec: Any) -> None:
    properties = SCHEMA["$defs"][spec.__name__]["properties"]
    unexplained = [key for key, entry in properties.items() if not entry.get("description")]
    assert unexplained in ([], ["name", "split", "revision"])  # `hub` explains these of a dataset
    assert all("\n" not in entry.get("description", "") for entry in properties.values())


def test_every_marker_has_its_arguments() -> None:
    gates = SCHEMA["properties"]["gates"]["items"]["properties"]
    assert {*gates} == {*MARKERS, "no_regression"}
    assert {"stride", "protocol", "limit", "confidence"} <= gates["ppl_max"]["properties"].keys()
    assert {"stride", "variant", "reference", "against"} <= gates["no_regression"]["properties"].keys()
