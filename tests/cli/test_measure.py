"""``lmgate measure``: what it refuses, and what it says beside the number. ``lmgate why`` as a user runs it."""

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from pytest_lmgate.cli.app import app
from pytest_lmgate.cli.measure import measuring
from tests.end_to_end.projects import Outcome, lmgate
from tests.measure.conftest import make_tokenizer
from tests.tools.fix.test_costs import rounded, text


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("ppl", "-o", "strid=8"), "strid: unknown argument (did you mean 'stride'?)"),
        (("ppl", "--stride", "8,[16"), "stride: expected a value as YAML writes it, got '8,[16'"),
        (("ppl", "-o", "max-length={"), "max_length: "),
        (("ppl", "-o", "stride=8", "--stride", "8"), "got 'stride=8'"),
        (("perplexity",), "(did you mean 'ppl'?)"),
        (("keyword_recall",), "only pytest knows metrics that a conftest.py registers"),
    ],
)
def test_a_value_or_a_metric_that_cannot_be_is_named(
    arguments: tuple[str, ...], says: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "200")
    metric, *more = arguments
    done = CliRunner().invoke(app, ["measure", metric, "m", "d", *more])
    assert done.exit_code != 0
    assert says in f"{done.stderr}{done.exception}"


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


def test_the_windows_are_those_of_the_gates_or_of_the_options(tmp_path: Path) -> None:
    for name, model in zip(("float", "int4"), rounded(2, "model.layers.1"), strict=True):
        model.save_pretrained(tmp_path / name)
        make_tokenizer().save_pretrained(tmp_path / name)
    (tmp_path / "text.txt").write_text(text(600))
    (tmp_path / "pytest.ini").write_text("[pytest]\n")
    names = "model: ./int4, dataset: words"
    gate = f"kl_max: {{{names}, reference: original, limit: 1, max_length: 32, stride: 8}}"
    other = f"no_regression: {{metric: ppl, {names}, tolerance: 1%, against: original, protocol: disjoint}}"
    plain = "models: {original: {path: float}}\ndatasets: {words: {path: text.txt}}\n"
    (tmp_path / "one.yaml").write_text(f"{plain}gates:\n  - {gate}\n")
    (tmp_path / "two.yaml").write_text(f"{plain}gates:\n  - {gate}\n  - {other}\n")

    def why(*arguments: str, code: int = 0) -> Outcome:
        return lmgate(tmp_path, "why", "int4", "words", "--against=original", "--json", *arguments, code=code)

    assert "protocol:sliding|max_length:32|stride:8|" in json.loads(why("--config=one.yaml").out)["signature"]
    why("--config=two.yaml", code=3).says("measure by several protocols")
    chosen = why("--config=two.yaml", "--protocol=lm-eval", "-o", "add_bos_token=null", "--tokens=300")
    assert "protocol:lm-eval|" in json.loads(chosen.out)["signature"]
    assert "add_bos_token:none" in json.loads(chosen.out)["signature"]
