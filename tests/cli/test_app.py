"""What all commands of ``lmgate`` share: exit codes, errors, JSON, and a quick start."""

import json
import subprocess
import sys
from importlib.metadata import version

import pytest
from typer.testing import CliRunner

from pytest_lmgate.cli import app as cli
from pytest_lmgate.errors import DataError
from pytest_lmgate.settings.help import fixtures_help, markers_help


def test_markers_prints_the_help_of_every_marker_and_fixture_and_json_has_the_same() -> None:
    helps = {**markers_help(), **fixtures_help()}
    text = CliRunner().invoke(cli.app, ["markers"]).stdout
    assert text.startswith("\n\n".join(helps.values()))
    assert json.loads(CliRunner().invoke(cli.app, ["markers", "--json"]).stdout) == helps
    assert CliRunner().invoke(cli.app, ["--version"]).stdout == f"pytest-lmgate {version('pytest-lmgate')}\n"


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["fix", "a", "b", "--against=c", "--kl=1", "--bits=40"], "--bits: expected a number above 0"),
        (["why", "a", "b", "--against=c", "--by=row"], "--by: expected block or group, got 'row'"),
        (["markers", "ppl_mx"], "'ppl_max'"),
        (["docter"], "Did you mean 'doctor'?"),
    ],
)
def test_a_wrong_argument_is_a_usage_error(arguments: list[str], says: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    outcome = CliRunner().invoke(cli.app, arguments)
    assert outcome.exit_code == 2
    assert says in outcome.stderr


def test_an_error_of_the_package_is_one_message_and_exit_code_3(monkeypatch, capsys):
    def fail(prog_name: str) -> None:
        raise DataError("data.txt: expected a text, got nothing")

    monkeypatch.setattr(cli, "app", fail)
    with pytest.raises(SystemExit) as ended:
        cli.main()
    assert ended.value.code == 3
    assert capsys.readouterr().err == "lmgate: data.txt: expected a text, got nothing\n"


def test_the_command_line_starts_without_what_measures():
    code = (
        "import sys; from pytest_lmgate.cli.app import app; "
        "print(sorted({'torch', 'transformers', 'datasets', 'numpy', 'pyarrow', 'pytest'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"
