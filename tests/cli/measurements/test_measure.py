"""What ``lmgate measure`` refuses before anything is measured, and what it says beside the number."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

from pytest_lmgate.cli.app import app
from pytest_lmgate.cli.measurements.measuring import measuring


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("--stride", "["), "stride: expected a value as YAML writes it, got '['"),
        (("--stride", "8,[16"), "stride: expected a value as YAML writes it, got '8,[16'"),
        (("-o", "max-length={"), "max_length: expected a value as YAML writes it, got '{'"),
        (("-o", "stride=8", "--stride", "8"), "each name once; got 'stride=8'"),
    ],
)
def test_a_value_that_cannot_be_read_is_named_with_its_option(
    arguments: tuple[str, ...], says: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "200")
    done = CliRunner().invoke(app, ["measure", "ppl", "m", "d", *arguments])
    assert done.exit_code == 2
    assert says in done.stderr


def test_a_measurement_that_is_not_kept_is_said_with_its_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    with measuring() as session:
        session.evaluator.measurements.not_kept["die"] = "its code cannot be identified"
    assert "die: its measurement is not kept: its code cannot be identified" in capsys.readouterr().err
