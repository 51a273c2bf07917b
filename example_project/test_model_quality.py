"""The gates of this repository: run `pytest` here, or let CI do it.

The text is drawn from a source whose entropy is known, so the best possible perplexity is too: see weather/optimum.py.
"""

import pytest
from weather.optimum import best_bits_per_byte, best_perplexity


@pytest.mark.ppl_max("int8", "bulletins", 2.10, stride=128)
def test_the_candidate_is_good_enough():
    pass


@pytest.mark.ppl_max("float", "bulletins", 2.10)
@pytest.mark.bpb_max("float", "bulletins", 0.25)
def test_the_original_is_good_enough():
    pass


def test_rounding_costs_next_to_nothing(ppl_of):
    assert ppl_of("int8", "bulletins") < 1.001 * ppl_of("float", "bulletins")


@pytest.mark.parametrize("model", ["float", "int8"])
def test_perplexity_is_close_to_the_best_possible(ppl_of, model):
    assert ppl_of(model, "bulletins") < 1.03 * best_perplexity()


@pytest.mark.parametrize("model", ["float", "int8"])
def test_nothing_is_better_than_possible(ppl_of, bpb_of, model):
    # Below the bound by more than noise would mean a wrong count, or the text among the training data.
    assert ppl_of(model, "bulletins").interval[1] > best_perplexity()
    assert bpb_of(model, "bulletins").interval[1] > best_bits_per_byte()
