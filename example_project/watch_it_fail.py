"""What a bad candidate does to a build. Not among the gates: `pytest watch_it_fail.py` runs it, and fails."""

import pytest


@pytest.mark.ppl_max("broken", "bulletins", 2.10, stride=128)
def test_the_broken_candidate():
    """Fails: its perplexity is above the limit."""


def test_the_broken_candidate_against_the_original(ppl_of):
    """Fails: it is not within 1% of the original."""
    assert ppl_of("broken", "bulletins") < 1.01 * ppl_of("float", "bulletins")


@pytest.mark.bleu_min("broken-writer", "records", 80)
@pytest.mark.accuracy_min("broken-writer", "quiz", 0.95)
def test_the_broken_writer():
    """Fails twice: it tells other things than the note, and takes wrong sentences for right ones."""


@pytest.mark.no_regression("ppl", "int3", "bulletins", "1%", against="float")
def test_three_bits_are_too_few():
    """Fails: it is worse by more than 1%, and the text is long enough to be sure."""
