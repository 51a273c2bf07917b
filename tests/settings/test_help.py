"""The JSON Schema of lmgate.yaml: whatever is decoded is valid, and a misspelt key is not."""

import json
import re
from pathlib import Path

import jsonschema
import pytest
import yaml
from typer.testing import CliRunner

from pytest_lmgate.cli.app import app
from pytest_lmgate.errors import ConfigError
from pytest_lmgate.settings.decoding import TEXTS, arguments_of
from pytest_lmgate.settings.file import load_project, read_gates
from pytest_lmgate.settings.gates import LimitGate
from pytest_lmgate.settings.help import json_schema
from pytest_lmgate.settings.metrics import METRICS, USERS_METRIC, Metric

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
    assert len(documented()) >= 10
    jsonschema.Draft202012Validator.check_schema(SCHEMA)
    assert json.loads(CliRunner().invoke(app, ["schema"]).stdout) == SCHEMA


@pytest.mark.parametrize("text", documented())
def test_what_the_guides_show_is_decoded_and_valid(text: str, tmp_path: Path) -> None:
    file = tmp_path / "lmgate.yaml"
    file.write_text(text, encoding="utf-8")
    assert not is_refused(file)
    VALIDATOR.validate(yaml.safe_load(text))


@pytest.mark.parametrize(
    "wrong",
    [
        "modells: {}",
        "models: {m: {pth: x}}",
        "models: {m: {path: x, dtype: fp16}}",
        "gates: []",
        "gates: [{ppl_mx: {model: a, dataset: b, limit: 1}}]",
        "gates: [{ppl_max: {model: a, dataset: b, limit: many}}]",
        "gates: [{ppl_max: {model: a, dataset: b, limit: 1, strid: 8}}]",
        "gates: [{ppl_max: {model: a, dataset: b, limit: 1}, bpb_max: {model: a, dataset: b, limit: 1}}]",
        "gates: [{no_regression: {metric: ppl, model: a, dataset: b, tolerance: 1 percent}}]",
        "gates: [{ppl_max: {model: [], dataset: b, limit: 1}}]",
        "gates: [{ppl_max: {model: [a, a], dataset: b, limit: 1}}]",
        "gates: [{ppl_max: {model: [a, b], dataset: b, limit: [1, 2]}}]",
        "gates: [{ppl_max: {model: a, dataset: b, limit: 1, marks: []}}]",
        "gates: [{ppl_max: {model: a, dataset: b, limit: 1, advisory: maybe}}]",
        "{defaults: {strid: 8}, gates: [{ppl_max: {model: a, dataset: b, limit: 1}}]}",
    ],
)
def test_what_is_refused_where_the_file_is_read_is_not_valid(wrong: str, tmp_path: Path) -> None:
    file = tmp_path / "lmgate.yaml"
    file.write_text(wrong, encoding="utf-8")
    assert is_refused(file)
    assert not VALIDATOR.is_valid(yaml.safe_load(wrong))


@pytest.mark.parametrize("row", [*METRICS.values(), USERS_METRIC], ids=lambda row: row.name)
def test_a_fixture_takes_what_the_marker_takes_less_the_limit_and_texts_where_texts_are_scored(row: Metric) -> None:
    texts = list(TEXTS) if row.measures == "texts" else []
    fixture = [each.name for each in arguments_of(row.fixture)]
    judging = LimitGate.__struct_fields__
    for name in row.markers:
        marker = [each.name for each in arguments_of(name)]
        assert sorted(fixture) == sorted([name for name in marker if name not in judging] + texts)
        assert len(set(marker)) == len(marker)
        assert set(row.options) <= set(marker)
        assert not set(marker) & {name for name, _ in row.fixed}
