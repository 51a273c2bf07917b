"""``lmgate calibrate``: an engine whose rows flip with known chances, deterministic engines, and what is written."""

import dataclasses
import itertools
import json
import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

from pytest_lmgate.cli.app import app
from pytest_lmgate.engines.base import SAMPLING, Model, ModelEntry
from pytest_lmgate.errors import ConfigError, LmgateError
from pytest_lmgate.measure.evaluator import Evaluator
from pytest_lmgate.settings.file import load_project, read_gates
from pytest_lmgate.settings.gate_options import GenerationSettings
from pytest_lmgate.settings.gates import Tolerance
from pytest_lmgate.settings.session import Options
from pytest_lmgate.stats.paired import compare
from pytest_lmgate.stats.sample import ByRow, Sample, Scale
from pytest_lmgate.tools.calibrate.command import Calibrated, _report, _write, calibrated, edited, find_gate
from pytest_lmgate.windows.tokens import PromptIds
from tests.end_to_end.projects import Project
from tests.engines.fair_die import Dice, Die

EXAMPLE = Path(__file__).parents[3] / "example_project"
ROWS = 300
# Half of the rows never change; the others are right with chances from 0.5 to 0.95.
CHANCES = np.concatenate([np.ones(120), np.zeros(30), np.linspace(0.5, 0.95, 150)])
Measured = Callable[..., Calibrated]


class _Coin(Die):
    """Answers a row right with its own chance, anew at each call; a row is called by its prompt."""

    def __init__(self, generator: np.random.Generator, drift: float) -> None:
        super().__init__(2)
        self._generator, self._lost = generator, generator.normal(0, drift) if drift else 0.0

    def generate(self, prompts: Sequence[PromptIds], settings: GenerationSettings) -> list[tuple[str, int]]:
        chances = CHANCES[[int(str(each.prompt)) for each in prompts]] - self._lost
        return [("yes" if right else "no", 1) for right in self._generator.random(len(prompts)) < chances]


class _Coins(Dice):
    name, suffixes = "coins", (".coins",)

    def __init__(self, seed: int = 0, drift: float = 0.0) -> None:
        self._generator, self._drift, self.opened = np.random.default_rng(seed), drift, 0

    def describe(self, entry: ModelEntry) -> Model:
        def load() -> _Coin:
            self.opened += 1
            return _Coin(self._generator, self._drift)

        return dataclasses.replace(super().describe(entry), open=load, honours=SAMPLING)


@pytest.fixture
def measured(tmp_path: Path) -> Measured:
    """Calibrates a gate, which is written as in lmgate.yaml, by an engine of the test."""
    lines = [json.dumps({"q": str(row), "a": "yes"}) + "\n" for row in range(ROWS)]
    files = {
        "model.coins": '{"sides": 2}', "other.die": '{"sides": 4}', "text.txt": "abcd" * 40, "one.jsonl": lines[0],
        "rows.jsonl": "".join(lines), "never.jsonl": "".join(lines).replace("yes", "never"),
    }  # fmt: skip
    for name, text in files.items():
        (tmp_path / name).write_text(text)

    def run(gate: str, engine: _Coins | None = None, runs: int = 5) -> Calibrated:
        quiz = "prompt: '{q}', references: a, max_new_tokens: 4"
        (tmp_path / "lmgate.yaml").write_text(
            "models: {coin: {path: model.coins}, twin: {path: model.coins}, die: {path: other.die}}\n"
            f"datasets:\n  quiz: {{path: rows.jsonl, {quiz}}}\n  never: {{path: never.jsonl, {quiz}}}\n"
            f"  one: {{path: one.jsonl, {quiz}}}\n  text: {{path: text.txt}}\ngates:\n  - {gate}\n"
        )
        backends = {"coins": engine or _Coins(), "fair-die": Dice()}
        evaluator = Evaluator(load_project(tmp_path), Options(cache=tmp_path / "cache"), users_backends=backends)
        return calibrated(evaluator, find_gate(tmp_path / "lmgate.yaml", gates_of(tmp_path)[0])[0].gate, runs)

    return run


def gates_of(folder: Path) -> list[str]:
    gates, problems = read_gates(folder / "lmgate.yaml")
    assert not problems
    return [each.gate.label for each in gates]


def drawn(runs: int, chances: np.ndarray = CHANCES, seed: int = 1) -> np.ndarray:
    """Return the shares of right rows in many true runs."""
    generator = np.random.default_rng(seed)
    return np.array([(generator.random(ROWS) < chances).mean() for _ in range(runs)])


def share_that_does_not_pass(tolerance: float, pairs: int) -> float:
    """Return in which share of pairs of true runs `no_regression` does not pass."""
    generator, scale = np.random.default_rng(4), Scale("higher", lowest=0, highest=1, of_rows=True)
    right = (generator.random((pairs + 1, ROWS)) < CHANCES).astype(float)
    rows = (ByRow(each[:, None], np.ones(ROWS, dtype=np.int64), np.arange(ROWS)) for each in right)
    samples = [Sample.of_means(each, scale, right_or_wrong=True) for each in rows]
    asked = {"tolerance": Tolerance(tolerance, relative=False), "confidence": 0.95}
    decisions = [compare(one, other, **asked).decision for one, other in itertools.pairwise(samples)]
    return float(np.mean([each != "pass" for each in decisions]))


VARIANCE = float((CHANCES * (1 - CHANCES)).sum())


def test_the_figures_of_rows_that_flip_with_known_chances_are_those_of_a_simulation(measured: Measured):
    tolerance, engine = 0.03, _Coins()
    found = measured(
        f"no_regression: {{metric: exact, model: coin, dataset: quiz, tolerance: {tolerance}}}", engine, 20
    )
    assert engine.opened == 20
    worth = found.worth
    changed = 2 * VARIANCE / ROWS
    assert worth.changed == pytest.approx(changed, abs=4 * math.sqrt(changed / ROWS / 20))
    assert worth.between_runs == pytest.approx(math.sqrt(VARIANCE) / ROWS, rel=0.06)
    one, other = drawn(20_000), drawn(20_000, seed=2)
    assert worth.fails == pytest.approx(float((one - other > tolerance + 1e-9).mean()), abs=0.01)
    # The damage that is said to be seen in 80% is planted, and the rule of the gate asked.
    damaged = drawn(20_000, CHANCES * (1 - worth.seen() / CHANCES.mean()), seed=3)
    assert (one - damaged > tolerance + 1e-9).mean() == pytest.approx(0.8, abs=0.02)
    holding = worth.holding()
    assert (one - other > holding + 1e-9).mean() <= 0.015
    assert (one - other > holding - 2 / ROWS).mean() > 0.01
    assert sum(found.verdicts.values()) == 10
    assert found.strict == pytest.approx(share_that_does_not_pass(tolerance, 400), abs=0.06)


def test_a_floor_fails_a_healthy_model_as_often_as_new_runs_of_the_engine_do(measured: Measured):
    truth = drawn(20_000)
    limit = float(np.floor((truth.mean() - truth.std()) * ROWS) / ROWS)
    found = measured(f"exact_min: {{model: coin, dataset: quiz, limit: {limit}}}", runs=40)
    low, high = found.worth.badness.failing_between(found.worth.threshold)
    assert low < float((truth < limit - 1e-9).mean()) < high < low + 0.2
    assert not found.holds
    assert (truth < -found.worth.holding() - 1e-9).mean() <= 0.02
    assert found.worth.other_rows is not None
    rows = np.random.default_rng(5).binomial(ROWS, CHANCES.mean(), 20_000) / ROWS
    assert found.worth.other_rows.fails(-limit) == pytest.approx((rows < limit - 1e-9).mean(), abs=0.05)


def test_runs_that_differ_as_a_whole_are_noticed_and_the_noise_is_theirs(measured: Measured):
    gate = "exact_min: {model: coin, dataset: quiz, limit: 0.6}"
    assert not measured(gate, _Coins(1), 10).worth.as_a_whole
    found = measured(gate, _Coins(1, drift=0.1), 10)
    assert found.worth.as_a_whole
    values = [float(run.score) for run in found.runs]
    assert found.worth.between_runs == pytest.approx(np.std(values, ddof=1))


def test_a_deterministic_engine_is_measured_twice(measured: Measured):
    found = measured("ppl_max: {model: die, dataset: text, limit: 4.1, max_length: 8}", runs=9)
    assert (found.is_deterministic, len(found.runs)) == (True, 2)
    assert (found.worth.fails, found.worth.between_runs, found.worth.changed) == (0, 0, 0)
    assert found.worth.seen() == pytest.approx(0.1)
    assert found.holds


@pytest.mark.torch
def test_divergences_of_a_deterministic_engine_are_calibrated(tmp_path: Path):
    file = tmp_path / "lmgate.yaml"
    file.write_text(
        f"models: {{float: {{path: {EXAMPLE}/models/float}}, int4: {{path: {EXAMPLE}/models/int4}}}}\n"
        f"datasets:\n  text: {{path: {EXAMPLE}/data/bulletins.jsonl, limit: 3}}\n"
        "gates:\n"
        "  - kl_max: {model: int4, reference: float, limit: 0.02, dataset: text}\n"
        "  - no_regression: {metric: kl, model: int4, reference: float, tolerance: 10%, dataset: text}\n"
        "  - self_kl_max: {model: int4, limit: 0.001, max_new_tokens: 8, dataset: text}\n"
    )
    for gate in gates_of(tmp_path):
        options = ("--runs=3", "--write", "--json", f"--config={file}", f"--cache={tmp_path / 'cache'}")
        done = CliRunner().invoke(app, ["calibrate", gate, *options])
        assert done.exit_code == 0, done.output
        found = json.loads(done.stdout)
        assert (found["deterministic"], found["holds"], found["changed"]) == (True, True, 0)
        assert [run["seed"] for run in found["runs"]] == [None, None]
    assert file.read_text().count("  # lmgate calibrate") == 3


@pytest.mark.parametrize(
    ("gate", "engine", "says"),
    [
        ("exact_min: {model: coin, dataset: quiz, limit: 0.775, temperature: 1, seed: 7, repeats: 2}",
         _Coins(1, drift=0.1),
         "5 runs of coin on quiz, 300 rows|the runs differ as a whole|limit 0.775: an unchanged model fails in "
         "|on other rows of this kind in |smallest damage that fails in 80% of runs: |or repeats: "),
        ("no_regression: {metric: exact, model: coin, dataset: quiz, tolerance: 4%, against: twin}", _Coins(),
         "5 runs of coin and twin on quiz|exact of twin|tolerance 4%: |verdicts of 5 pairs of runs: |use: tol"),
        ("exact_min: {model: coin, dataset: quiz, limit: 0.68, confidence: 0.95}", _Coins(), "with --lmgate-strict"),
    ],
)  # fmt: skip
def test_a_report_says_how_often_a_gate_fails_and_what_holds(gate: str, engine: _Coins, says: str, measured: Measured):
    lines, facts = _report(found := measured(gate, engine), "the gate")
    text = "\n".join(lines)
    assert [part for part in says.split("|") if part not in text] == [], text
    assert json.loads(json.dumps(facts))["holds"] == found.holds


def test_a_threshold_that_no_gate_can_have_is_not_proposed(measured: Measured, monkeypatch: pytest.MonkeyPatch):
    for gate, threshold, why in (
        ("exact_min: {model: coin, dataset: quiz, limit: 0.775}", 0.2, "limit -0.2 (limit: expected a positive number"),
        (
            "no_regression: {metric: exact, model: coin, dataset: quiz, tolerance: 1%, against: twin}",
            1.0,
            "tolerance 100",
        ),
    ):
        monkeypatch.setattr("pytest_lmgate.tools.calibrate.command._holding", lambda _, it=threshold: it)
        lines, facts = _report(measured(gate, _Coins()), "the gate")
        assert f"too few rows: the noise asks for {why}" in "\n".join(lines)
        assert facts["holding"] is None
    done = CliRunner().invoke(app, ["calibrate", "--limit=0.01", "--rows=50", "--share=0.02", "--json"])
    assert json.loads(done.stdout)["holding"] == {"limit": None, "rows": 1061}


@pytest.mark.parametrize(
    ("gate", "says"),
    [
        ("exact_min: {model: coin, dataset: one, limit: 0.5}", "at least two rows"),
        ("ppl_max: {model: die, dataset: text, limit: 5, max_length: 64}", "at least two rows, or 8 windows"),
        ("exact_min: {model: gone, dataset: quiz, limit: 0.5}", "model 'gone' is not known"),
        ("exact_min: {model: coin, dataset: never, limit: 0.5}", "the value is 0, which no damage makes worse"),
        ("no_regression: {metric: exact, model: coin, dataset: quiz, against: coin, within: 0.1}",
         "within: lmgate calibrate looks at losses only"),
    ],
)  # fmt: skip
def test_a_gate_whose_noise_is_unknown_is_an_error(gate: str, says: str, measured: Measured):
    with pytest.raises(LmgateError, match=says):
        measured(gate)


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ("", "expected a GATE, or --limit with --rows"),
        ("--limit 0.7", "expected a GATE, or --limit with --rows"),
        ("--limit 71 --rows 200", "expected a share of rows above 0 and at most 1, got 71"),
        ("--limit nan --rows 200", "expected a share of rows above 0 and at most 1, got nan"),
        ("--limit 0.7 --rows 200 --write", "--write: expected a GATE"),
        ("--limit 0.7 --rows 200 --share 0", "--share: expected a share above 0"),
        ("gate --rows 200", "leave out the GATE"),
        ("gate --runs 1", "--runs"),
    ],
)
def test_arguments_that_do_not_fit_are_usage_errors(arguments: str, says: str):
    done = CliRunner().invoke(app, ["calibrate", *arguments.split()], env={"COLUMNS": "300"})
    assert done.exit_code == 2
    assert says in done.stderr


@pytest.mark.parametrize(("rows", "limit", "share"), [(20, 0.5, 0.7), (1000, 0.95, 0.96), (50, 0.94, 0.98)])
def test_a_floor_without_measuring_is_that_of_a_binomial_distribution(rows: int, limit: float, share: float):
    def floor(*more: str) -> Any:
        done = CliRunner().invoke(app, ["calibrate", f"--limit={limit}", f"--rows={rows}", *more, "--json"])
        assert done.exit_code == 0, done.stderr
        return json.loads(done.stdout)

    def fails(share: float) -> float:
        below = math.ceil(limit * rows - 1e-9)
        return sum(math.comb(rows, k) * share**k * (1 - share) ** (rows - k) for k in range(below))

    found = floor(f"--share={share}")
    assert found["fails"][f"{share:g}"] == pytest.approx(fails(share), abs=0.006)
    assert fails(share - found["seen"]) == pytest.approx(0.8, abs=0.03)
    table_with_0 = CliRunner().invoke(app, ["calibrate", "--limit=0.5", "--rows=9"])
    assert table_with_0.exit_code == 0
    told = floor()
    assert (set(told), len(told["fails"]) > 4) == ({"limit", "rows", "fails"}, True)
    for share, found in told["fails"].items():
        assert found == pytest.approx(fails(float(share)), abs=0.01)


def test_the_reason_stands_above_the_gate_and_all_else_is_as_it_was(tmp_path: Path):
    file = tmp_path / "lmgate.yaml"
    file.write_text(
        "# mine\ngates:\n  # why\n  - exact_min: {model: m, dataset: d, limit: 0.7}  # kept\n"
        "  - no_regression:\n      metric: exact\n      model: m\n      dataset: d\n      tolerance: 1%  # old\n"
        "  - exact_min: {<<: &c {model: m, dataset: e, limit: 0.5}}\n"
    )
    first, second, merged = (find_gate(file, f"x/lmgate.yaml::{name}")[0] for name in gates_of(tmp_path))
    text = edited(file.read_text(), second, "tolerance", "2.5%", "# lmgate calibrate, 5 runs: so")
    text = edited(text, first, "limit", 0.65, "# lmgate calibrate: first")
    text = edited(text, first, "limit", None, "# lmgate calibrate: again")
    assert text == (
        "# mine\ngates:\n  # why\n  # lmgate calibrate: again\n"
        "  - exact_min: {model: m, dataset: d, limit: 0.65}  # kept\n"
        "  # lmgate calibrate, 5 runs: so\n"
        "  - no_regression:\n      metric: exact\n      model: m\n      dataset: d\n      tolerance: 2.5%  # old\n"
        "  - exact_min: {<<: &c {model: m, dataset: e, limit: 0.5}}\n"
    )
    with pytest.raises(ConfigError, match=r"merged in, .* write limit: 0\.4 at the gate itself"):
        edited(file.read_text(), merged, "limit", 0.4, "# lmgate calibrate: no")


def test_a_gate_that_does_not_hold_gets_the_limit_that_does_with_the_ends_of_lines(measured: Measured, tmp_path: Path):
    found = measured("exact_min: {model: coin, dataset: quiz, limit: 0.775, temperature: 1, seed: 7}", _Coins(1))
    assert not found.holds
    path = tmp_path / "lmgate.yaml"
    entry, _ = find_gate(path, gates_of(tmp_path)[0])
    path.write_bytes(path.read_bytes().replace(b"\n", b"\r\n").removesuffix(b"\r\n"))
    assert _write(entry, found).startswith("written into lmgate.yaml: limit 0.")
    written = path.read_bytes()
    assert written.count(b"\n") == written.count(b"\r\n") > 2
    assert not written.endswith(b"\n")
    assert find_gate(path, gates_of(tmp_path)[0])[0].arguments["limit"] < 0.775
    with pytest.raises(ConfigError, match=r"gone\.yaml: cannot be read: No such file"):
        _write(dataclasses.replace(entry, file=tmp_path / "gone.yaml"), found)


def test_without_a_file_or_with_a_wrong_one_no_gate_is_calibrated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    failed = CliRunner().invoke(app, ["calibrate", "exact_min[m-d]"]).exception
    assert isinstance(failed, ConfigError)
    assert str(failed).endswith("; lmgate calibrate needs a gate of an lmgate.yaml")
    file = tmp_path / "lmgate.yaml"
    file.write_text("gates:\n  - exact_min: {model: m, dataset: d, limit: 0.7, sigma: 2}\n")
    with pytest.raises(ConfigError, match=r"exact_min\.sigma: unknown argument"):
        find_gate(file, "exact_min[m-d]")


@pytest.mark.parametrize(
    ("text", "is_alone"),
    [
        ("gates:\n  - exact_min: &a {ARGUMENTS}\n", True),
        ("gates:\n  - exact_min: {model: m, dataset: d, limit: &l 1}\n  - ter_max: {model: m, dataset: d, limit: *l}",
         False),
        ("gates:\n  - exact_min: &a {ARGUMENTS}\n  - exact_min: {<<: *a, model: n}\n", False),
        ("gates:\n  - exact_min: &a {ARGUMENTS}\n  - exact_min: {<<: *a, limit: 0.5}\n", True),
        ("gates:\n  - exact_min: &a {ARGUMENTS}\n  - ter_max: *a\n", False),
        ("gates:\n  - exact_min: {model: [m, n], dataset: d, limit: 0.7}\n", False),
        ("gates:\n  - exact_min: {model: m, dataset: d}\ndefaults: {limit: 0.7}\n", False),
        ("defaults: &d\n  gates:\n  - exact_min: {ARGUMENTS}\n<<: *d\n", False),
    ],
)  # fmt: skip
def test_a_value_that_other_gates_take_too_is_not_written(tmp_path: Path, text: str, is_alone: bool):
    file = tmp_path / "lmgate.yaml"
    file.write_text(text := text.replace("ARGUMENTS", "model: m, dataset: d, limit: 0.7"))
    entry, _ = find_gate(file, "exact_min[m-d]")
    if is_alone:
        assert edited(text, entry, "limit", 1e-05, "# reason").count("limit: 1.0e-05") == 1
        return
    with pytest.raises(ConfigError, match=r"lmgate.yaml:\d: gates\[0\]\.exact_min\.limit: expected a value of this g"):
        edited(text, entry, "limit", 0.4, "# reason")


@pytest.mark.torch
def test_the_variation_of_runs_is_kept_in_the_baseline_of_one_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    (tmp_path / "lmgate.yaml").write_text(
        f"models: {{writer: {{path: {EXAMPLE}/models/writer}}}}\n"
        f"datasets:\n  records: {{path: {EXAMPLE}/data/records.jsonl, limit: 6, references: bulletins,\n"
        '    prompt: "{place}, {season}.\\n{weather}\\n\\n"}\n'
        "gates:\n  - no_regression: {metric: chrf, model: writer, dataset: records, tolerance: 20%, temperature: 1,\n"
        "      max_new_tokens: 8, seed: 7}\n"
    )
    (tmp_path / "pytest.ini").write_text("[pytest]\n")
    monkeypatch.chdir(tmp_path)
    baseline, (gate,), project = tmp_path / "lmgate-baseline.json", gates_of(tmp_path), Project(tmp_path)

    def write(runs: int) -> str:
        return CliRunner().invoke(app, ["calibrate", gate, f"--runs={runs}", "--write"]).output

    assert "has no entry of this model" in write(2)
    project.run("--lmgate-update").expect(0)
    assert "written into lmgate-baseline.json: between runs the unchanged model varies by" in write(3)
    kept = baseline.read_text()
    (entry,) = json.loads(kept)["gates"].values()
    assert entry["provenance"]["varies_by"] > 0
    project.run("--lmgate-update").expect(0)
    assert baseline.read_text() == kept
    project.change("models/writer}", "models/broken-writer}")
    assert "has no entry of this model" in write(2)
    project.run("--lmgate-update").expect(0)
    (entry,) = json.loads(baseline.read_text())["gates"].values()
    assert "varies_by" not in entry["provenance"]
