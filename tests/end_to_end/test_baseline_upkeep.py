"""Entries of the baseline file that no gate uses: only a run of all there is may say so, and remove them."""

from __future__ import annotations

import json

import pytest

from tests.end_to_end.projects import GATE, Project

GATES = """
    import pytest

    @pytest.mark.no_regression("ppl", "die", "words", "1%")
    def test_gate(): pass

    @pytest.mark.no_regression("bpb", "die", "words", "1%")
    def test_other(): pass
"""
OTHER = "test_gate.py::test_other::no_regression:bpb[die-words]"


def entries(project: Project) -> list[str]:
    return list(json.loads((project.folder / "lmgate-baseline.json").read_text(encoding="utf-8"))["gates"])


@pytest.fixture
def kept(measured: Project) -> Project:
    """A project with two gates and their baseline."""
    measured.write(test_gate=GATES).run("--lmgate-update").expect(0, passed=2)
    assert len(entries(measured)) == 2
    return measured


@pytest.mark.parametrize("hookimpl", ["", "@pytest.hookimpl(tryfirst=True)\n", "@pytest.hookimpl(wrapper=True)\n"])
@pytest.mark.parametrize("workers", [(), ("-n", "2", "--dist", "loadgroup")])
def test_entries_of_tests_that_a_plugin_takes_out_without_a_word_stay(
    kept: Project, hookimpl: str, workers: tuple[str, ...]
) -> None:
    body = "items[:] = [item for item in items if 'other' not in item.name]" + "\n    return (yield)" * (
        "wr" in hookimpl
    )
    kept.write(conftest=f"import pytest\n\n{hookimpl}def pytest_collection_modifyitems(items):\n    {body}\n")
    kept.run(*workers).expect(0, passed=1).is_silent_on("no gate uses")
    kept.run("--lmgate-update", *workers).expect(0, passed=1).says("1 unchanged").is_silent_on("removed")
    assert OTHER in entries(kept)


@pytest.mark.parametrize("workers", [(), ("-n", "2")])
def test_entries_stay_when_all_gates_are_taken_out(kept: Project, workers: tuple[str, ...]) -> None:
    kept.write(
        test_plain="def test_plain(): pass",
        conftest="""
            def pytest_collection_modifyitems(items):
                items[:] = [item for item in items if item.name == "test_plain"]
        """,
    )
    kept.run("--lmgate-update", *workers).expect(0, passed=1).is_silent_on("removed")
    assert len(entries(kept)) == 2


def test_entries_of_what_other_settings_leave_out_stay(kept: Project) -> None:
    (kept.folder / "fast").mkdir()
    (kept.folder / "test_gate.py").rename(kept.folder / "fast" / "test_gate.py")
    kept.write(test_gate=GATES, fast_ini="[pytest]\ntestpaths = fast\n")
    kept.run("-c", "fast.ini").expect(1).is_silent_on("no gate uses")
    kept.run("-c", "fast.ini", "--lmgate-update").expect(0, passed=2).says("2 new").is_silent_on("removed")
    assert len(entries(kept)) == 4


@pytest.mark.parametrize("workers", [(), ("-n", "2")])
def test_entries_of_the_last_gate_are_reported_where_other_gates_run_and_removed_by_an_update(
    kept: Project, workers: tuple[str, ...]
) -> None:
    kept.write(test_gate=GATE)
    kept.run(*workers).expect(0, passed=1).says(f"no gate uses {OTHER}; remove it by --lmgate-update")
    kept.run("--lmgate-update-new-only", *workers).expect(0).is_silent_on("removed", "nothing to write")
    assert len(entries(kept)) == 2
    kept.run("--lmgate-update", *workers).expect(0, passed=1).says("2 removed", f"{OTHER}: removed")
    assert entries(kept) == []


@pytest.mark.parametrize("workers", [(), ("-n", "2")])
def test_a_session_without_gates_says_nothing_of_the_baseline_and_updates_it(
    kept: Project, workers: tuple[str, ...]
) -> None:
    kept.write(test_gate="def test_plain(): pass\n")
    kept.run(*workers).expect(0, passed=1).is_silent_on("lmgate-baseline", "no gate uses")
    kept.run("--lmgate-update", *workers).expect(0, passed=1).says("2 removed")
    assert entries(kept) == []


def test_a_run_that_finds_no_test_removes_nothing(kept: Project) -> None:
    (kept.folder / "test_gate.py").unlink()
    kept.run("--lmgate-update").expect(5).is_silent_on("removed")
    assert len(entries(kept)) == 2
