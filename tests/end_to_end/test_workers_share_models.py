"""A session loads a model once and reads data once; with ``-n`` all gates of a model run in one worker."""

from tests.end_to_end.dice import TOO_LARGE_FOR_TWO, DiceProject
from tests.end_to_end.projects import marked
from tests.end_to_end.test_parity_with_xdist import verdicts

DATA = ("one", "two", "three")
REPORT = ("--lmgate-report", "json:report.json")


def gates_of(*models: str) -> str:
    """Return a test file with a gate of each model on each dataset, the models in turn."""
    gates = [f"ppl_max('{model}', '{data}', 6.01)" for data in DATA for model in models]
    return marked(**{str(number): gate for number, gate in enumerate(gates)})


def test_no_model_is_loaded_by_two_workers_and_verdicts_are_those_of_one_process(dice: DiceProject) -> None:
    dice.models(red={}, blue={"sides": 7}).gates([("red", "one"), ("blue", "two")])
    dice.write(test_gates=gates_of("red", "blue"), test_plain="def test_plain(): pass\n")
    outcome = dice.run("-n", "2", "-v", *REPORT).expect(1, passed=5, failed=4)
    outcome.says("scheduling tests via ModelScheduling")
    assert sorted(dice.loaded) == ["blue", "red"]
    assert {worker for worker, _, _ in dice.loads} == {"gw0", "gw1"}
    shared = sorted(verdicts(dice), key=lambda gate: str(gate["id"]))

    dice.run(*REPORT, "--lmgate-refresh").expect(1, passed=5, failed=4)
    assert sorted(verdicts(dice), key=lambda gate: str(gate["id"])) == shared


def test_a_worker_that_is_killed_fails_its_gate_and_the_other_gates_of_its_model_are_judged(dice: DiceProject) -> None:
    dice.models(red={"kills_after": 2}, blue={}).write(test_gates=gates_of("red", "blue"))
    outcome = dice.run("-n", "2", *REPORT).expect(1, passed=5, failed=1)
    outcome.says("crashed while running 'test_gates.py::test_0'")
    assert len(dice.report()["gates"]) == 5
    assert len(dice.partials) == 1, "what the worker had measured is kept"
    workers = [worker for worker, model, _ in dice.loads if model == "red"]
    assert len(workers) == len(set(workers)) == 2, "the killed one, and one that took its gates over"

    dice.run("-n", "2", *REPORT).expect(0, passed=6).says("red on one: resumed at")
    assert len(dice.report()["gates"]) == 6


def test_a_worker_that_is_killed_and_not_replaced_leaves_a_red_session(dice: DiceProject) -> None:
    dice.models(red={"kills_after": 0}, blue={}).write(test_gates=gates_of("red", "blue"))
    outcome = dice.run("-n", "2", "--max-worker-restart", "0")
    assert outcome.code != 0
    outcome.says("the verdict of test_gates.py::test_2 never arrived")


def test_gates_of_a_file_run_model_by_model_so_that_each_is_loaded_once(dice: DiceProject) -> None:
    heavy = {"bytes": TOO_LARGE_FOR_TWO}
    mixed = [(model, data) for data in DATA for model in ("red", "blue")]
    dice.models(red=heavy, blue=heavy).gates(mixed)
    outcome = dice.run("-v").expect(0, passed=6)
    assert dice.loaded == ["red", "blue"]
    ran = [line.split("[")[1].split("]")[0] for line in outcome.out.splitlines() if " PASSED " in line]
    assert ran == ["red-one", "red-two", "red-three", "blue-one", "blue-two", "blue-three"]


COUNT_READS = """
    import functools, pathlib
    from pytest_lmgate.data.corpus import Corpus
    from pytest_lmgate import identity
    from pytest_lmgate.measure import evaluator

    identity._RACY_SECONDS = -1.0  # a file written a moment ago may change unseen, and is read again
    read, digest = evaluator.read_corpus, Corpus.digest.func

    def note(what):
        with pathlib.Path(__file__).with_name("reads.txt").open("a") as file:
            file.write(what + "\\n")

    def read_corpus(spec, path, **options):
        note(f"read {path.name}")
        return read(spec, path, **options)

    evaluator.read_corpus = read_corpus
    Corpus.digest.func = lambda corpus: (note(f"hash {corpus.name}"), digest(corpus))[1]
"""


def test_a_dataset_is_read_and_hashed_once_in_a_session_and_again_if_its_file_changes(dice: DiceProject) -> None:
    dice.models(red={"sides": 7}, blue={}).write(
        counting=COUNT_READS,
        test_gates="""
            import pathlib
            import pytest

            @pytest.mark.no_regression("ppl", "red", "one", "1%", against="blue")
            def test_worse(): pass

            @pytest.mark.bpb_max("blue", "one", 9.0)
            def test_another_metric(): pass

            def test_changes_the_text():
                text = pathlib.Path("one.txt")
                text.write_text(text.read_text() + "one more line")

            @pytest.mark.bpb_max("blue", "one", 9.0)
            def test_of_the_new_text(): pass
        """,
    )
    dice.run("-p", "counting").expect(1, passed=3, failed=1)
    assert (dice.folder / "reads.txt").read_text().split("\n")[:-1] == ["read one.txt", "hash one"] * 2
