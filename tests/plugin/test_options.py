"""Options are read from the command line, else from the ini file, else from the environment."""

from pathlib import Path

import pytest

from pytest_lmgate.plugin import options
from tests.plugin.conftest import Configured


def test_the_command_line_goes_before_the_ini_file_and_the_environment(
    configured: Configured, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert options.text(configured(), "cache") is None
    monkeypatch.setenv("LMGATE_CACHE", "from_environment")
    assert options.text(configured(), "cache") == "from_environment"
    assert options.text(configured(ini="lmgate_cache = from_ini"), "cache") == "from_ini"
    assert options.text(configured("--lmgate-cache", "given", ini="lmgate_cache = from_ini"), "cache") == "given"


@pytest.mark.parametrize(("value", "on"), [("Yes", True), ("0", False)])
def test_a_flag_is_on_or_off_in_the_ini_file_and_in_the_environment(
    configured: Configured, monkeypatch: pytest.MonkeyPatch, value: str, on: bool
) -> None:
    assert options.flag(configured(ini=f"lmgate_offline = {value}"), "offline") is on
    monkeypatch.setenv("LMGATE_OFFLINE", value)
    assert options.flag(configured(), "offline") is on
    assert options.flag(configured("--lmgate-offline", ini="lmgate_offline = no"), "offline")
    with pytest.raises(pytest.UsageError, match=r"lmgate_strict: expected one of 1, true, .*; got 'maybe'"):
        options.flag(configured(ini="lmgate_strict = maybe"), "strict")


@pytest.mark.skipif(pytest.version_tuple < (9,), reason="pytest 9 has tables of its own in TOML")
@pytest.mark.parametrize("value", ["true", '"true"'])
def test_pytests_own_toml_may_have_a_truth_value_or_a_text(pytester: pytest.Pytester, value: str) -> None:
    pytester.makefile(".toml", pytest=f"[pytest]\nlmgate_offline = {value}\nlmgate_verify = 5\n")
    config = pytester.parseconfig()
    assert options.flag(config, "offline")
    assert options.verify(config) == 5


def test_the_project_file_is_relative_to_the_ini_file_that_names_it_or_to_where_pytest_was_started(
    configured: Configured, pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    inner = pytester.mkdir("inner")
    (pytester.path / "gates.yaml").touch()
    (inner / "gates.yaml").touch()
    ini = "lmgate_config = gates.yaml"
    configured(ini=ini)
    monkeypatch.chdir(inner)
    (pytester.path / "tox.ini").write_text(f"[pytest]\n{ini}\n")
    by_ini = pytester.parseconfig("-c", str(pytester.path / "tox.ini"))
    by_option = pytester.parseconfig("-c", str(pytester.path / "tox.ini"), "--lmgate-config", "gates.yaml")
    assert options.project_file(by_ini) == pytester.path / "gates.yaml"
    assert options.project_file(by_option) == inner / "gates.yaml"
    with pytest.raises(pytest.UsageError, match=r"gone\.yaml: cannot be read: .*; check --lmgate-config"):
        options.project_file(configured("--lmgate-config", "gone.yaml"))


@pytest.mark.parametrize("other", ["--lmgate-update-new-only", "--lmgate-prune"])
def test_two_ways_to_write_baselines_are_a_usage_error(configured: Configured, other: str) -> None:
    with pytest.raises(pytest.UsageError, match="expected one of them, got both"):
        options.update(configured("--lmgate-update", other))


@pytest.mark.parametrize("name", ["CI", "TF_BUILD"])
def test_in_ci_a_baseline_is_written_if_forced(
    configured: Configured, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setenv(name, "1")
    for option in ("--lmgate-update", "--lmgate-update-new-only"):
        with pytest.raises(pytest.UsageError, match=rf"{option}: refused in CI \({name}=1\)"):
            options.update(configured(option))
    assert options.update(configured("--lmgate-update", "--lmgate-force-update")) == "all"
    assert options.update(configured("--lmgate-prune")) == "prune"
    assert options.update(configured()) == ""
    monkeypatch.setenv(name, "false")
    assert options.update(configured("--lmgate-update")) == "all"


def test_a_report_that_cannot_be_made_and_two_in_one_file_are_usage_errors(configured: Configured) -> None:
    for report in ("json", "json:", "github:", "yaml:out", ":out", "", "eval-results:-"):
        with pytest.raises(pytest.UsageError, match=r"expected (TYPE:DEST|a folder)"):
            options.reports(configured("--lmgate-report", report))
    with pytest.raises(pytest.UsageError, match=r"two reports go to .*/x: give each a file of its own"):
        options.reports(configured("--lmgate-report", "json:x", "--lmgate-report", f"html:{Path.cwd()}/x"))
    appended = ["--lmgate-report", "markdown-append:x", "--lmgate-report", "markdown-append:x"]
    assert len(options.reports(configured(*appended, "--lmgate-report", "json:-", "--lmgate-report", "html:-"))) == 4


def test_variables_in_a_destination_are_expanded_and_must_be_set(
    configured: Configured, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("STEP_SUMMARY", "/tmp/summary.md")
    monkeypatch.delenv("NOT_SET", raising=False)
    for given in ("$STEP_SUMMARY", "${STEP_SUMMARY}"):
        assert options.reports(configured(f"--lmgate-report=json:{given}")) == [("json", "/tmp/summary.md")]
    assert options.reports(configured("--lmgate-report=json:cost$.json")) == [("json", "cost$.json")]
    with pytest.raises(pytest.UsageError, match=r"json:a/\$\{NOT_SET\}: the environment variable NOT_SET is not set"):
        options.reports(configured("--lmgate-report=json:a/${NOT_SET}"))
