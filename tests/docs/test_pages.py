"""What the docs show is what commands print and measure. `make docs` runs this; it takes minutes."""

import importlib.util
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.docs.pages import ROOT, Command, Folder, differences, steps
from tests.end_to_end.projects import Project, environment
from tests.warm import warm_python

PAGES = {
    str(page.relative_to(ROOT)): list(steps(page.read_text(encoding="utf-8")))
    for page in sorted((ROOT / "docs").rglob("*.md"))
}
RUN = [name for name, found in PAGES.items() if any(isinstance(step, Command) for step in found)]
# The page with a model of 135 million weights, which `make test-real` has.
REAL, REAL_MODEL = "docs/howto/real_model.md", os.environ.get("REAL_MODEL", "")
# The page whose libraries are not installed beside the others, which `make test-tracking` has.
TRACKING, TRACKERS = "docs/howto/tracking.md", ("trackio", "mlflow", "allure", "pytest_html")


@pytest.mark.parametrize("page", RUN)
def test_the_commands_of_a_page_print_what_it_says(page: str, tmp_path: Path) -> None:
    if page == REAL and not REAL_MODEL:
        pytest.skip("make test-real runs the commands of this page")
    if page == TRACKING and not all(map(importlib.util.find_spec, TRACKERS)):
        pytest.skip("make test-tracking runs the commands of this page")
    python = warm_python({**environment(), "HF_HUB_OFFLINE": "1"})  # most commands take longer to import than to run
    elsewhere = {"TRACKIO_DIR": str(tmp_path / "trackio"), "DO_NOT_TRACK": "1"}
    folder = Folder(tmp_path, {**environment(), **elsewhere, "REAL_MODEL": str(ROOT / REAL_MODEL)}, python)
    for step in PAGES[page]:
        printed = folder.do(step)
        if isinstance(step, Command):
            different = differences(step.printed, printed)
            assert not different, f"{page}:{step.line}: $ {step.script}\n{different}"


@pytest.mark.skipif(not REAL_MODEL, reason="make test-real measures a real model")
@pytest.mark.parametrize("part", ["perplexity", "divergence", "task"])
def test_a_real_model_has_the_numbers_of_other_programs(part: str) -> None:
    how = ["--small", "--threads", "1", "--models", REAL_MODEL, "--only", part]
    ran = subprocess.run(
        [sys.executable, "benchmarks/real_model.py", *how], cwd=ROOT, capture_output=True, text=True, check=False
    )
    print(ran.stdout)
    assert ran.returncode == 0, ran.stdout + ran.stderr


# docs/decisions.md, by benchmarks/decisions.py.


def test_the_small_run_keeps_every_promise_and_writes_the_tables(tmp_path: Path) -> None:
    ran = subprocess.run(
        [sys.executable, "-W", "error", "benchmarks/decisions.py", "--quick", "--docs", str(tmp_path)],
        cwd=ROOT,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert "0 promises broken, 400 repetitions" in ran.stdout
    written = (tmp_path / "decisions.md").read_text(encoding="utf-8")
    assert "breaks 0 promises." in written


def test_the_pages_on_tolerances_and_on_other_gates_show_what_is_computed() -> None:
    smallest, others = (
        subprocess.run([sys.executable, *command], cwd=ROOT, capture_output=True, text=True, check=True).stdout
        for command in (["benchmarks/other_rules.py", "--table", "--rows", "200"], ["benchmarks/other_rules.py"])
    )
    page = (ROOT / "docs" / "howto" / "tolerance.md").read_text(encoding="utf-8")
    assert smallest.partition("\n")[0] in page
    assert smallest.partition("--:|\n")[2] in page
    of_theirs = re.findall(r"drop of [\d.]+: passes ([\d.]+%)", others)
    page = (ROOT / "docs" / "howto" / "from_other_ci.md").read_text(encoding="utf-8")
    assert len(of_theirs) == 5
    assert not [figure for figure in of_theirs if figure not in page]


def test_the_page_on_decisions_shows_columns_of_the_summary_that_was_written() -> None:
    written = (ROOT / "docs" / "figures" / "decisions.md").read_text(encoding="utf-8").partition("## All methods")[2]
    shown = (ROOT / "docs" / "decisions.md").read_text(encoding="utf-8")
    summary, ours = (
        [[cell.strip() for cell in line.split("|")[1:-1]] for line in table.splitlines() if not line.startswith("|---")]
        for table in (text[text.index("| method") :].partition("\n\n")[0] for text in (written, shown))
    )
    columns = [summary[0].index(title) for title in ours[0]]
    assert len(columns) >= 4
    assert ours == [[row[column] for column in columns] for row in summary]


# docs/ci.md: its YAML parses, and every command of lmgate and pytest in it runs as it stands there.

GUIDE = (ROOT / "docs" / "ci.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"^```(\w+)\n(.*?)^```$", GUIDE, flags=re.DOTALL | re.MULTILINE)
YAML = [yaml.safe_load(body) for kind, body in BLOCKS if kind == "yaml"]


def scripts(found: Any) -> Iterator[str]:
    """Every line of a shell in a document."""
    if isinstance(found, dict):
        for key, value in found.items():
            if key in ("run", "script", "entry"):
                yield from "\n".join([value] if isinstance(value, str) else value).splitlines()
            else:
                yield from scripts(value)
    elif isinstance(found, list):
        for each in found:
            yield from scripts(each)


LINES = [line for document in YAML for line in scripts(document) if line.startswith(("pytest ", "lmgate "))]


@pytest.fixture
def shell(measured: Project) -> Any:
    """Run a script where ``pytest`` and ``lmgate`` are those of this environment."""
    measured.add_gates("ppl_max: {model: die, dataset: words, limit: 60.5}")
    folder = measured.folder / "programs"
    folder.mkdir()
    for name, module in (("pytest", "pytest"), ("lmgate", "pytest_lmgate.cli")):
        (folder / name).write_text(f'#!/bin/sh\nexec "{sys.executable}" -m {module} "$@"\n')
        (folder / name).chmod(0o755)

    def run(script: str) -> int:
        path = f"{folder}{os.pathsep}{os.environ['PATH']}"
        env = {**environment(), "PATH": path, "GITHUB_STEP_SUMMARY": str(measured.folder / "summary.md")}
        return subprocess.run(["sh", "-c", script], cwd=measured.folder, env=env, check=False).returncode

    return run


def test_every_command_runs_as_it_stands_there(measured: Project, shell: Any) -> None:
    assert LINES
    for line in LINES:
        assert shell(line) == 0, line


def test_the_table_of_inputs_is_that_of_the_action() -> None:
    inputs = yaml.safe_load((ROOT / "action.yml").read_text(encoding="utf-8"))["inputs"]
    rows = re.findall(r"^\| `([\w-]+)` \| (?:`([^`]*)`)? ?\|", GUIDE, re.MULTILINE)
    assert rows == [(name, facts["default"]) for name, facts in inputs.items()]


def test_the_shell_script_is_green_and_turns_red_with_the_model(measured: Project, shell: Any) -> None:
    (script,) = (body for kind, body in BLOCKS if kind == "sh")
    assert shell(script) == 0
    (measured.folder / "report.json").rename(measured.folder / "main.json")
    assert (measured.folder / "report.html").exists()
    measured.change("/die}", "/sure}")
    assert shell(script) == 1
    assert len(list((measured.folder / "runs").iterdir())) == 2
