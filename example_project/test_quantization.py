"""The quantization check: is a candidate worse than the model it was made from by more than 1%?

Both are measured on the same tokens and compared bulletin by bulletin, so that what both find hard
cancels. watch_it_fail.py has the candidate of 3 bits, which is worse.
"""

import pytest


@pytest.mark.no_regression("ppl", "int8", "bulletins", "1%", against="float")
def test_eight_bits_are_as_good():
    """PASS, and would pass a tolerance of a fiftieth of that."""


@pytest.mark.no_regression("ppl", "int4", "bulletins", "1%", against="float")
def test_four_bits_are_within_the_tolerance():
    """PASS: it is worse, and the text is long enough to show that it is so by less than 1%."""


@pytest.mark.no_regression("ppl", "int4", "few-bulletins", "1%", against="float")
def test_twelve_bulletins_are_too_few_to_tell():
    """INCONCLUSIVE: the same candidate on a short text. The build goes on, except in strict mode."""
