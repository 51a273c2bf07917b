"""The original as GGUF files, which llama.cpp runs: `pip install 'pytest-lmgate[gguf]'`, or these tests are skipped."""

import pytest

pytest.importorskip("llama_cpp", reason="llama-cpp-python is not installed: pip install 'pytest-lmgate[gguf]'")


@pytest.mark.ppl_max("q8_0", "bulletins", 2.10)
@pytest.mark.no_regression("ppl", "q8_0", "bulletins", "0.1%", against="float")
@pytest.mark.kl_max("q8_0", "float", "bulletins", 0.001)
def test_eight_bits_of_llama_cpp_are_as_good():
    """Candidate and reference are run by different engines; both read the same tokens."""


@pytest.mark.kl_max("f16", "float", "bulletins", 0.00001)
@pytest.mark.top1_min("f16", "float", "bulletins", 0.999)
def test_float16_is_the_same_model():
    pass
