"""What all commands of ``lmgate`` share: exit codes, errors, JSON, and a quick start."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest
from typer.testing import CliRunner

import pytest_lmgate
from pytest_lmgate.cli import app as cli
from pytest_lmgate.errors import DataError
from pytest_lmgate.spec.catalogue import FIXTURES_HELP, MARKERS_HELP, arguments_help


def test_markers_prints_the_help_of_every_marker_and_fixture_and_json_has_the_same():
    text = CliRunner().invoke(cli.app, ["markers"])
    assert text.exit_code == 0
    helps = [*MARKERS_HELP.values(), *FIXTURES_HELP.values()]
    more = "lmgate markers NAME says what each argument means, and its default."
    assert text.stdout == "\n\n".join([*helps, more]) + "\n"
    assert json.loads(CliRunner().invoke(cli.app, ["markers", "--json"]).stdout) == {**MARKERS_HELP, **FIXTURES_HELP}


@pytest.mark.parametrize(
    ("name", "lines"),
    [
        ("ppl_max", ("limit: The worst value that passes", "stride=None: Step in tokens", "protocol='sliding': Which")),
        ("kl_max", ("reference: The model to compare with", "statistic='mean': Of the", "protocol='sliding': Which")),
        ("rouge_of", ("stemmer=False: Stem words", "max_new_tokens=128: Tokens", "predictions=None: Texts")),
        ("accuracy_min", ("variant='acc': The choice", "max_length=None: Tokens read", "confidence=None: One-sided")),
        ("no_regression", ("tolerance: How much worse", "against='baseline': 'baseline'", "confidence=0.95: One")),
        ("metric_max", ("metric: Name of the metric", "top_k=None: Draw from")),
    ],
)
def test_markers_says_of_one_what_its_arguments_mean_and_their_defaults(name: str, lines: tuple[str, ...]) -> None:
    said = CliRunner().invoke(cli.app, ["markers", name]).stdout.splitlines()
    assert [sum(line.startswith(start) for line in said) for start in lines] == [1] * len(lines), said


@pytest.mark.parametrize("name", [*MARKERS_HELP, *FIXTURES_HELP])
def test_every_argument_in_the_help_of_a_marker_or_fixture_has_a_meaning(name: str) -> None:
    call = (MARKERS_HELP | FIXTURES_HELP)[name].partition("(")[2].partition(")")[0]
    arguments = [each.partition("=")[0] for each in call.split(", ") if each != "*"]
    found = arguments_help(name)
    assert list(found) == arguments
    assert all(meaning.endswith(".") for _, meaning in found.values())


def test_a_misspelt_marker_is_a_usage_error_that_names_the_nearest():
    outcome = CliRunner().invoke(cli.app, ["markers", "ppl_mx"])
    assert outcome.exit_code == 2
    assert "no marker or fixture is called 'ppl_mx' (did you mean 'ppl_max'?)" in " ".join(outcome.stderr.split())


def test_the_version_is_the_package_s():
    assert CliRunner().invoke(cli.app, ["--version"]).stdout == f"pytest-lmgate {pytest_lmgate.__version__}\n"


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
