"""``no_regression`` in real processes: against another model and against the committed baseline, and its upkeep."""

import json
import re
import shutil
from pathlib import Path
from typing import Any

import pytest

from tests.end_to_end.projects import COUNT_MEASUREMENTS, GATE, Project, marked

BASELINE = "no_regression('ppl', 'die', 'words', '1%')"
AGAINST_BASELINE = marked(gate=BASELINE)
TWO_GATES = marked(gate=BASELINE, other=BASELINE.replace("ppl", "bpb"))
ID = "test_gate.py::test_gate::no_regression:ppl[die-words]"


def baseline(project: Project) -> Path:
    return project.folder / "lmgate-baseline.json"


def with_baseline(project: Project, test: str = AGAINST_BASELINE) -> Project:
    project.write(test_gate=test).run("--lmgate-update").expect(0).says("baseline lmgate-baseline.json", "new")
    return project


def test_a_model_against_itself_passes_with_a_change_of_exactly_zero_if_the_gate_says_so(measured: Project) -> None:
    word = "no_regression('ppl', 'sure', 'words', '0%', against='sure', unit='word', same=True)"
    token = "no_regression('ppl', 'die', 'words', 0, against='die', same=True)"
    measured.write(test_gate=marked(token=token, word=word))
    measured.run("--lmgate-report", "json:report.json", "--lmgate-strict").expect(0, passed=2)
    for gate in measured.report()["gates"]:
        assert gate["comparison"]["degradation"] == gate["comparison"]["lower"] == gate["comparison"]["upper"] == 0
        assert (gate["spread"]["worse"], gate["spread"]["better"], gate["spread"]["bins"]) == (0, 0, [])


def test_a_candidate_with_the_weights_of_its_reference_is_an_error_also_saved_again(
    measured: Project, models: Path
) -> None:
    again = measured.model("again", models / "die")
    config = json.loads((again / "config.json").read_text())
    (again / "config.json").write_text(json.dumps(config | {"transformers_version": "5.0"}))
    measured.add("models", half=f"path: {models}/die, dtype: bfloat16")
    gate = "no_regression('ppl', {}, 'words', '90%', against='die'{})".format
    gates = {"again": gate("'./again'", ""), "meant": gate("'./again'", ", same=True"), "dtype": gate("'half'", "")}
    measured.write(test_gate=marked(**gates))
    done = measured.with_torch.run().expect(1, error=1, passed=2)
    done.says("'./again' has the same weights as 'die', digest by digest", "write same: true")


def test_a_worse_model_fails_with_all_that_is_needed_to_believe_it(measured: Project) -> None:
    gate = marked(gate='no_regression("ppl", "sure", "words", "1%", against="die", confidence=0.99)')
    measured.write(test_gate=gate.replace("pass", "raise AssertionError('the body must not run')"))
    done = measured.with_torch.run("--assert=plain", "--lmgate-report", "json:report.json").expect(1, failed=1)
    done.says("of the model 'die': FAIL at a tolerance of 1%", "99% confidence", "1 gate: 1 fail")
    done.says("reproduce  pytest test_gate.py::test_gate\n", "test_gate.py:3\n").is_silent_on("the body must not run")
    (judged,) = measured.report()["gates"]
    assert judged["layers"] == "lmgate why sure words --against die --protocol sliding"
    comparison = judged["comparison"]
    assert comparison["lower"] > comparison["tolerance"]["size"] == 0.01
    assert (comparison["against"], judged["limit"]) == ("model 'die'", pytest.approx(60.6))


def test_another_tokenizer_is_refused_and_bits_per_byte_are_offered(project: Project, models: Path) -> None:
    file = project.model("joined", models / "die") / "tokenizer.json"
    state = json.loads(file.read_text(encoding="utf-8"))
    first, *others = state["model"]["vocab"]  # the same words under other numbers
    state["model"]["vocab"] = {word: number for number, word in enumerate([first, *others[::-1]])}
    file.write_text(json.dumps(state), encoding="utf-8")
    itself = "against='die', same=True"
    project.write(
        rows_jsonl="".join(json.dumps({"text": f"w{i} w5 w{i + 1} w{i + 2}"}) + "\n" for i in range(1, 20)),
        test_gate=marked(
            tokens=f"no_regression('ppl', './joined', './rows.jsonl', '1%', {itself})",
            bytes=f"no_regression('bpb', './joined', './rows.jsonl', '1%', {itself}, protocol='document')",
        ),
    )
    done = project.run().expect(1, passed=1, error=1)
    done.says("the tokens differ", "bits per byte", "'bpb' with protocol='lm-eval'")


NOISY = """
    import pytest
    import pytest_lmgate as lmgate

    @pytest.fixture(scope="session")
    def rows(): return [" ".join(f"w{(7 * i * j) % 57}" for j in range(1, 12)) for i in range(1, 9)]

    @pytest.mark.no_regression("ppl", "warm", lmgate.fixture("rows"), "TOLERANCE", against="die", protocol="document")
    def test_gate(): pass
"""


def test_inconclusive_passes_within_the_tolerance_and_fails_beyond_it_and_in_strict_mode(noisy: Project) -> None:
    noisy.write(test_gate=NOISY.replace("TOLERANCE", "50%")).run("--lmgate-report", "json:report.json")
    comparison = noisy.report()["gates"][0]["comparison"]
    lower, measured, upper = (comparison[key] for key in ("lower", "degradation", "upper"))
    within, beyond = (measured + upper) / 2, (measured + lower) / 2
    assert lower < measured < upper
    assert beyond > 0

    noisy.write(test_gate=NOISY.replace("TOLERANCE", f"{100 * within}%"))
    done = noisy.run("--lmgate-report", "json:report.json").expect(0, passed=1)
    done.says("INCONCLUSIVE", "the build does not fail", "1 gate: 1 inconclusive")
    assert noisy.report()["gates"][0]["comparison"]["needed"] > 80
    noisy.run("--lmgate-strict").expect(1, failed=1).says("INCONCLUSIVE", "--lmgate-strict")

    noisy.write(test_gate=NOISY.replace("TOLERANCE", f"{100 * beyond}%"))
    noisy.run().expect(1, failed=1).says("INCONCLUSIVE", "the build fails")


def test_a_gate_without_a_baseline_fails_with_the_command_that_makes_one(measured: Project) -> None:
    measured.write(test_gate=AGAINST_BASELINE)
    done = measured.run().expect(1, error=1).says("no baseline", "1 gate: 1 error")
    command = re.search(r"pytest (test_gate\S+) (--lmgate-update-new-only)", done.text)
    assert command is not None
    measured.run(*command.groups()).expect(0, passed=1).says("baseline lmgate-baseline.json: 1 new; commit it")
    measured.run().expect(0, passed=1).says("PASS", "+0% [+0, +0]")
    baseline(measured).write_text("{")
    measured.run("-n", "2").expect(4).says("lmgate-baseline.json").is_silent_on("Traceback", "INTERNALERROR")


RED, GREEN = "\x1b[31m", "\x1b[32m"
THREE = marked(
    worse=BASELINE, better=BASELINE.replace("die", "sure"), unchanged="no_regression('bpb', 'hopeless', 'words', '1%')"
)


def test_an_update_says_what_the_old_baseline_would_have_decided(measured: Project) -> None:
    with_baseline(measured, THREE)
    measured.change("/die}", "/SURE}").change("/sure}", "/die}").change("/SURE}", "/sure}")
    measured.write(test_other=AGAINST_BASELINE)
    done = measured.run("--lmgate-update", "--color=yes", "--lmgate-report", "json:report.json", "-n", "2").expect(0)
    own = [line for line in done.out.splitlines() if "baseline of test_" in line]
    lines = {line.rpartition("::")[0].rpartition("::")[2]: line for line in own}
    for test, pattern in {
        "test_worse": rf"{re.escape(RED)}.*: 60 -> .*% WORSE: by the old baseline FAIL .*",
        "test_better": rf"{re.escape(GREEN)}.*% better: by the old baseline PASS .*",
        "test_unchanged": ".*, unchanged",
        "test_gate": ".*: new, .*",
    }.items():
        assert re.fullmatch(pattern, lines.pop(test))
    assert not lines
    previous = {gate["test"].rpartition("::")[2]: gate["previous"] for gate in measured.report()["gates"]}
    assert previous["test_worse"]["value"] == pytest.approx(60)
    assert previous["test_worse"]["comparison"]["decision"] == "fail"
    assert previous["test_gate"] == {}


def test_only_gates_that_ran_or_are_new_are_written(measured: Project) -> None:
    def entries() -> Any:
        return measured.report("lmgate-baseline.json")["gates"]

    with_baseline(measured, TWO_GATES)
    before = entries()
    measured.change("/die}", "/sure}")
    measured.run("--lmgate-update", "-k", "test_other").expect(0, passed=1).says("1 changed")
    after = entries()
    assert (after[ID], after.keys()) == (before[ID], before.keys())
    assert after != before
    measured.write(test_new=AGAINST_BASELINE)
    done = measured.with_torch.run("--lmgate-update-new-only").expect(1, passed=2, failed=1)
    done.says("baseline lmgate-baseline.json: 1 new")
    assert after.items() <= entries().items()
    assert len(entries()) == 3


def test_neither_the_ini_file_nor_the_environment_can_turn_an_update_on(measured: Project) -> None:
    measured.write(test_gate=AGAINST_BASELINE)
    measured.run(env={"LMGATE_UPDATE": "1"}).expect(4).says("LMGATE_UPDATE")
    measured.write(pytest_ini="[pytest]\naddopts = --lmgate-update\n")
    measured.run().expect(4).says("--lmgate-update: ", "addopts").is_silent_on("Traceback")
    measured.write(pytest_ini="[pytest]\n")
    forced = measured.run("--lmgate-update", env={"PYTEST_ADDOPTS": "--lmgate-force-update", "CI": "true"})
    forced.expect(4).says("--lmgate-force-update: ")
    assert not baseline(measured).exists()


CONTEXT = '"max_position_embeddings": {}'.format


@pytest.mark.parametrize(
    ("file", "old", "new", "says"),
    [
        ("config.json", CONTEXT(32), CONTEXT(16), "sliding|max_length:16|stride:8|"),
        ("tokenizer.json", '"w1"', '"W1"', "the tokens differ"),
    ],
)
def test_a_baseline_of_something_else_is_an_error_that_says_what(
    measured: Project, models: Path, file: str, old: str, new: str, says: str
) -> None:
    with_baseline(measured)
    folder = measured.model("another", models / "die")
    text = (folder / file).read_text(encoding="utf-8")
    assert old in text
    (folder / file).write_text(text.replace(old, new), encoding="utf-8")
    measured.change(f"{models}/die}}", "another}").write(conftest=COUNT_MEASUREMENTS)
    measured.with_torch.run().expect(1, error=1).says(says, "--lmgate-update")
    # What is known of data and protocol before a model runs is compared before.
    assert measured.measured == (["die"] if file == "tokenizer.json" else [])


def test_a_gate_whose_arguments_changed_has_no_baseline_and_is_not_measured_to_find_out(measured: Project) -> None:
    with_baseline(measured).write(test_gate=marked(gate=f"{BASELINE[:-1]}, stride=8)"), conftest=COUNT_MEASUREMENTS)
    measured.run().expect(1, error=1).says("no baseline: ", "the entry of test_gate.py::test_gate::no_regression:ppl[")
    assert measured.measured == []


def test_an_update_writes_no_date_where_nothing_changed_and_other_hardware_is_shown(measured: Project) -> None:
    text = baseline(with_baseline(measured)).read_text(encoding="utf-8")
    forced = ("--lmgate-update", "--lmgate-force-update")
    for pattern, new, says in (
        (r'"date": "[^"]+"', '"date": "2001-01-31"', ("1 unchanged\n",)),
        (r'"data": "\w{6}', '"data": "000000', ("60 -> 60: ", "the two sides used different data")),
        (r'"torch": "\w+', '"torch": "1', ("60, unchanged, measured elsewhere",)),
    ):
        changed = re.sub(pattern, new, text)
        baseline(measured).write_text(changed, encoding="utf-8")
        measured.run(*forced, env={"CI": "true"}).expect(0).says(*says)
        assert (baseline(measured).read_text(encoding="utf-8") == changed) == ("date" in pattern)
    text = re.sub(r'"torch": "[^"]+"', '"torch": "1.0"', text)
    baseline(measured).write_text(re.sub(r'"hardware": "[^"]*"', '"hardware": "Z80"', text), encoding="utf-8")
    done = measured.run().expect(0, passed=1)
    done.says("baseline of 1 gate measured elsewhere: hardware: Z80 then, ", "; torch: 1.0 then, 2")


OTHER = "test_gate.py::test_other::no_regression:bpb[die-words]"
NEW_ID = ID.replace("test_gate::", "test_new_name::")
WORKERS = ("-n", "2")


def entries(project: Project) -> list[str]:
    return list(json.loads(baseline(project).read_text())["gates"])


@pytest.fixture
def kept(measured: Project) -> Project:
    """A project with two gates and their baseline."""
    return with_baseline(measured, TWO_GATES)


def test_entries_of_tests_that_a_plugin_takes_out_without_a_word_stay(kept: Project) -> None:
    body = "items[:] = [item for item in items if 'other' not in item.name]"
    kept.write(conftest=f"def pytest_collection_modifyitems(items):\n    {body}\n")
    done = kept.run("--lmgate-update", *WORKERS).expect(0, passed=1)
    done.says("1 unchanged").is_silent_on("removed", "no gate uses")
    assert OTHER in entries(kept)


def test_entries_of_the_last_gate_are_reported_where_other_gates_run_and_removed_by_an_update(kept: Project) -> None:
    before = baseline(kept).read_text()
    kept.write(test_gate=GATE)
    kept.run(*WORKERS).expect(0, passed=1).says(f"no gate uses {OTHER}; remove it with --lmgate-prune")
    kept.run("--lmgate-update-new-only").expect(0).is_silent_on("removed", "nothing to write")
    assert baseline(kept).read_text() == before
    kept.run("--lmgate-update", *WORKERS).expect(0, passed=1).says("2 removed", f"{OTHER}: removed")
    assert entries(kept) == []
    # A session without gates says nothing of the baseline, and updates it.
    baseline(kept).write_text(before)
    kept.write(test_gate="def test_plain(): pass\n")
    kept.run(*WORKERS).expect(0, passed=1).is_silent_on("lmgate-baseline", "no gate uses")
    kept.run("--lmgate-update").expect(0, passed=1).says("2 removed")


def test_prune_removes_what_no_gate_uses_and_measures_nothing_anew(kept: Project) -> None:
    before = baseline(kept).read_text()
    kept.write(test_gate=marked(gate=BASELINE)).change("/die}", "/sure}")
    pruned = kept.with_torch.run("--lmgate-prune", "--strict-markers").expect(1, failed=1)
    pruned.says("1 removed", f"{OTHER}: removed").is_silent_on("changed")
    assert json.loads(baseline(kept).read_text())["gates"] == {ID: json.loads(before)["gates"][ID]}


def test_a_renamed_gate_is_told_the_command_that_keeps_its_entry_and_prune_removes_nothing(kept: Project) -> None:
    before = baseline(kept).read_text()
    kept.run("--lmgate-prune", "-k", "test_gate").says("--lmgate-prune changed nothing: not all tests were collected")
    kept.write(test_gate=TWO_GATES.replace("test_gate()", "test_new_name()"))
    told = kept.run().expect(1, passed=1, error=1)
    told.says(f"the entry of {ID} has the same metric, model and dataset, and no gate of this run uses it")
    told.says(f"lmgate baseline rename '{ID}' '{NEW_ID}' --baseline lmgate-baseline.json")
    pruned = kept.run("--lmgate-prune").expect(1, passed=1, error=1)
    pruned.says("nothing to write", f"nothing was removed: no entry judged {NEW_ID}")
    assert baseline(kept).read_text() == before


def test_entries_of_tests_under_a_condition_that_does_not_hold_stay(measured: Project) -> None:
    gates = TWO_GATES.replace("\n@", "\nif True:\n    @", 1).replace("\ndef test_gate", "\n    def test_gate")
    measured.write(test_gates=gates).run("--lmgate-update").expect(0, passed=2)
    measured.write(test_gates=gates.replace("if True", "if False").replace("test_other", "test_else"))
    measured.run("--lmgate-update-new-only").expect(0, passed=1)
    measured.run("--lmgate-prune").expect(0, passed=1).says("1 removed", "1 kept")
    assert [entry.partition("::no")[0] for entry in entries(measured)] == [
        "test_gates.py::test_else", "test_gates.py::test_gate",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("conftest", "ini", "workers"),
    [("collect_ignore = ['inner/test_inner.py']", "", ()), ("", "testpaths = outer", WORKERS)],
)
def test_entries_of_files_that_are_there_but_were_not_collected_stay(
    measured: Project, conftest: str, ini: str, workers: tuple[str, ...]
) -> None:
    for name in ("inner", "outer"):
        (measured.folder / name).mkdir()
        (measured.folder / name / f"test_{name}.py").write_text(TWO_GATES)
    measured.with_torch.run("--lmgate-update").expect(0, passed=4)
    (measured.folder / "outer" / "test_outer.py").write_text(marked(gate=BASELINE))
    measured.write(conftest=conftest, pytest_ini=f"[pytest]\n{ini}\n")
    measured.run(*workers).expect(0, passed=1).is_silent_on("no gate uses inner").says("no gate uses outer")
    measured.run("--lmgate-prune", *workers).expect(0, passed=1).says("1 removed", "2 kept, since their files")
    assert [entry.partition("::no")[0] for entry in entries(measured)] == [
        "inner/test_inner.py::test_gate", "inner/test_inner.py::test_other", "outer/test_outer.py::test_gate",
    ]  # fmt: skip
    shutil.rmtree(measured.folder / "inner")
    measured.run("--lmgate-prune", *workers).expect(0, passed=1).says("2 removed")
