"""Entries of the baseline file that no gate uses: only a run of all there is may say so, and remove them."""

import json
import shutil

import pytest

from tests.end_to_end.projects import GATE, Project, marked

BY_PPL, BY_BPB = (f"no_regression({metric!r}, 'die', 'words', '1%')" for metric in ("ppl", "bpb"))
GATES = marked(gate=BY_PPL, other=BY_BPB)
OTHER = "test_gate.py::test_other::no_regression:bpb[die-words]"
GATE_ID, NEW_ID = (f"test_gate.py::test_{name}::no_regression:ppl[die-words]" for name in ("gate", "new_name"))
WORKERS = ("-n", "2")


def text(project: Project) -> str:
    return (project.folder / "lmgate-baseline.json").read_text(encoding="utf-8")


def entries(project: Project) -> list[str]:
    return list(json.loads(text(project))["gates"])


@pytest.fixture
def kept(measured: Project) -> Project:
    """A project with two gates and their baseline."""
    measured.write(test_gate=GATES).run("--lmgate-update").expect(0, passed=2)
    return measured


def test_entries_of_tests_that_a_plugin_takes_out_without_a_word_stay(kept: Project) -> None:
    body = "items[:] = [item for item in items if 'other' not in item.name]"
    kept.write(conftest=f"def pytest_collection_modifyitems(items):\n    {body}\n")
    done = kept.run("--lmgate-update", *WORKERS).expect(0, passed=1)
    done.says("1 unchanged").is_silent_on("removed", "no gate uses")
    assert OTHER in entries(kept)


def test_entries_of_the_last_gate_are_reported_where_other_gates_run_and_removed_by_an_update(kept: Project) -> None:
    before = text(kept)
    kept.write(test_gate=GATE)
    kept.run(*WORKERS).expect(0, passed=1).says(f"no gate uses {OTHER}; remove it with --lmgate-prune")
    kept.run("--lmgate-update-new-only").expect(0).is_silent_on("removed", "nothing to write")
    assert text(kept) == before
    kept.run("--lmgate-update", *WORKERS).expect(0, passed=1).says("2 removed", f"{OTHER}: removed")
    assert entries(kept) == []
    # A session without gates says nothing of the baseline, and updates it.
    (kept.folder / "lmgate-baseline.json").write_text(before, encoding="utf-8")
    kept.write(test_gate="def test_plain(): pass\n")
    kept.run(*WORKERS).expect(0, passed=1).is_silent_on("lmgate-baseline", "no gate uses")
    kept.run("--lmgate-update").expect(0, passed=1).says("2 removed")


def test_prune_removes_what_no_gate_uses_and_measures_nothing_anew(kept: Project) -> None:
    before = text(kept)
    kept.write(test_gate=marked(gate=BY_PPL)).change("/die}", "/sure}")
    pruned = kept.with_torch.run("--lmgate-prune", "--strict-markers").expect(1, failed=1)
    pruned.says("1 removed", f"{OTHER}: removed").is_silent_on("changed")
    assert json.loads(text(kept))["gates"] == {GATE_ID: json.loads(before)["gates"][GATE_ID]}


def test_a_renamed_gate_is_told_the_command_that_keeps_its_entry_and_prune_removes_nothing(kept: Project) -> None:
    before = text(kept)
    kept.run("--lmgate-prune", "-k", "test_gate").says("--lmgate-prune changed nothing: not all tests were collected")
    kept.write(test_gate=GATES.replace("test_gate()", "test_new_name()"))
    told = kept.run().expect(1, passed=1, error=1)
    told.says(f"the entry of {GATE_ID} has the same metric, model and dataset, and no gate of this run uses it")
    told.says(f"lmgate baseline rename '{GATE_ID}' '{NEW_ID}' --baseline lmgate-baseline.json")
    pruned = kept.run("--lmgate-prune").expect(1, passed=1, error=1)
    pruned.says("nothing to write", f"nothing was removed: no entry judged {NEW_ID}")
    assert text(kept) == before


@pytest.mark.parametrize(
    ("conftest", "ini", "workers"),
    [("collect_ignore = ['inner/test_inner.py']", "", ()), ("", "testpaths = outer", WORKERS)],
)
def test_entries_of_files_that_are_there_but_were_not_collected_stay(
    measured: Project, conftest: str, ini: str, workers: tuple[str, ...]
) -> None:
    for name in ("inner", "outer"):
        (measured.folder / name).mkdir()
        (measured.folder / name / f"test_{name}.py").write_text(GATES)
    measured.with_torch.run("--lmgate-update").expect(0, passed=4)
    (measured.folder / "outer" / "test_outer.py").write_text(marked(gate=BY_PPL))
    measured.write(conftest=conftest, pytest_ini=f"[pytest]\n{ini}\n")
    measured.run(*workers).expect(0, passed=1).is_silent_on("no gate uses inner").says("no gate uses outer")
    measured.run("--lmgate-prune", *workers).expect(0, passed=1).says("1 removed", "2 kept, since their files")
    assert [entry.partition("::no")[0] for entry in entries(measured)] == [
        "inner/test_inner.py::test_gate", "inner/test_inner.py::test_other", "outer/test_outer.py::test_gate",
    ]  # fmt: skip
    shutil.rmtree(measured.folder / "inner")
    measured.run("--lmgate-prune", *workers).expect(0, passed=1).says("2 removed")
