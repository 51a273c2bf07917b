"""Every way in which pytest may be called: the verdict is the same, and nothing is lost or done twice."""

from __future__ import annotations

import contextlib
import os
import re
import shlex
import subprocess
import sys
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest

from tests.end_to_end.projects import BROKEN_GATE, COUNT_MEASUREMENTS, GATE, Project, environment, finished

BOTH = """
    import pytest

    class TestBoth:
        @pytest.mark.ppl_max("die", "words", 59.5)
        def test_above(self): pass

        @pytest.mark.ppl_max("die", "words", 60.5)
        def test_within(self): pass
"""


@pytest.mark.parametrize(
    "options",
    [
        ("-n", "2"),
        ("-n", "2", "--dist", "loadgroup"),
        ("-p", "no:xdist"),
        ("-W", "error", "--strict-markers", "--strict-config"),
        ("--assert=plain", "-q", "--no-header"),
        ("-p", "no:terminal"),
        ("-s", "-vv"),
        tuple(f"-pno:{name}" for name in ("cacheprovider", "junitxml", "logging", "warnings", "capture", "skipping")),
    ],
    ids=" ".join,
)
def test_a_broken_model_fails_the_build_and_a_good_one_does_not(measured: Project, options: tuple[str, ...]) -> None:
    measured.write(test_both=BOTH)
    outcome = measured.run(*options, "--lmgate-report", "json:report.json").expect(1)
    assert [gate["verdict"] for gate in measured.report()["gates"]] == ["fail", "pass"]
    if "no:terminal" not in options:
        outcome.says("is above the limit 59.5")


@pytest.mark.parametrize("options", [(), ("-n", "2"), ("-p", "no:terminal")], ids=" ".join)
def test_a_build_without_a_broken_model_passes(measured: Project, options: tuple[str, ...]) -> None:
    measured.write(test_both=BOTH)
    measured.run(*options, "--deselect", "test_both.py::TestBoth::test_above").expect(0)


def test_dist_each_judges_on_every_worker_and_reports_every_gate_once(measured: Project) -> None:
    measured.write(test_both=BOTH)
    outcome = measured.run("-n", "2", "--dist", "each", "--lmgate-report", "json:report.json")
    outcome.expect(1, passed=2, failed=2).says("2 gates: 1 pass, 1 fail")
    assert len(measured.report()["gates"]) == 2


def test_two_workers_measure_once_and_report_every_gate_once_in_the_order_of_the_tests(project: Project) -> None:
    project.write(
        conftest=COUNT_MEASUREMENTS,
        test_many="""
            import pytest

            @pytest.mark.parametrize("n", range(8))
            @pytest.mark.ppl_max("die", "words", 60.5)
            @pytest.mark.bpb_max("die", "words", 9)
            def test_gate(n): pass
        """,
    )
    outcome = project.run("-n", "2", "--lmgate-report", "json:report.json").expect(0, passed=8)
    outcome.says("16 gates: 16 pass")
    assert project.measured == ["die"]
    assert [gate["test"] for gate in project.report()["gates"]] == [
        f"test_many.py::test_gate[{n}]" for n in range(8) for _ in range(2)
    ]


def test_collect_only_loads_no_model_and_writes_nothing(project: Project) -> None:
    project.write(
        test_gate=BROKEN_GATE,
        conftest="""
            import sys

            def pytest_sessionfinish():
                assert not {"torch", "transformers", "datasets"} & set(sys.modules)
        """,
    )
    before = set(project.folder.iterdir())
    for options in (("--collect-only",), ("--collect-only", "-n", "2")):
        project.run(*options, "-p", "no:cacheprovider", "--lmgate-report", "json:report.json", fresh=True).expect(0)
        assert set(project.folder.iterdir()) == before


@pytest.mark.parametrize("option", ["--setup-only", "--setup-plan"])
def test_setup_only_measures_nothing_and_misses_nothing(project: Project, option: str) -> None:
    project.write(test_gate=BROKEN_GATE)
    project.run(option).expect(0).is_silent_on("never arrived")
    assert not project.cache.exists()


def test_lists_of_fixtures_measure_nothing_and_miss_nothing(project: Project) -> None:
    project.write(test_gate=GATE, test_score="def test_score(ppl_of): assert ppl_of('die', 'words') < 60.5\n")
    for option in ("--fixtures", "--fixtures-per-test"):
        project.run(option).expect(0).says("ppl_of").is_silent_on("never arrived")
    assert not project.cache.exists()


@pytest.mark.parametrize("workers", [(), ("-n", "2")])
def test_stopping_at_the_first_failure_misses_no_verdict(measured: Project, workers: tuple[str, ...]) -> None:
    measured.write(
        test_gate="""
            import pytest

            @pytest.mark.parametrize("limit", [
                pytest.param(n, marks=pytest.mark.ppl_max("die", "words", 59.5)) for n in range(20)
            ])
            def test_gate(limit): pass
        """
    )
    outcome = measured.run("-x", *workers).is_silent_on("never arrived").says("is above the limit 59.5")
    assert outcome.code in (1, 2)


def test_last_failed_runs_the_broken_gate_alone(measured: Project) -> None:
    measured.write(test_both=BOTH).run().expect(1, passed=1, failed=1)
    measured.run("--lf").expect(1, failed=1).is_silent_on("never arrived")
    measured.write(test_both=BOTH.replace("59.5", "60.5"))
    measured.run("--lf").expect(0, passed=1).is_silent_on("never arrived")
    measured.run("--stepwise", "--ff").expect(0, passed=2)


def test_no_lmgate_skips_what_needs_a_measurement_and_nothing_else(project: Project) -> None:
    project.write(
        test_gate="""
            import pytest

            @pytest.mark.ppl_max("die", "words", 59.5)
            def test_gate(): pass

            def test_score(ppl_of):
                assert ppl_of("die", "words") < 1

            def test_plain(): pass
        """
    )
    project.run("--no-lmgate").expect(0, passed=1, skipped=2)
    project.run("--no-lmgate", "-n", "2").expect(0, passed=1, skipped=2)
    assert not project.cache.exists()
    says = "--no-lmgate: expected on the command line, got it from addopts, PYTEST_ADDOPTS or a conftest, so no session"
    project.run(env={"PYTEST_ADDOPTS": "--no-lmgate", "LMGATE_REQUIRE_ALL": "1"}).expect(4).says(says)
    project.write(pytest_ini="[pytest]\naddopts = --no-lmgate\n")
    for workers in ((), ("-n", "2")):
        project.run(*workers).expect(4).says(says)


def test_the_plugin_can_be_left_out_as_a_whole_alone_and_not_where_the_project_requires_it(measured: Project) -> None:
    measured.write(test_gate=BROKEN_GATE)
    measured.run("-p", "no:lmgate-hooks").expect(1, failed=1)
    measured.run("-p", "no:lmgate").expect(0, passed=1)
    measured.write(pytest_ini="[pytest]\nrequired_plugins = pytest-lmgate\n")
    measured.run("-p", "no:lmgate").expect(4).says("Missing required plugins: pytest-lmgate")


def test_without_the_plugin_its_marks_are_unknown_and_strict_markers_says_so(measured: Project) -> None:
    measured.write(test_gate=BROKEN_GATE)
    measured.run("-p", "no:lmgate", "--strict-markers").expect(2).says("'ppl_max' not found in `markers`")
    measured.run("-p", "no:lmgate", "-W", "ignore").expect(0, passed=1)


@pytest.mark.parametrize("options", [("pytest_lmgate.plugin",), ("lmgate",), ("lmgate", "-p", "xdist", "-n", "2")])
def test_the_plugin_can_be_named_where_plugins_are_not_found_by_themselves(
    measured: Project, options: tuple[str, ...]
) -> None:
    measured.write(test_both=BOTH)
    outcome = measured.run("-p", *options, env={"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"})
    outcome.expect(1, passed=1, failed=1).says("2 gates: 1 pass, 1 fail")


def test_markers_fixtures_and_options_are_documented(project: Project) -> None:
    project.run("--markers").expect(0).says("@pytest.mark.ppl_max(model, dataset, limit", "@pytest.mark.bpb_max(")
    project.run("--fixtures").expect(0).says("ppl_of", "bpb_of")
    project.run("--help").expect(0).says("--lmgate-cache=FOLDER", "--no-lmgate", "lmgate_refresh")


def test_junit_xml_carries_every_verdict_as_plain_properties(measured: Project) -> None:
    measured.write(test_both=BOTH)
    for workers in ((), ("-n", "2")):
        measured.run("--junitxml", "junit.xml", *workers).expect(1)
        root = ET.parse(measured.folder / "junit.xml").getroot()
        properties = {
            case.get("name"): {each.get("name"): each.get("value") for each in case.iter("property")}
            for case in root.iter("testcase")
        }
        prefix, above, within = "lmgate.ppl_max[die-words].", properties["test_above"], properties["test_within"]
        assert (above[f"{prefix}verdict"], within[f"{prefix}verdict"]) == ("fail", "pass")
        assert float(above[f"{prefix}value"]) == pytest.approx(60, rel=1e-6)
        assert (float(above[f"{prefix}limit"]), int(above[f"{prefix}n"]), above[f"{prefix}unit"]) == (
            59.5,
            399,
            "token",
        )
        assert float(above[f"{prefix}stderr"]) >= 0
        assert "protocol:sliding" in above[f"{prefix}signature"]
        assert not [value for case in properties.values() for value in case.values() if value.startswith(("{", "["))]
        failures = [case.get("name") for case in root.iter("testcase") if case.find("failure") is not None]
        assert failures == ["test_above"]


def test_only_scalars_and_text_travel_in_user_properties(measured: Project, models: Path) -> None:
    measured.write(
        where=f"MODELS = {str(models)!r}",
        conftest="""
            def pytest_runtest_logreport(report):
                for name, value in report.user_properties:
                    assert type(name) is str and type(value) in (str, int, float, bool), (name, value)
        """,
        test_gate="""
            import pathlib
            import numpy, pytest
            from where import MODELS

            MODEL, DATASET = pathlib.Path(MODELS, "die"), pathlib.Path(MODELS, "words.txt")

            @pytest.mark.ppl_max(MODEL, DATASET, numpy.float64(60.5))
            @pytest.mark.ppl_max(MODEL, DATASET, numpy.float64(60.25))
            def test_gate(): pass
        """,
    )
    measured.run("-n", "2").expect(0, passed=1).says("2 gates: 2 pass")


def test_options_come_from_the_command_line_then_the_ini_file_then_the_environment(measured: Project) -> None:
    measured.write(
        test_gate=GATE,
        pytest_ini="""
            [pytest]
            lmgate_cache = from_ini
            lmgate_explain_cache = false
        """,
    )

    def lookup(*options: str, **environment: str) -> str:
        return measured.run("--collect-only", "-q", *options, env=environment).expect(0).out

    measured.write(
        conftest="""
            import pytest
            from pytest_lmgate.plugin.hooks import GateHooks

            @pytest.hookimpl(trylast=True)
            def pytest_collection_finish(session):
                options = GateHooks.of(session.config).session()._options
                print("cache", options.cache.name, "explain", options.explain_cache, "offline", options.offline)
        """
    )
    environment = {"LMGATE_CACHE": "from_env", "LMGATE_EXPLAIN_CACHE": "1", "LMGATE_OFFLINE": "1"}
    assert "cache from_ini explain False offline False" in lookup()
    assert "cache from_ini explain False offline True" in lookup(**environment)
    assert "cache from_line explain True offline True" in lookup(
        "--lmgate-cache", "from_line", "--lmgate-explain-cache", **environment
    )
    measured.write(pytest_ini="[pytest]\n")
    assert "cache from_env explain True offline True" in lookup(**environment)


def test_lmgate_yaml_is_found_upward_or_named_on_the_command_line_or_in_the_ini_file(
    measured: Project, models: Path
) -> None:
    inner = measured.folder / "packages" / "inner"
    (inner / "config").mkdir(parents=True)
    (inner / "pytest.ini").write_text("[pytest]\n")
    (inner / "test_gate.py").write_text(BROKEN_GATE)
    elsewhere = inner / "config" / "gates.yaml"
    entries = f"models: {{die: {{path: {models}/sure}}}}", f"datasets: {{words: {{path: {models}/words.txt}}}}"
    elsewhere.write_text("\n".join(entries))
    cache = ("--lmgate-cache", str(measured.cache))
    measured.run(*cache, cwd=inner).expect(1, failed=1).says("perplexity 60 ")
    measured.run(*cache, "--lmgate-config", "config/gates.yaml", cwd=inner).expect(1).is_silent_on("perplexity 60 ")
    (inner / "pytest.ini").write_text("[pytest]\nlmgate_config = config/gates.yaml\n")
    measured.run(*cache, "-c", "packages/inner/pytest.ini", "packages/inner").expect(1).is_silent_on("perplexity 60 ")


def test_pytest_main_in_a_program_returns_the_verdict(measured: Project) -> None:
    measured.write(test_gate=BROKEN_GATE)
    program = "import sys, pytest; sys.exit(pytest.main(['-q', 'test_gate.py']))"
    command = [sys.executable, "-c", program]
    done = subprocess.run(command, cwd=measured.folder, env=environment(), capture_output=True, text=True)
    assert done.returncode == 1, done.stdout + done.stderr


PROGRESS = re.compile(r"lmgate: die on words: \d+%, ppl 60 so far, [\d,]+ tokens/s, [\d:]+ left")


def _with_progress(project: Project, models: Path) -> Project:
    return project.write(
        lmgate_yaml=f"""
            defaults: {{batch_size: 4}}
            models:
              die: {{path: {models}/die}}
            datasets:
              words: {{path: {models}/words.txt}}
        """,
        conftest="""
            import pytest_lmgate.report.terminal.progress as progress

            progress._LOG_SECONDS = progress._TERMINAL_SECONDS = 0.0
        """,
        test_gate=GATE,
    )


def test_progress_is_a_line_now_and_then_in_a_log_and_one_changing_line_on_a_terminal(
    project: Project, models: Path
) -> None:
    _with_progress(project, models)
    logged = project.run().expect(0, passed=1)
    lines = [line for line in logged.out.splitlines() if PROGRESS.fullmatch(line)]
    assert len(lines) == 6, logged.out

    controller, terminal = os.openpty()
    process = project.start("--lmgate-refresh", stdout=terminal)
    os.close(terminal)
    seen = b""
    with contextlib.suppress(OSError):  # a terminal that nobody writes to any more is an error to read
        while chunk := os.read(controller, 4096):
            seen += chunk
    os.close(controller)
    finished(process).expect(0)
    drawn = re.split(r"[\r\n]", seen.decode())
    assert sum(PROGRESS.fullmatch(line.rstrip()) is not None for line in drawn) == 6, drawn
    assert not any(PROGRESS.search(line) for line in seen.decode().splitlines()[-4:]), "the line is cleared at the end"
    # A worker has no terminal; it writes to the standard error that it shares with the controller.
    worker = project.run("--lmgate-refresh", "-n", "2").expect(0, passed=1)
    assert len(PROGRESS.findall(worker.err)) == 6, worker.text


def test_the_line_that_reproduces_names_the_settings_that_the_session_was_given(measured: Project) -> None:
    measured.write(test_gate=BROKEN_GATE, fast_ini="[pytest]\n")
    outcome = measured.run("-c", "fast.ini", "--rootdir", ".").expect(1, failed=1)
    line = next(line for line in outcome.out.splitlines() if line.strip().startswith("reproduce"))
    assert line.split()[1:] == shlex.split("pytest test_gate.py::test_gate --config-file=fast.ini --rootdir=.")
    measured.run(*line.split()[2:]).expect(1, failed=1)
