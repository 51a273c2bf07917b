"""A dataset that is too large for memory is measured from the disk: the same value, address and baseline."""

from __future__ import annotations

from tests.end_to_end.dice import DiceProject

# What is large is 500 characters here, and a text of more than 100 is tokenized in pieces.
SMALL_MEMORY = """
    from pytest_lmgate.data.corpora import corpus
    from pytest_lmgate.data.tokenization import long_texts
    from pytest_lmgate.data.corpora import on_disk
    from pytest_lmgate.data.protocols import base

    on_disk.MOST_CHARS, long_texts.MOST_NUMBERS = 500, 100
    corpus.PIECE_CHARS = base.PIECE_CHARS = 100
"""
COMPARED = """
gates:
  - no_regression: {metric: ppl, model: b, dataset: one, against: a, tolerance: 5%}
"""


def test_the_measurement_is_the_one_that_fits_in_memory(dice: DiceProject) -> None:
    dice.models(a={}).gates([("a", "one")]).write(small_memory=SMALL_MEMORY)
    dice.run(fresh=True).expect(0, passed=1)
    dice.run("-p", "small_memory", "-W", "error", fresh=True).expect(0, passed=1).says("cached")
    assert dice.loaded == ["a"]
    dice.run("-p", "small_memory", "-W", "error", "--lmgate-cache=anew", fresh=True).expect(0, passed=1)
    assert dice.loaded == ["a", "a"]
    dice.run("--lmgate-cache=anew", fresh=True).expect(0, passed=1).says("cached")


def test_a_comparison_fails_and_says_that_tokens_are_not_told(dice: DiceProject) -> None:
    dice.models(a={}, b={"sides": 8}).write(small_memory=SMALL_MEMORY)
    with (dice.folder / "lmgate.yaml").open("a") as file:
        file.write(COMPARED)
    outcome = dice.run("-p", "small_memory", "-W", "error", fresh=True).expect(1, failed=1)
    outcome.says("the dataset does not fit in memory: its tokens and their positions are not told")


def test_a_disk_without_room_for_the_dataset_is_an_error(dice: DiceProject) -> None:
    full = SMALL_MEMORY + (
        "\n    def no_room(owner): raise OSError(28, 'No space left on device')\n"
        "    on_disk.open_until_gone = no_room\n"
    )
    dice.models(a={}).gates([("a", "one")]).write(small_memory=full)
    outcome = dice.run("-p", "small_memory", fresh=True).expect(1, error=1)
    outcome.says("'one': it is too large for memory, and cannot be kept in ", "No space left", "set TMPDIR")
