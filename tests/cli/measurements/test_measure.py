"""What ``lmgate measure`` refuses before anything is measured."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

from pytest_lmgate.cli.app import app


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
