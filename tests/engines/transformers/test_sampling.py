"""Samples depend on the seed and the row's number alone, and follow the distribution that was asked for."""

import pytest
import torch

from tests.engines.transformers.writing import PROMPTS, TOKENIZER, subject, written
from tests.models.zoo import build, words


@pytest.mark.parametrize("name", ["llama", "t5"])
def test_a_sample_does_not_depend_on_the_batch(name: str) -> None:
    model, tokenizer = subject(name)
    how = {"seed": 3, "temperature": 1.3, "top_k": 40, "top_p": 0.95}
    first = written(model, tokenizer, PROMPTS, batch_size=1, **how)
    assert all(written(model, tokenizer, PROMPTS, batch_size=size, **how) == first for size in (3, "auto"))


def test_sampling_leaves_the_generator_of_torch_as_it_was() -> None:
    llama = build("llama")
    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    written(llama, TOKENIZER, PROMPTS, seed=3, temperature=1.0)
    assert torch.equal(torch.rand(3), expected)


def test_nothing_is_cut_off_unless_said() -> None:
    """generate's own default keeps the 50 most likely tokens only."""
    flat = build("llama", spread=1e-3)
    texts = written(flat, TOKENIZER, ["w9"] * 50, max_new_tokens=40, seed=1, temperature=1.0)
    assert {word for text in texts for word in text.split()} >= set(words())
