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
    kept.run(*workers).expect(0, passed=1).says(f"no gate uses {OTHER}; remove it by --lmgate-prune")
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


GATE_ID, NEW_ID = (f"test_gate.py::test_{name}::no_regression:ppl[die-words]" for name in ("gate", "new_name"))


def text(project: Project) -> str:
    return (project.folder / "lmgate-baseline.json").read_text(encoding="utf-8")


@pytest.mark.parametrize("workers", [(), ("-n", "2")])
def test_prune_removes_what_no_gate_uses_and_measures_nothing_anew(kept: Project, workers: tuple[str, ...]) -> None:
    before = text(kept)
    kept.write(test_gate=GATES.partition('@pytest.mark.no_regression("bpb"')[0].rstrip() + "\n")
    other_model(kept)
    outcome = kept.run("--lmgate-prune", *workers).expect(1, failed=1).says("1 removed", f"{OTHER}: removed")
    assert entries(kept) == [GATE_ID]
    assert json.loads(text(kept))["gates"][GATE_ID] == json.loads(before)["gates"][GATE_ID]
    outcome.is_silent_on("changed")


@pytest.mark.parametrize("workers", [(), ("-n", "2")])
def test_a_renamed_gate_is_recognized_and_prune_moves_its_entry(kept: Project, workers: tuple[str, ...]) -> None:
    before = text(kept)
    kept.write(test_gate=GATES.replace("test_gate()", "test_new_name()"))
    told = kept.run(*workers).expect(1, passed=1, error=1)
    told.says(f"the entry of {GATE_ID} is of the same metric, model and dataset, and no gate uses it", "--lmgate-prune")
    told = kept.run("test_gate.py::test_new_name", *workers).expect(1, error=1)
    told.says(f"the entry of {GATE_ID} is of the same metric, model and dataset, and no gate of this run uses it")
    told.says(f"lmgate baseline rename '{GATE_ID}' '{NEW_ID}' --baseline lmgate-baseline.json")
    kept.run("--lmgate-prune", *workers).expect(0, passed=2).says(
        "1 renamed; commit it", f"{GATE_ID}: renamed to {NEW_ID}"
    )
    assert sorted(entries(kept)) == sorted([NEW_ID, OTHER])
    assert json.loads(text(kept))["gates"][NEW_ID] == json.loads(before)["gates"][GATE_ID]
    kept.run("--lmgate-prune", *workers).expect(0, passed=2).says("nothing to write")


def test_prune_judges_a_renamed_gate_by_its_old_entry(kept: Project) -> None:
    kept.write(test_gate=GATES.replace("test_gate()", "test_new_name()"))
    other_model(kept)
    outcome = kept.run("--lmgate-prune").expect(1, failed=2)
    outcome.says("worse than 60 of the baseline", f"{GATE_ID}: renamed to {NEW_ID}")
    outcome.says("accept     pytest test_gate.py::test_new_name --lmgate-update, and commit the baseline\n")
    outcome.is_silent_on("lmgate why")


def test_prune_moves_no_entry_of_another_protocol_and_then_removes_nothing(kept: Project) -> None:
    kept.write(test_gate=GATES.replace('"1%")\n    def test_gate()', '"1%", stride=8)\n    def test_new_name()'))
    outcome = kept.run("--lmgate-prune").expect(1, passed=1, error=1)
    new = NEW_ID.replace("words]", "words-stride:8]")
    outcome.says("no baseline", f"nothing else was removed: no entry judged {new}").is_silent_on("renamed to")
    assert sorted(entries(kept)) == sorted([GATE_ID, OTHER])


# The ids of today, and those of earlier versions with the same gates in this order.
OF_YAML = [f"lmgate.yaml::no_regression:ppl[die-words{args}]" for args in ("", "-stride:8", "-stride:16")]
TEST = "test_gate.py::test_gate::no_regression:ppl[die-words"
OF_PYTHON = [f"{TEST}{args}]" for args in ("", "-stride:8", "-stride:8#2")]


def test_a_gate_keeps_its_id_where_others_are_added(measured: Project) -> None:
    config = measured.folder / "lmgate.yaml"
    plain, gate = config.read_text(), "  - no_regression: {metric: ppl, model: die, dataset: words, tolerance: 1%"
    config.write_text(f"{plain}gates:\n{gate}, stride: 8}}\n")
    measured.run("--lmgate-update").expect(0, passed=1)
    assert entries(measured) == OF_YAML[1:2]
    config.write_text(f"{plain}gates:\n{gate}}}\n{gate}, stride: 8}}\n{gate}, stride: 16}}\n")
    arguments = ("3, stride=8", "'1%', stride=8", "3")
    marks = [f"@pytest.mark.no_regression('ppl', 'die', 'words', {those})\n" for those in arguments]
    measured.write(test_gate=f"import pytest\n\n{''.join(marks)}def test_gate(): pass\n")
    measured.run("-n", "2").expect(1, passed=1, error=3).says(f"ERROR {OF_YAML[0]}", f"ERROR {OF_YAML[2]}")
    measured.run("--lmgate-update-new-only").expect(0, passed=4).says("5 new")
    assert sorted(entries(measured)) == sorted(OF_YAML + OF_PYTHON)

    # A gate that its entry cannot judge may be a renamed one: prune removes nothing.
    data = json.loads(text(measured))
    data["gates"][OF_YAML[0]] = data["gates"][OF_YAML[1]]
    data["gates"]["lmgate.yaml::gone"] = data["gates"][OF_YAML[1]]
    (measured.folder / "lmgate-baseline.json").write_text(json.dumps(data))
    config.write_text(f"{plain}gates:\n{gate}}}\n{gate}, stride: 8}}\n")
    measured.run("--lmgate-prune").expect(1, passed=2, error=1).says(
        "the protocol differs", f"no entry judged {OF_YAML[0]}"
    )
    assert "lmgate.yaml::gone" in entries(measured)


def test_prune_does_not_choose_between_entries_that_differ(kept: Project) -> None:
    data = json.loads(text(kept))
    twin = GATE_ID.replace("test_gate::", "test_twin::")
    data["gates"][twin] = data["gates"][GATE_ID] | {"content": "0" * 64}
    (kept.folder / "lmgate-baseline.json").write_text(json.dumps(data))
    kept.write(test_gate=GATES.replace("test_gate()", "test_new_name()"))
    outcome = kept.run("--lmgate-prune").expect(1, passed=1, error=1)
    outcome.says(
        f"its entry is one of several that no gate uses: {GATE_ID}, {twin}; rename that entry in the file to {NEW_ID}"
    )
    assert len(entries(kept)) == 3


@pytest.mark.parametrize("options", [("-k", "test_gate"), ("test_gate.py",), ("-x",)])
def test_prune_of_a_part_changes_nothing_and_says_so(kept: Project, options: tuple[str, ...]) -> None:
    before = text(kept)
    kept.write(test_gate=GATES.replace("test_other", "test_else"))
    kept.run("--lmgate-prune", *options).says("--lmgate-prune changed nothing: not all tests were collected")
    assert text(kept) == before


def test_prune_and_update_exclude_each_other(kept: Project) -> None:
    kept.run("--lmgate-prune", "--lmgate-update").expect(4).says(
        "--lmgate-prune and an update of the baseline: expected one"
    )


def other_model(project: Project) -> None:
    """Let the gates' model be one that is worse."""
    path = project.folder / "lmgate.yaml"
    path.write_text(path.read_text(encoding="utf-8").replace("/die}", "/sure}", 1), encoding="utf-8")
