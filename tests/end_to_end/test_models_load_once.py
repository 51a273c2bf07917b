"""A session loads a model once, also if memory holds only one and gates of several are mixed, and reads data once."""

from tests.end_to_end.dice import TOO_LARGE_FOR_TWO, DiceProject

MIXED = [(model, data) for data in ("one", "two", "three") for model in ("red", "blue")]


def test_gates_of_a_file_run_model_by_model_so_that_each_is_loaded_once(dice: DiceProject) -> None:
    heavy = {"bytes": TOO_LARGE_FOR_TWO}
    dice.models(red=heavy, blue=heavy).gates([*MIXED, ("red", "one")])
    outcome = dice.run("-v").expect(0, passed=7)
    assert dice.loaded == ["red", "blue"]
    ran = [line.split("[")[1].split("]")[0] for line in outcome.out.splitlines() if " PASSED " in line]
    assert ran == ["red-one", "red-two", "red-three", "red-one#2", "blue-one", "blue-two", "blue-three"]


def test_tests_in_python_run_in_the_order_of_their_file(dice: DiceProject) -> None:
    dice.models(red={}, blue={}).write(
        test_trained="""
            import pathlib
            import pytest

            @pytest.mark.ppl_max("red", "one", 6.01)
            def test_before(): pass

            @pytest.mark.ppl_max("blue", "one", 6.01)
            def test_trains(): pathlib.Path("red.die").write_text('{"sides": 5}')

            @pytest.mark.ppl_max("red", "one", 5.01)
            def test_what_was_trained(): pass
        """
    )
    dice.run().expect(0, passed=3)


COUNT_READS = """
    import functools, pathlib
    from pytest_lmgate.data.corpus import Corpus
    from pytest_lmgate.identity import files
    from pytest_lmgate.measure import sources

    files._RACY_SECONDS = -1.0  # a file written a moment ago may change unseen, and is read again
    read, digest = sources.read_corpus, Corpus.digest.func

    def note(what):
        with pathlib.Path(__file__).with_name("reads.txt").open("a") as file:
            file.write(what + "\\n")

    def read_corpus(spec, path, **options):
        note(f"read {path.name}")
        return read(spec, path, **options)

    sources.read_corpus = read_corpus
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
