"""``lmgate measure``: what it refuses, and what it says beside the number. ``lmgate why`` as a user runs it."""

import json
import subprocess
from pathlib import Path

import pytest
from typer.testing import CliRunner

from pytest_lmgate.cli.app import app
from pytest_lmgate.cli.measure import measuring
from tests.end_to_end.projects import environment
from tests.measure.conftest import make_tokenizer
from tests.tools.fix.test_costs import make_reference, quantize, text
from tests.warm import warm_python


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("-o", "strid=8"), "strid: unknown argument (did you mean 'stride'?)"),
        (("--stride", "8,[16"), "stride: expected a value as YAML writes it, got '8,[16'"),
        (("-o", "max-length={"), "max_length: "),
        (("-o", "stride=8", "--stride", "8"), "got 'stride=8'"),
    ],
)
def test_a_value_that_cannot_be_read_is_named_with_its_option(
    arguments: tuple[str, ...], says: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "200")
    done = CliRunner().invoke(app, ["measure", "ppl", "m", "d", *arguments])
    assert done.exit_code != 0
    assert says in f"{done.stderr}{done.exception}"


@pytest.mark.parametrize(
    ("metric", "says"),
    [
        ("perplexity", "(did you mean 'ppl'?)"),
        ("keyword_recall", "only pytest knows metrics that a conftest.py registers"),
    ],
)
def test_a_metric_that_is_none_or_a_conftest_s_is_a_usage_error(
    metric: str, says: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    done = CliRunner().invoke(app, ["measure", metric, "m", "d"])
    assert done.exit_code == 2
    assert says in done.stderr


def test_a_measurement_that_is_not_kept_is_said_with_its_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    with measuring() as session:
        session.evaluator.measurements.uncacheable_reasons["die"] = "its code cannot be identified"
        session.evaluator.log.remark("die is a die")
        session.evaluator.log.remark("die is a die")
    said = capsys.readouterr().err
    assert "die: its measurement is not kept: its code cannot be identified" in said
    assert said.count("die is a die") == 1, "a remark is said once, at the end"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("why")
    model = make_reference(layers=4)
    model.save_pretrained(folder / "float")
    quantize(model.model.layers[2], bits=4)
    model.save_pretrained(folder / "int4")
    for name in ("float", "int4"):
        make_tokenizer().save_pretrained(folder / name)
    (folder / "text.txt").write_text(text(600))
    (folder / "pytest.ini").write_text("[pytest]\n")
    (folder / "lmgate.yaml").write_text("models: {original: {path: float}}\ndatasets: {words: {path: text.txt}}\n")
    return folder


def run(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [warm_python(environment()), "-m", "pytest_lmgate.cli", "why", *arguments]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False, timeout=300)


def test_the_damaged_layer_is_named_in_a_sentence(folder: Path) -> None:
    done = run(folder, "int4", "words", "--against", "original", "--tokens", "1000", "--device", "cpu")
    assert done.returncode == 0, done.stderr
    assert "model.layers.2 stands out: put into original, it alone costs " in done.stdout
    assert "protocol:sliding|max_length:" in done.stdout.splitlines()[1]
    assert done.stdout.splitlines()[4].split() == ["part", "KL,", "put", "in", "perplexity", "KL,", "put", "back"]


def test_the_windows_are_those_of_the_gates_and_give_their_number(folder: Path, tmp_path: Path) -> None:
    names = "model: ./int4, dataset: words"
    gate = f"kl_max: {{{names}, reference: original, limit: 1, max_length: 32, stride: 8}}"
    others = f"ppl_max: {{{names}, limit: 9}}"
    other = f"no_regression: {{metric: ppl, {names}, tolerance: 1%, against: original, protocol: disjoint}}"
    plain = (folder / "lmgate.yaml").read_text()
    for name, gates in {"one.yaml": [gate, others], "two.yaml": [gate, other]}.items():
        (folder / name).write_text(plain + "gates:\n" + "".join(f"  - {each}\n" for each in gates))
    arguments = ("int4", "words", "--against", "original", "--json", "--config")
    why = json.loads(run(folder, *arguments, "one.yaml").stdout)
    assert "protocol:sliding|max_length:32|stride:8|" in why["signature"]
    measure = ("kl", "int4", "words", "--reference=original", "--stride=8", "--max-length=32", "--json")
    command = [warm_python(environment()), "-m", "pytest_lmgate.cli", "measure", *measure]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=True, timeout=300)
    assert why["kl"]["mean"] == pytest.approx(json.loads(done.stdout)["measurements"][0]["value"], rel=1e-6)
    refused = run(folder, *arguments, "two.yaml")
    assert refused.returncode == 3
    assert "measure by several protocols" in refused.stderr
    chosen = run(folder, *arguments, "two.yaml", "--protocol=lm-eval", "-o", "add_bos_token=null", "--tokens=300")
    assert "protocol:lm-eval|" in json.loads(chosen.stdout)["signature"]
    assert "add_bos_token:none" in json.loads(chosen.stdout)["signature"]
