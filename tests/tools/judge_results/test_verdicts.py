"""Verdicts on rows by the rules of gates, against programs of others and by hand; and their reports."""

import json
import random
import statistics
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import scipy.stats
from typer.testing import CliRunner

from pytest_lmgate.cli.app import app
from pytest_lmgate.data.results.rows import Collected, ResultRow
from pytest_lmgate.stats.paired import mcnemar
from tests.tools.judge_results.judging import DATA, judge, table

OLD, NEW = DATA / "lm_eval" / "old", DATA / "lm_eval" / "new"
COLUMNS = ("--id=id", "--score=correct")


def scored(folder: Path, **sides: list[float]) -> list[Path]:
    return [table(folder / f"{name}.jsonl", scores, "correct") for name, scores in sides.items()]


@pytest.mark.parametrize("lost", [0, 1, 2, 7, 40, 311])
def test_the_exact_p_of_mcnemar_is_that_of_the_binomial_test_of_scipy(lost: int):
    for gained in (0, 1, 5, 12, 40, 1000):
        expected = scipy.stats.binomtest(lost, lost + gained).pvalue if lost + gained else 1.0
        assert mcnemar(lost, gained) == pytest.approx(expected, rel=1e-9)


def test_the_difference_is_that_of_the_means_and_its_p_value_that_of_the_rows(tmp_path: Path):
    drawn = random.Random(3)
    old = [float(drawn.random() < 0.8) for _ in range(1319)]
    new = [score if drawn.random() < 0.94 else float(drawn.random() < 0.4) for score in old]
    gate = judge(*scored(tmp_path, old=old, new=new), *COLUMNS, "--tolerance=0.02").gates["table: correct"]
    difference = statistics.fmean(new) - statistics.fmean(old)
    assert gate["comparison"]["change"] == pytest.approx(difference, abs=1e-15)
    assert gate["comparison"]["degradation"] == pytest.approx(-difference, abs=1e-15)
    lost = sum(then > now for then, now in zip(old, new, strict=True))
    gained = sum(then < now for then, now in zip(old, new, strict=True))
    p = scipy.stats.binomtest(lost, lost + gained).pvalue
    assert gate["comparison"]["notes"] == [
        f"{lost} rows were right and now wrong, {gained} the other way round (McNemar's exact two-sided p = {p:.4g})"
    ]


def test_of_scores_whose_lower_values_are_better_a_row_that_fell_was_wrong_and_is_right(tmp_path: Path):
    sides = {"old": [1.0] * 20 + [0.0] * 80, "new": [1.0] * 17 + [0.0] * 82 + [1.0]}
    files = [table(tmp_path / f"{name}.csv", scores, "refused") for name, scores in sides.items()]
    gate = judge(*files, "--id=id", "--score=refused", "--better=lower").gates["table: refused"]
    assert gate["comparison"]["degradation"] == pytest.approx(-0.1)
    assert gate["comparison"]["notes"][0].startswith("1 row was right and now wrong, 3 the other way round")


def test_an_order_that_the_name_contradicts_is_refused_and_not_passed_over(tmp_path: Path):
    files = scored(tmp_path, old=[0.0] * 90 + [1.0] * 10, new=[0.0] * 50 + [1.0] * 50)
    assert judge(*files, *COLUMNS, "--better=higher").code == 0
    found = judge(*files, *COLUMNS, "--better=lower")
    assert found.code == 3
    assert "--better: expected higher, as the files or the name of 'correct' tell, got lower" in found.text


def test_40_wrong_of_1319_rows_fail_at_2_percent_and_pass_at_5(tmp_path: Path):
    old = [1.0] * 1000 + [0.0] * 319
    files = scored(tmp_path, old=old, new=[0.0] * 40 + old[40:])
    verdicts = {
        tolerance: judge(*files, *COLUMNS, f"--tolerance={tolerance}") for tolerance in ("2%", "0.02", "5%", "6%")
    }
    found = {name: (each.code, each.gates["table: correct"]["verdict"]) for name, each in verdicts.items()}
    assert found == {"2%": (1, "fail"), "0.02": (1, "fail"), "5%": (0, "inconclusive"), "6%": (0, "pass")}
    assert judge(*files, *COLUMNS, "--tolerance=5%", "--strict").code == 1


def test_rows_that_agree_pass_only_if_there_are_enough(tmp_path: Path):
    few, many = ([1.0, 1.0, 0.0] * number for number in (20, 100))
    found = judge(*scored(tmp_path, old=few, new=few), *COLUMNS).gates["table: correct"]
    assert (found["verdict"], found["comparison"]["needed"]) == ("inconclusive", 79)
    assert judge(*scored(tmp_path, old=many, new=many), *COLUMNS).gates["table: correct"]["verdict"] == "pass"
    parts = [0.5, 0.75] * 10  # of a score from 0 to 1, as F1, Student's interval would have no width
    assert judge(*scored(tmp_path, old=parts, new=parts), *COLUMNS).gates["table: correct"]["verdict"] == "inconclusive"


@pytest.mark.parametrize("tolerance", ["100%", "1", "-0.1", "nan", "much"])
def test_a_tolerance_that_no_model_exceeds_or_is_none_is_an_error(tolerance: str, tmp_path: Path):
    files = scored(tmp_path, old=[1.0, 0.0] * 50, new=[1.0, 0.0] * 50)
    found = judge(*files, *COLUMNS, f"--tolerance={tolerance}")
    assert found.code == 3
    assert {gate["verdict"] for gate in found.gates.values()} <= {"error"}


@pytest.mark.parametrize(
    ("name", "direction"),
    [("acc_norm", "higher"), ("exact_match", "higher"), ("f1", "higher"), ("rouge1", "higher"), ("pass@1", "higher"),
     ("score", "higher"), ("word_error", "lower"), ("wer", "lower"), ("val_loss", "lower"), ("criteria", None),
     ("toxicity_score", "lower"), ("harm", None), ("match_error", None), ("risk_score", None)],
)  # fmt: skip
def test_a_name_tells_the_direction_only_by_whole_words_that_agree(name: str, direction: str | None):
    collected = Collected()
    collected.add(name, "", 1.0, ResultRow("0"), "here")
    assert collected.series("t")[0].direction == direction


def test_reports_are_those_of_pytest_and_lmgate_reads_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    kinds = {"json": "a.json", "markdown": "a.md", "html": "a.html", "openmetrics": "a.txt"}
    options = [f"--report={kind}:{file}" for kind, file in kinds.items()]
    judge(OLD, NEW, "--metric=acc", *options)
    assert "arc_easy: acc" in Path("a.md").read_text()
    assert "arc_easy: acc" in Path("a.html").read_text()
    gates: list[Any] = json.loads(Path("a.json").read_text())["gates"]
    assert {gate["id"] for gate in gates} == {"arc_easy: acc", "mmlu_anatomy: acc", "mmlu_astronomy: acc"}
    assert judge(OLD, NEW, "--report=htm:a").code == 3
    assert CliRunner().invoke(app, ["compare", "a.json", "a.json"]).exit_code == 0


def test_nothing_heavy_is_imported_and_parquet_alone_needs_pyarrow(tmp_path: Path):
    code = (
        "import sys; sys.argv[1:] = ['judge', *sys.argv[1:], '--tolerance=5%', '--metric=acc']\n"
        "from pytest_lmgate.cli.app import app\n"
        "try: app()\n"
        "except SystemExit: pass\n"
        "print(sorted({'torch', 'transformers', 'datasets', 'pyarrow', 'pytest', 'scipy'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code, str(OLD), str(NEW)], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "[]"
