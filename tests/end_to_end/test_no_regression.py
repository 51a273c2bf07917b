"""``no_regression`` in real processes: against another model and against the committed baseline."""

from __future__ import annotations

import json
import re
import shlex
import shutil
from pathlib import Path

import pytest

from tests.end_to_end.projects import COUNT_MEASUREMENTS, Project, finished

AGAINST_BASELINE = """
    import pytest

    @pytest.mark.no_regression("ppl", "die", "words", "1%")
    def test_gate(): pass
"""
TWO_GATES = (
    AGAINST_BASELINE
    + """
    @pytest.mark.no_regression("bpb", "die", "words", "1%")
    def test_other(): pass
"""
)
KEYS = {
    "id", "test", "metric", "model", "dataset", "verdict", "value", "limit", "stderr", "interval", "n", "unit",
    "signature", "fingerprint", "cached", "seconds", "comparison", "marker", "blocking", "file", "line", "direction",
    "device", "identity", "spread",
}  # fmt: skip
ID = "test_gate.py::test_gate::no_regression:ppl[die-words]"


def baseline(project: Project) -> Path:
    return project.folder / "lmgate-baseline.json"


def with_baseline(project: Project, test: str = AGAINST_BASELINE) -> Project:
    """A project whose gates have passed once, with their baseline written."""
    project.write(test_gate=test).run("--lmgate-update").expect(0).says("baseline lmgate-baseline.json", "new")
    return project


def other_model(project: Project, model: str) -> None:
    """Let the name `die` stand for another model, as a new checkpoint in the same place would."""
    path = project.folder / "lmgate.yaml"
    written = path.read_text(encoding="utf-8")
    path.write_text(re.sub(r"die: \{path: (\S+)/die\}", rf"die: {{path: \1/{model}}}", written), encoding="utf-8")


# Against another model.


def test_a_model_against_itself_passes_with_a_change_of_exactly_zero(measured: Project) -> None:
    measured.write(
        test_gate="""
            import pytest

            @pytest.mark.no_regression("ppl", "die", "words", 0, against="die")
            @pytest.mark.no_regression("ppl", "sure", "words", "0%", against="sure", unit="word")
            def test_gate(): pass
        """
    )
    done = measured.run("--lmgate-report", "json:report.json", "--lmgate-strict").expect(0, passed=1)
    assert done.text.count("'die' is compared with itself: this gate can never fail") == 1
    for gate in measured.report()["gates"]:
        assert gate.keys() == KEYS
        assert gate["verdict"] == "pass"
        assert gate["comparison"]["degradation"] == gate["comparison"]["lower"] == gate["comparison"]["upper"] == 0
        assert (gate["spread"]["worse"], gate["spread"]["better"], gate["spread"]["bins"]) == (0, 0, [])


def test_a_worse_model_fails_with_all_that_is_needed_to_believe_it(measured: Project) -> None:
    measured.write(
        test_gate="""
            import pytest

            @pytest.mark.no_regression("ppl", "sure", "words", "1%", against="die", confidence=0.99)
            def test_gate(): raise AssertionError("the body must not run")
        """
    )
    done = measured.run("--assert=plain", "--lmgate-report", "json:report.json").expect(1, failed=1)
    done.says(
        "no_regression: perplexity",
        "of 'sure' on 'words' is",
        "% worse than 60 of the model 'die': FAIL at a tolerance of 1%",
        "the change is beyond the tolerance with 99% confidence",
        "noise      from ",
        "protocol:sliding|max_length:32|stride:16|average:token|unit:token",
        "399 tokens",
        "reproduce  pytest test_gate.py::test_gate\n",
        "accept     set another tolerance in test_gate.py:3\n",
        "layers     lmgate why sure words --against die\n",
        'help       "My build is red: what now?" (docs/howto/red_build.md of pytest-lmgate)\n',
        "degraded [one-sided]",
        "1 gate: 1 fail",
    ).is_silent_on("the body must not run", "the smallest change this gate can see")
    assert measured.report()["gates"][0]["layers"] == "lmgate why sure words --against die"
    comparison = measured.report()["gates"][0]["comparison"]
    assert comparison["lower"] > comparison["size"] == 0.01
    assert comparison["against"] == "model 'die'"
    assert measured.report()["gates"][0]["limit"] == pytest.approx(60.6)


def test_a_number_as_tolerance_is_shown_with_its_unit_and_share_and_refused_above_the_reference(
    measured: Project,
) -> None:
    gates = [f"@pytest.mark.no_regression('ppl', 'sure', 'words', {size}, against='die')" for size in (6, 60, 61)]
    gates += ["@pytest.mark.no_regression('ppl', 'die', 'words', 61)"]
    tests = [f"{gate}\ndef test_{number}(): pass" for number, gate in enumerate(gates)]
    measured.write(test_gate="\n\n".join(["import pytest", *tests]))
    done = measured.run("--lmgate-update").expect(1, failed=2, error=2)
    done.says("FAIL at a tolerance of 6 ppl (10%)", "FAIL at a tolerance of 60 ppl (100%)")
    done.says("tolerance: expected at most 100% of the model 'die', 60, got 61: a number is in the metric's own unit; ")
    done.says("tolerance: expected at most 100% of the baseline, 60, got 61: ")
    assert not (measured.folder / "lmgate-baseline.json").exists()


def test_a_better_model_passes(measured: Project) -> None:
    measured.write(
        test_gate="""
            import pytest

            @pytest.mark.no_regression("bpb", "die", "words", 0.01, against="sure")
            def test_gate(): pass
        """
    )
    measured.run().expect(0, passed=1).says("PASS", "1 gate: 1 pass")


def test_only_the_reference_is_measured_once_for_many_gates(project: Project) -> None:
    project.write(
        conftest=COUNT_MEASUREMENTS,
        test_gate="""
            import pytest

            @pytest.mark.no_regression("ppl", "die", "words", "1%", against="sure")
            @pytest.mark.no_regression("bpb", "die", "words", "1%", against="sure")
            @pytest.mark.ppl_max("die", "words", 60.5)
            def test_gate(): pass
        """,
    )
    project.run("-n", "2").expect(0, passed=1)
    assert sorted(project.measured) == ["die", "sure"]
    project.run().expect(0, passed=1).says("cached")
    assert sorted(project.measured) == ["die", "sure"]


def test_nan_on_either_side_is_an_error(project: Project) -> None:
    project.write(
        test_gate="""
            import pytest

            @pytest.mark.no_regression("ppl", "nan", "words", "1%", against="die")
            def test_candidate(): pass

            @pytest.mark.no_regression("ppl", "die", "words", "1%", against="nan")
            def test_reference(): pass
        """
    )
    project.run().expect(1, error=2).says("NaN", "2 gates: 2 error")


def test_models_of_fixtures_are_compared(measured: Project) -> None:
    measured.write(
        conftest="""
            import pytest

            @pytest.fixture(scope="session")
            def candidate(): return "sure"

            @pytest.fixture(scope="session")
            def reference(): return "die"
        """,
        test_gate="""
            import pytest
            import pytest_lmgate as lmgate

            @pytest.mark.no_regression(
                "ppl", lmgate.fixture("candidate"), "words", "1%", against=lmgate.fixture("reference")
            )
            def test_gate(): pass
        """,
    )
    measured.run().expect(1, failed=1).says("no_regression:ppl[candidate-words-vs-reference]")


def test_another_tokenizer_is_refused_and_bits_per_byte_are_offered(project: Project, models: Path) -> None:
    import transformers

    folder = project.model("joined", models / "die")
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    vocabulary = tokenizer.get_vocab()
    state = json.loads((folder / "tokenizer.json").read_text(encoding="utf-8"))
    # The same words under other numbers, and one that is no word any more.
    state["model"]["vocab"] = {("gone" if word == "w5" else word): index for word, index in vocabulary.items()}
    (folder / "tokenizer.json").write_text(json.dumps(state), encoding="utf-8")
    rows = "".join(json.dumps({"text": f"w{i} w5 w{i + 1} w{i + 2}"}) + "\n" for i in range(1, 20))
    project.write(
        rows_jsonl=rows,
        test_gate=f"""
            import pytest

            ROWS = {str(project.folder / "rows.jsonl")!r}

            @pytest.mark.no_regression("ppl", "./joined", ROWS, "1%", against="die")
            def test_tokens(): pass

            @pytest.mark.no_regression("bpb", "./joined", ROWS, "1%", against="die", protocol="document")
            def test_bytes(): pass
        """,
    )
    done = project.run().expect(1, passed=1, error=1)
    done.says("the tokens differ", "bits per byte", "'bpb' with protocol='document'")


# Inconclusive.

NOISY = """
    import pytest

    WORDS = [" ".join(f"w{(7 * i * j) % 57}" for j in range(1, 12)) for i in range(1, 9)]

    @pytest.fixture(scope="session")
    def rows(): return WORDS

    import pytest_lmgate as lmgate

    @pytest.mark.no_regression("ppl", "warm", lmgate.fixture("rows"), "TOLERANCE", against="die", protocol="document")
    def test_gate(): pass
"""


def noisy_bounds(project: Project) -> tuple[float, float, float]:
    project.write(test_gate=NOISY.replace("TOLERANCE", "50%")).run("--lmgate-report", "json:report.json")
    comparison = project.report()["gates"][0]["comparison"]
    return comparison["lower"], comparison["degradation"], comparison["upper"]


def test_inconclusive_passes_within_the_tolerance_fails_beyond_it_and_always_fails_in_strict_mode(
    noisy: Project,
) -> None:
    lower, measured, upper = noisy_bounds(noisy)
    assert lower < measured < upper
    within, beyond = (measured + upper) / 2, (measured + lower) / 2
    assert beyond > 0

    noisy.write(test_gate=NOISY.replace("TOLERANCE", f"{100 * within}%"))
    done = noisy.run("--lmgate-report", "json:report.json").expect(0, passed=1)
    done.says("INCONCLUSIVE", "inconclusive at 95%: the build goes on", "would settle it", "1 gate: 1 inconclusive")
    assert noisy.report()["gates"][0]["verdict"] == "inconclusive"
    assert noisy.report()["gates"][0]["comparison"]["needed"] > 80
    done = noisy.run("--lmgate-strict").expect(1, failed=1).says("INCONCLUSIVE", "--lmgate-strict fails the build")
    noisy.run("-n", "2", "-p", "no:terminal").expect(0)
    noisy.run(env={"LMGATE_STRICT": "1"}).expect(1, failed=1)

    noisy.write(test_gate=NOISY.replace("TOLERANCE", f"{100 * beyond}%"))
    done = noisy.run().expect(1, failed=1)
    done.says("INCONCLUSIVE at a tolerance", "the build fails, because the measured change is beyond the tolerance")


def test_holm_turns_a_pass_into_inconclusive_and_the_summary_says_so(noisy: Project) -> None:
    _, measured, upper = noisy_bounds(noisy)
    one = NOISY.replace("TOLERANCE", f"{100 * (upper + 0.02 * (upper - measured))}%")
    mark = next(line for line in one.splitlines() if "no_regression" in line)
    noisy.write(test_gate=one.replace(mark, "\n".join([mark] * 6)))
    noisy.run("--lmgate-report", "json:alone.json").expect(0, passed=1).says("6 gates: 6 pass")
    done = noisy.run("--lmgate-holm", "--lmgate-report", "json:holm.json").expect(0, passed=1)
    done.says(
        "Holm: verdicts hold for 6 no_regression gates together; the correction made 6 inconclusive",
        "6 gates: 6 inconclusive",
        "it is PASS alone, before Holm's correction",
    )
    assert {gate["verdict"] for gate in noisy.report("alone.json")["gates"]} == {"pass"}
    assert {gate["verdict"] for gate in noisy.report("holm.json")["gates"]} == {"inconclusive"}
    # The test had passed when the others' verdicts came: the session fails all the same.
    noisy.run("--lmgate-holm", "--lmgate-strict", "-n", "2").expect(1, passed=1).says(
        "--lmgate-strict does not let pass"
    )
    # One that is expected to fail fails nobody.
    noisy.write(test_gate=one.replace(mark, "\n".join([mark] * 6 + ["    @pytest.mark.xfail"])))
    noisy.run("--lmgate-holm", "--lmgate-strict", "-n", "2").expect(0, xpassed=1).says("6 inconclusive")
    # A part of the test that is expected to fail, or a body that gives up, says nothing of the gates.
    many = one.replace(mark, "\n".join([mark] * 6))
    bodies = {"test_gate(): pytest.xfail('known')": "xfailed"}
    if pytest.version_tuple >= (9,):
        part = "with subtests.test('part'): pytest.xfail('known')"
        bodies[f"test_gate(subtests):\n        {part}"] = "passed"
    for body, outcome in bodies.items():
        noisy.write(test_gate=many.replace("test_gate(): pass", body))
        for workers in ((), ("-n", "2")):
            done = noisy.run("--lmgate-holm", "--lmgate-strict", *workers).expect(1)
            done.says("--lmgate-strict does not let pass", "6 inconclusive", outcome)


# Against the baseline.


def test_a_gate_without_a_baseline_fails_with_the_command_that_makes_one(measured: Project) -> None:
    measured.write(test_gate=AGAINST_BASELINE)
    done = measured.run().expect(1, error=1)
    done.says("no baseline", "pytest test_gate.py::test_gate --lmgate-update-new-only", "1 gate: 1 error")
    command = re.search(r"pytest (test_gate\S+) (--lmgate-update-new-only)", done.text)
    assert command is not None
    measured.run(*command.groups()).expect(0, passed=1).says("baseline lmgate-baseline.json: 1 new; commit it")
    measured.run().expect(0, passed=1).says("PASS", "+0% [+0, +0]")


BY_A_LIMIT = """
    import pytest

    @pytest.mark.ppl_max("die", "words", 59)
    def test_gate(): pass
"""


@pytest.mark.parametrize(
    ("marker", "unit"),
    [
        ('"bpb", "warm", lmgate.fixture("rows"), "TOLERANCE", against="die"', "bytes"),
        ('"ppl", "warm", lmgate.fixture("rows"), "TOLERANCE", against="die", unit="word"', "words"),
        ('"ppl", "warm", lmgate.fixture("rows"), "TOLERANCE", against="die", average="window"', "tokens"),
    ],
)
def test_what_would_settle_it_is_counted_as_what_was_scored(noisy: Project, marker: str, unit: str) -> None:
    """In running text the clusters' counts are tokens, or windows, whatever the score counts."""
    head, _, tail = NOISY.partition("no_regression(")
    test = head + f"no_regression({marker}" + tail[tail.index(")\n    def") :]
    test = test.replace("def rows(): return WORDS", "def rows(): return WORDS * 12")
    noisy.write(test_gate=test.replace("TOLERANCE", "50%")).run("--lmgate-report", "json:report.json")
    (gate,) = noisy.report()["gates"]
    found = gate["comparison"]
    within = (found["degradation"] + found["upper"]) / 2
    noisy.write(test_gate=test.replace("TOLERANCE", f"{100 * within}%"))
    done = noisy.run("--lmgate-report", "json:report.json").expect(0).says(f"{gate['n']:,} {unit}", "INCONCLUSIVE")
    needed = noisy.report()["gates"][0]["comparison"]["needed"]
    assert needed > gate["n"]  # what there is does not settle it
    done.says(f"about {needed:,} {unit} would settle it")


def test_commands_that_are_shown_name_what_the_session_was_told(measured: Project) -> None:
    (measured.folder / "lmgate.yaml").rename(measured.folder / "ci gates.yaml")
    told = ("--lmgate-config", "ci gates.yaml", "--lmgate-baseline", "main.json", "--lmgate-device", "cpu")
    shown = "'--lmgate-config=ci gates.yaml' --lmgate-baseline=main.json --lmgate-device=cpu"
    measured.write(test_gate=AGAINST_BASELINE)
    done = measured.run(*told).expect(1, error=1).says(f"--lmgate-update-new-only {shown}\n")
    command = re.search(r"pytest (test_gate.+)", done.text)
    assert command is not None
    measured.run(*shlex.split(command.group(1))).expect(0, passed=1).says("baseline main.json: 1 new")
    measured.write(test_gate=BY_A_LIMIT).run(*told).expect(1).says(
        f"reproduce  pytest test_gate.py::test_gate {shown}\n"
    )


def test_a_gate_whose_baseline_is_written_is_not_said_to_be_within_a_limit(measured: Project) -> None:
    measured.write(test_gate=AGAINST_BASELINE).run("--lmgate-update").expect(0).says("new baseline")


@pytest.mark.parametrize("workers", [(), ("-n", "2")])
def test_what_was_written_is_judged_by_and_a_worse_model_fails(measured: Project, workers: tuple[str, ...]) -> None:
    measured.write(test_gate=TWO_GATES).run("--lmgate-update", *workers).expect(0, passed=2).says("2 new")
    entries = json.loads(baseline(measured).read_text(encoding="utf-8"))["gates"]
    assert set(entries) == {ID, "test_gate.py::test_other::no_regression:bpb[die-words]"}
    assert entries[ID]["value"] == pytest.approx(60)
    assert sum(row[0] for row in entries[ID]["clusters"]) == 399
    measured.run(*workers).expect(0, passed=2)
    other_model(measured, "sure")
    done = measured.run(*workers).expect(1, failed=2)
    done.says("worse than 60 of the baseline of", "FAIL at a tolerance of 1%")
    # A look at it as a new baseline: what was, and what is.
    done = measured.run("--lmgate-update", *workers).expect(0, passed=2)
    done.says("baseline lmgate-baseline.json: 2 changed; commit it", f"{ID}: 60 -> ")
    measured.run(*workers).expect(0, passed=2)


def test_only_gates_that_ran_are_written(measured: Project) -> None:
    with_baseline(measured, TWO_GATES)
    before = json.loads(baseline(measured).read_text(encoding="utf-8"))["gates"]
    other_model(measured, "sure")
    measured.run("--lmgate-update", "-k", "test_other").expect(0, passed=1).says("1 changed")
    after = json.loads(baseline(measured).read_text(encoding="utf-8"))["gates"]
    assert after[ID] == before[ID]
    assert after.keys() == before.keys()
    assert after != before


def test_new_only_writes_what_is_new_and_judges_the_rest(measured: Project) -> None:
    with_baseline(measured)
    other_model(measured, "sure")
    before = json.loads(baseline(measured).read_text(encoding="utf-8"))["gates"]
    measured.write(test_gate=TWO_GATES)
    measured.run("--lmgate-update-new-only").expect(1, passed=1, failed=1).says("baseline lmgate-baseline.json: 1 new")
    after = json.loads(baseline(measured).read_text(encoding="utf-8"))["gates"]
    assert after[ID] == before[ID]
    assert len(after) == 2


def test_what_could_not_be_measured_leaves_its_entry(measured: Project) -> None:
    with_baseline(measured)
    before = baseline(measured).read_bytes()
    other_model(measured, "nan")
    measured.run("--lmgate-update").expect(1, error=1)
    assert baseline(measured).read_bytes() == before


def test_an_update_is_refused_in_ci_unless_forced(measured: Project) -> None:
    measured.write(test_gate=AGAINST_BASELINE)
    for option in ("--lmgate-update", "--lmgate-update-new-only"):
        measured.run(option, env={"CI": "true"}).expect(4).says(f"{option}: refused in CI", "--lmgate-force-update")
    assert not baseline(measured).exists()
    measured.run("--lmgate-update", env={"CI": "false"}).expect(0, passed=1)
    # Written at another commit on another day: what has not changed is no diff.
    text = re.sub(r'"date": "[^"]+"', '"date": "2001-01-31"', baseline(measured).read_text(encoding="utf-8"))
    baseline(measured).write_text(text, encoding="utf-8")
    done = measured.run("--lmgate-update", "--lmgate-force-update", env={"CI": "true"}).expect(0, passed=1)
    done.says("baseline lmgate-baseline.json: 1 unchanged\n")
    assert baseline(measured).read_text(encoding="utf-8") == text
    measured.run(env={"CI": "true"}).expect(0, passed=1)
    measured.run("--lmgate-update", "--lmgate-update-new-only").expect(4).says("expected one of them, got both")


def test_neither_the_ini_file_nor_the_environment_can_turn_an_update_on(measured: Project) -> None:
    measured.write(test_gate=AGAINST_BASELINE)
    measured.run(env={"LMGATE_UPDATE": "1"}).expect(4).says("the environment variable LMGATE_UPDATE is none of")
    says = "expected on the command line, got it from addopts, PYTEST_ADDOPTS or a conftest"
    for option in ("--lmgate-update", "--lmgate-update-new-only", "--lmgate-prune"):
        measured.run(env={"PYTEST_ADDOPTS": option}).expect(4).says(f"{option}: {says}").is_silent_on("Traceback")
        measured.run("-o", f"addopts={option}").expect(4).says(f"{option}: {says}")
        measured.write(pytest_ini=f"[pytest]\naddopts = {option}\n")
        measured.run().expect(4).says(f"{option}: {says}")
        measured.run("-n", "2").expect(4).says(f"{option}: {says}")
        measured.write(pytest_ini="[pytest]\n")
    forced = measured.run("--lmgate-update", env={"PYTEST_ADDOPTS": "--lmgate-force-update", "CI": "true"})
    forced.expect(4).says(f"--lmgate-force-update: {says}")
    assert not baseline(measured).exists()
    measured.run("--lmgate-update", "-n", "2", env={"PYTEST_ADDOPTS": "-v"}).expect(0, passed=1).says("1 new")


def test_entries_that_no_gate_uses_are_reported_and_removed_only_by_a_full_update(measured: Project) -> None:
    with_baseline(measured, TWO_GATES)
    measured.write(test_gate=AGAINST_BASELINE)
    other = "test_gate.py::test_other::no_regression:bpb[die-words]"
    measured.run().expect(0, passed=1).says(f"no gate uses {other}; remove it by --lmgate-prune")
    for selection in (("-k", "gate"), ("test_gate.py",), ("--lf",), ("--deselect", "nothing")):
        measured.run("--lmgate-update", *selection).expect(0).is_silent_on("removed")
        assert other in baseline(measured).read_text(encoding="utf-8")
    inner = measured.folder / "inner"
    inner.mkdir()
    (inner / "test_inner.py").write_text((measured.folder / "test_gate.py").read_text(encoding="utf-8"))
    measured.run("--lmgate-update", cwd=inner).expect(0).says("1 new").is_silent_on("removed")
    shutil.rmtree(inner)
    elsewhere = ("--lmgate-config", "lmgate.yaml")
    measured.run(*elsewhere).expect(0).is_silent_on("no gate uses")
    measured.run("--lmgate-update-new-only").expect(0).is_silent_on("removed")
    measured.run("--lmgate-update", "-n", "2").expect(0).says("1 unchanged, 2 removed", f"{other}: removed")
    assert other not in baseline(measured).read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("broken", "workers"),
    [("import no_such_module", ()), ("pytest.skip('not here', allow_module_level=True)", ("-n", "2"))],
)
def test_entries_of_a_file_that_was_not_collected_stay(
    measured: Project, broken: str, workers: tuple[str, ...]
) -> None:
    measured.write(test_other=AGAINST_BASELINE)
    with_baseline(measured)
    measured.write(test_other=AGAINST_BASELINE.replace("import pytest\n", f"import pytest\n    {broken}\n"))
    goes_on = ("--continue-on-collection-errors", *workers)
    measured.run(*goes_on).is_silent_on("no gate uses")
    measured.run("--lmgate-update", *goes_on).says("1 unchanged").is_silent_on("removed")
    assert len(json.loads(baseline(measured).read_text(encoding="utf-8"))["gates"]) == 2


def test_a_group_of_xdist_is_no_part_of_a_gates_id(measured: Project) -> None:
    measured.write(
        test_gate="""
            import pytest

            @pytest.mark.parametrize("which", ["org/name@v1", "org/name@v2"])
            @pytest.mark.no_regression("ppl", "die", "words", "1%")
            @pytest.mark.xdist_group("g@h")
            def test_gate(which): pass
        """
    )
    measured.run("--lmgate-update", "-n", "2", "--dist", "loadgroup").expect(0, passed=2).says("2 new")
    measured.run().expect(0, passed=2).says("2 gates: 2 pass").is_silent_on("no gate uses")


def test_a_gate_that_a_fixture_adds_has_a_baseline_too(measured: Project) -> None:
    measured.write(
        test_gate="""
            import pytest

            @pytest.fixture
            def late(request):
                request.node.add_marker(pytest.mark.no_regression("ppl", "die", "words", "1%"))

            def test_gate(late): pass
        """
    )
    measured.run("--lmgate-update", "-n", "2").expect(0, passed=1).says("1 new")
    measured.run().expect(0, passed=1).says("1 gate: 1 pass").is_silent_on("no gate uses")
    measured.run("--lmgate-update").expect(0, passed=1).says("1 unchanged").is_silent_on("removed")


def test_a_file_behind_a_link_or_of_an_editor_on_windows_is_the_same_file(measured: Project) -> None:
    real = measured.folder / "quality" / "real.json"
    baseline(measured).symlink_to(real)
    with_baseline(measured)
    assert baseline(measured).is_symlink()
    real.write_bytes(b"\xef\xbb\xbf" + real.read_bytes().replace(b"\n", b"\r\n"))
    measured.run().expect(0, passed=1).says("PASS", "+0% [+0, +0]")
    measured.run("--lmgate-update").expect(0, passed=1).says("1 unchanged")


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ("context", "the protocol differs (protocol:sliding|max_length:16|stride:8|"),
        ("data", "the data differs"),
        ("tokenizer", "the tokens differ"),
    ],
)
def test_a_baseline_of_something_else_is_an_error_that_says_what(measured: Project, change: str, says: str) -> None:
    with_baseline(measured)
    path = measured.folder / "lmgate.yaml"
    written = path.read_text(encoding="utf-8")
    models = re.search(r"path: (\S+)/die\}", written)
    assert models is not None
    if change == "context":
        folder = measured.model("short", Path(models[1], "die"))
        config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
        (folder / "config.json").write_text(json.dumps(config | {"max_position_embeddings": 16}), encoding="utf-8")
        path.write_text(written.replace(f"{models[1]}/die}}", f"{folder}}}"), encoding="utf-8")
    elif change == "data":
        text = Path(models[1], "words.txt").read_text(encoding="utf-8")
        (measured.folder / "words.txt").write_text(f"{text} w1", encoding="utf-8")
        path.write_text(written.replace(f"{models[1]}/words.txt", "words.txt"), encoding="utf-8")
    else:
        folder = measured.model("renumbered", Path(models[1], "die"))
        state = (folder / "tokenizer.json").read_text(encoding="utf-8")
        swapped = state.replace('"w1"', '"w_"').replace('"w2"', '"w1"').replace('"w_"', '"w2"')
        (folder / "tokenizer.json").write_text(swapped, encoding="utf-8")
        path.write_text(written.replace(f"{models[1]}/die}}", f"{folder}}}"), encoding="utf-8")
    measured.write(conftest=COUNT_MEASUREMENTS)
    measured.run().expect(1, error=1).says("cannot be compared with the baseline of", says, "--lmgate-update")
    # What is known of data and protocol before a model runs is compared before.
    assert measured.measured == (["die"] if change == "tokenizer" else [])


def test_a_gate_whose_arguments_changed_has_no_baseline_and_is_not_measured_to_find_out(measured: Project) -> None:
    with_baseline(measured)
    measured.write(test_gate=AGAINST_BASELINE.replace('"1%"', '"1%", stride=8'), conftest=COUNT_MEASUREMENTS)
    measured.run().expect(1, error=1).says("no baseline: ", "the entry of test_gate.py::test_gate::no_regression:ppl[")
    assert measured.measured == []


@pytest.mark.parametrize(
    ("damage", "says"),
    [
        (lambda text: text[: len(text) // 2], "not whole JSON"),
        (lambda text: "", "not whole JSON"),
        (lambda text: re.sub(r'"value": [\d.]+', '"value": "low"', text), "value: expected `float`, got `str`"),
        (lambda text: re.sub(r'"value": [\d.]+', '"value": 99.5', text), "edited by hand"),
        (
            lambda text: text.replace('"metric": "ppl"', '"metric": "bleu"'),
            "metric: expected 'ppl', got 'bleu': edited",
        ),
        (lambda text: re.sub(r'"n": \d+', '"n": 1', text), "got 1: edited by hand"),
        (lambda text: text.replace("{", "<<<<<<< HEAD\n{", 1), "1: an unresolved merge conflict"),
        (lambda text: text.replace('"schema": 2', '"schema": 9'), "expected schema 2, got 9"),
        (lambda text: text.replace('"clusters": [', '"clusters": [' + "[" * 100_000), "nested more deeply than any"),
    ],
)
def test_a_damaged_baseline_is_a_clear_error_and_never_a_pass(measured: Project, damage: object, says: str) -> None:
    with_baseline(measured)
    assert callable(damage)
    baseline(measured).write_text(damage(baseline(measured).read_text(encoding="utf-8")), encoding="utf-8")
    done = measured.run()
    assert done.code != 0
    done.says(says, "lmgate-baseline.json").is_silent_on("1 pass")
    damaged = baseline(measured).read_bytes()
    if "edited" not in says:  # which a new measurement mends
        assert measured.run("--lmgate-update").code != 0
        assert baseline(measured).read_bytes() == damaged


def test_an_update_says_what_it_wrote_anew_though_the_value_is_the_same(measured: Project) -> None:
    with_baseline(measured)
    text = baseline(measured).read_text(encoding="utf-8")
    baseline(measured).write_text(re.sub(r'"data": "\w{6}', '"data": "000000', text), encoding="utf-8")
    done = measured.run("--lmgate-update").expect(0)
    done.says("1 changed; commit it", "60 -> 60: cannot be compared with the baseline of", "the data differs")
    baseline(measured).write_text(re.sub(r'"torch": "\w+', '"torch": "1', text), encoding="utf-8")
    measured.run("--lmgate-update").expect(0).says("1 changed; commit it", "60, unchanged, measured elsewhere")


def test_an_update_keeps_the_files_permissions(measured: Project) -> None:
    with_baseline(measured)
    baseline(measured).chmod(0o640)
    other_model(measured, "sure")
    measured.run("--lmgate-update").expect(0).says("1 changed")
    assert baseline(measured).stat().st_mode & 0o777 == 0o640


def test_an_updated_gate_says_in_the_report_that_it_was_not_judged(measured: Project) -> None:
    measured.write(test_gate=AGAINST_BASELINE).run("--lmgate-update", "--lmgate-report", "json:report.json").expect(0)
    (gate,) = measured.report()["gates"]
    assert (gate["verdict"], gate["message"]) == ("pass", "the baseline is measured anew")


def test_other_hardware_and_versions_are_shown_and_judged_all_the_same(measured: Project) -> None:
    with_baseline(measured)
    text = baseline(measured).read_text(encoding="utf-8")
    text = re.sub(r'"torch": "[^"]+"', '"torch": "1.0"', text)
    baseline(measured).write_text(re.sub(r'"device": "cpu"', '"device": "cuda"', text), encoding="utf-8")
    done = measured.run().expect(0, passed=1)
    done.says("baseline of 1 gate measured elsewhere: device: cuda then, cpu now; torch: 1.0 then, 2")
    other_model(measured, "sure")
    measured.run().expect(1, failed=1).says("note       device: cuda then, cpu now", "torch: 1.0 then, 2")


def test_the_file_can_be_elsewhere(measured: Project) -> None:
    measured.write(test_gate=AGAINST_BASELINE, pytest_ini="[pytest]\nlmgate_baseline = quality/base.json\n")
    measured.run("--lmgate-update").expect(0, passed=1).says("baseline base.json: 1 new")
    assert (measured.folder / "quality" / "base.json").is_file()
    measured.run().expect(0, passed=1)


# Kills itself just before the new file takes the old one's place.
KILL_AT_REPLACE = """
    import os, pathlib, signal

    plain = pathlib.Path.replace

    def replace(self, target):
        if pathlib.Path(target).name == "lmgate-baseline.json" and "KILL" in os.environ:
            os.kill(os.getpid(), signal.SIGKILL)
        return plain(self, target)

    pathlib.Path.replace = replace
"""


def test_a_kill_during_an_update_leaves_the_old_file_whole(measured: Project) -> None:
    with_baseline(measured)
    before = baseline(measured).read_bytes()
    other_model(measured, "sure")
    measured.write(conftest=KILL_AT_REPLACE)
    assert measured.run("--lmgate-update", env={"KILL": "1"}).code < 0
    assert baseline(measured).read_bytes() == before
    another = measured.folder / ".lmgate-baseline.other.json-0123456789abcdef0123456789abcdef.tmp"
    another.write_text("of a session that is writing another file")
    assert len(list(measured.folder.glob(".lmgate-baseline.*.tmp"))) == 2
    measured.run("--lmgate-update").expect(0, passed=1).says("1 changed")
    assert baseline(measured).read_bytes() != before
    assert list(measured.folder.glob(".lmgate-baseline.*.tmp")) == [another]


def test_two_sessions_that_update_at_once_both_end_up_in_the_file(measured: Project) -> None:
    measured.write(
        test_one=AGAINST_BASELINE,
        test_two=AGAINST_BASELINE,
        conftest="""
            import os, pathlib, time

            def pytest_sessionfinish():  # both are here before either writes
                here = pathlib.Path(__file__).parent
                (here / os.environ["ME"]).touch()
                while not all((here / name).exists() for name in ("one", "two")):
                    time.sleep(0.01)
        """,
    )
    both = [
        measured.start("--lmgate-update", f"test_{name}.py", env={"ME": name}, fresh=False) for name in ("one", "two")
    ]
    for process in both:
        finished(process).expect(0, passed=1)
    assert len(json.loads(baseline(measured).read_text(encoding="utf-8"))["gates"]) == 2


def test_a_read_only_folder_fails_the_update_and_says_so(measured: Project) -> None:
    measured.write(test_gate=AGAINST_BASELINE, pytest_ini="[pytest]\nlmgate_baseline = /dev/null/base.json\n")
    done = measured.run("--lmgate-update")
    assert done.code != 0
    done.says("base.json")


def test_the_second_run_imports_neither_torch_nor_scipy(measured: Project) -> None:
    with_baseline(measured)
    measured.write(
        test_gate=AGAINST_BASELINE
        + """
    def test_imports():
        import sys
        assert not {"torch", "scipy"} & set(sys.modules)
    """
    )
    measured.run(fresh=True).expect(0, passed=2)


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ('"ppl", "die", "words"', "missing a required argument: 'tolerance'"),
        ('"ppl", "die", "words", "1 percent"', "expected a percentage"),
        ('"ppl", "die", "words", -1', "expected a finite size"),
        ('"ppl", "die", "words", "150%"', "tolerance: expected at most 100% of the reference, got '150%'"),
        ('"ppl", "die", "words", "1%", confidence=1', "confidence: expected a one-sided level"),
        ('"ppl", "die", "words", "1%", against=""', "against: expected"),
        ('"ppl", "die", "words", "1%", against="dye"', "did you mean 'die'"),
        ('"ppl", "die", "words", "1%", strde=3', "did you mean 'stride'"),
        ('"pll", "die", "words", "1%"', "expected a registered metric, got 'pll'"),
        ('"accuracy", "die", "words", 1', "could never fail"),
        ('"bleu", "die", "words", "100%"', "could never fail"),
        ('"kl", "die", "words", "1%"', "missing a required argument: 'reference'"),
        ('"kl", "die", "words", "1%", reference="die", statistic="p99"', "statistic: expected 'mean'"),
        ('"compare", "die", "words", "1%", reference="die"', "metric: 'compare' is many numbers"),
        ('3, "die", "words", "1%"', "metric: expected the name"),
    ],
)
def test_bad_arguments_are_usage_errors(measured: Project, arguments: str, says: str) -> None:
    measured.write(test_gate=f"import pytest\n\n@pytest.mark.no_regression({arguments})\ndef test_gate(): pass\n")
    measured.run().expect(4).says("test_gate.py::test_gate: @pytest.mark.no_regression", says)


def test_a_session_that_is_interrupted_keeps_what_was_measured(measured: Project) -> None:
    measured.write(
        test_gate=TWO_GATES
        + """
    def test_stop():
        raise KeyboardInterrupt
    """
    )
    measured.run("--lmgate-update").expect(2)
    assert len(json.loads(baseline(measured).read_text(encoding="utf-8"))["gates"]) == 2
