"""Every way in which pytest may be called: the verdict is the same, and a session without gates pays nothing."""

import contextlib
import os
import re

import pytest

from tests.end_to_end.dice import DiceProject
from tests.end_to_end.projects import BROKEN_GATE, Project, finished, marked

BOTH = marked(above='ppl_max("die", "words", 59.5)', within='ppl_max("die", "words", 60.5)')


@pytest.mark.parametrize(
    "options",
    [
        ("-n", "2", "--dist", "loadgroup"),
        ("-n", "2", "--dist", "each"),
        ("-p", "no:xdist", "-W", "error", "--strict-markers", "--strict-config", "--assert=plain", "-q", "--no-header"),
        ("-p", "no:terminal"),
        tuple(f"-pno:{name}" for name in ("cacheprovider", "junitxml", "logging", "warnings", "capture", "skipping")),
    ],
    ids=" ".join,
)
def test_a_broken_model_fails_the_build_and_a_good_one_does_not(measured: Project, options: tuple[str, ...]) -> None:
    measured.write(test_both=BOTH).run(*options, "--lmgate-report", "json:report.json").expect(1)
    assert [gate["verdict"] for gate in measured.report()["gates"]] == ["fail", "pass"]


IMPORTS_NOTHING = """
    import sys

    def pytest_sessionfinish(): assert not {"torch", "transformers", "datasets"} & set(sys.modules)
"""


def test_collect_only_loads_no_model_and_writes_nothing(project: Project) -> None:
    project.write(test_gate=BROKEN_GATE, conftest=IMPORTS_NOTHING)
    before = set(project.folder.iterdir())
    options = ("--collect-only", "-n", "2", "-p", "no:cacheprovider", "--lmgate-report", "json:report.json")
    project.run(*options, torch_free=True).expect(0)
    assert set(project.folder.iterdir()) == before


def test_stopping_at_the_first_failure_misses_no_verdict(measured: Project) -> None:
    measured.write(
        test_gate=BROKEN_GATE.replace("\n@", "\n@pytest.mark.parametrize('n', range(20))\n@").replace("()", "(n)")
    )
    outcome = measured.run("-x", "-n", "2").is_silent_on("never arrived").says("is above the limit 59.5")
    assert outcome.code in (1, 2)


def test_no_lmgate_skips_what_needs_a_measurement_and_nothing_else(project: Project) -> None:
    score = "def test_score(ppl_of): assert ppl_of('die', 'words') < 1\n"
    project.write(test_gate=BROKEN_GATE, test_score=score, test_plain="def test_plain(): pass\n")
    project.run("--no-lmgate", "-n", "2", torch_free=True).expect(0, passed=1, skipped=2)
    assert not project.cache.exists()
    hidden = {"PYTEST_ADDOPTS": "--no-lmgate", "LMGATE_REQUIRE_ALL": "1"}
    project.run(env=hidden, torch_free=True).expect(4).says("--no-lmgate: ", "PYTEST_ADDOPTS")


def test_the_plugin_can_be_left_out_as_a_whole_alone_and_not_where_the_project_requires_it(measured: Project) -> None:
    measured.write(test_gate=BROKEN_GATE)
    measured.run("-p", "no:lmgate-gates").expect(4).says("-p no:lmgate-gates: expected no part")
    measured.run("-p", "no:lmgate").expect(0, passed=1)
    measured.run("-p", "no:lmgate", "--strict-markers").expect(2).says("'ppl_max' not found in `markers`")
    measured.write(pytest_ini="[pytest]\nrequired_plugins = pytest-lmgate\n")
    measured.run("-p", "no:lmgate").expect(4).says("Missing required plugins: pytest-lmgate")


def test_the_plugin_can_be_named_where_plugins_are_not_found_by_themselves(measured: Project) -> None:
    measured.write(test_both=BOTH)
    outcome = measured.run("-p", "lmgate", "-p", "xdist", "-n", "2", env={"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"})
    outcome.expect(1, passed=1, failed=1).says("2 gates: 1 pass, 1 fail")


PROGRESS = re.compile(r"lmgate: a on one: \d+%, ppl 6 so far, [\d,]+ tokens/s, [\d:]+ left")
AT_ONCE = "\nfrom pytest_lmgate.report import text\ntext._LOG_SECONDS = text._TERMINAL_SECONDS = 0.0\n"


def test_progress_is_a_line_now_and_then_in_a_log_and_one_changing_line_on_a_terminal(dice: DiceProject) -> None:
    dice.models(a={}).gates([("a", "one")])
    with (dice.folder / "conftest.py").open("a") as file:
        file.write(AT_ONCE)
    logged = dice.run().expect(0, passed=1)
    shown = sum(PROGRESS.fullmatch(line) is not None for line in logged.out.splitlines())
    assert shown > 3, logged.out

    controller, terminal = os.openpty()
    process = dice.start("--lmgate-refresh", stdout=terminal, fresh=False)
    os.close(terminal)
    seen = b""
    with contextlib.suppress(OSError):  # a terminal that nobody writes to any more is an error to read
        while chunk := os.read(controller, 4096):
            seen += chunk
    os.close(controller)
    finished(process).expect(0)
    drawn = re.split(r"[\r\n]", seen.decode())
    assert sum(PROGRESS.fullmatch(line.rstrip()) is not None for line in drawn) == shown, drawn
    assert not any(PROGRESS.search(line) for line in seen.decode().splitlines()[-4:]), "the line is cleared at the end"
    # A worker has no terminal; it writes to the standard error that it shares with the controller.
    worker = dice.run("--lmgate-refresh", "-n", "2").expect(0, passed=1)
    assert len(PROGRESS.findall(worker.err)) == shown, worker.text


HEAVY = ("torch", "transformers", "datasets", "numpy", "pyarrow", "msgspec", "yaml", "safetensors", "filelock", "scipy")

PLAIN = """
    import pytest

    def test_plain(): pass

    @pytest.mark.skip
    def test_skipped(): pass
"""


def test_a_session_without_gates_imports_nothing_heavy_and_leaves_the_environment_alone(project: Project) -> None:
    (project.folder / "lmgate.yaml").unlink()
    project.write(
        test_plain=PLAIN,
        conftest=f"""
            import os, sys

            before = dict(os.environ)

            def pytest_unconfigure():
                loaded = set({HEAVY!r}) & set(sys.modules)
                assert not loaded, loaded
                assert {{k: v for k, v in os.environ.items() if k != "PYTEST_CURRENT_TEST"}} == before
                assert "pytest_lmgate.plugin" in sys.modules
                ours = [name for name in sys.modules if name.startswith("pytest_lmgate")]
                assert len(ours) <= 15, ours
        """,
    )
    project.run("-n", "2", fresh=True).expect(0, passed=1, skipped=1)


def test_a_cached_gate_imports_no_torch_and_asks_no_network(measured: Project) -> None:
    heavy = {"torch", "transformers", "datasets", "pyarrow", "huggingface_hub", "scipy"}
    measured.write(
        test_gate=f"""
            import sys
            import pytest

            @pytest.mark.bpb_max("sure", "words", 99)
            @pytest.mark.no_regression("ppl", "die", "words", "1%")
            def test_gate(ppl_of): assert ppl_of("die", "words", unit="word").cached

            def test_imports():
                assert "--lmgate-update" in sys.argv or not {heavy} & set(sys.modules)
        """
    ).run("--lmgate-update").expect(0, passed=2)
    no_network = "import socket\n\nsocket.socket.connect = socket.create_connection = socket.getaddrinfo = None\n"
    measured.write(conftest=no_network).run(torch_free=True).expect(0, passed=2)
