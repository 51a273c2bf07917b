"""Samples depend on the seed and the row's number alone, and follow the distribution that was asked for."""

from typing import Any

import pytest
import torch
import transformers

from tests.engines.transformers.writing import PROMPTS, TOKENIZER, subject, written
from tests.models.zoo import build, words


@pytest.fixture(scope="module")
def llama() -> Any:
    return build("llama", spread=2.0)


@pytest.mark.parametrize("name", ["llama", "t5"])
def test_a_sample_does_not_depend_on_the_batch(name: str) -> None:
    model, tokenizer = subject(name)
    how = {"seed": 3, "temperature": 1.3, "top_k": 40, "top_p": 0.95}
    first = written(model, tokenizer, PROMPTS, batch_size=1, **how)
    assert all(written(model, tokenizer, PROMPTS, batch_size=size, **how) == first for size in (3, "auto"))


def test_sampling_leaves_the_generator_of_torch_as_it_was(llama: Any) -> None:
    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    written(llama, TOKENIZER, PROMPTS, seed=3, temperature=1.0)
    assert torch.equal(torch.rand(3), expected)


class Dice(transformers.PreTrainedModel, transformers.GenerationMixin):  # type: ignore[misc]
    """Throws the same dice at every step, whatever it reads: the words w0 to w5."""

    config_class = transformers.GPT2Config
    main_input_name = "input_ids"

    def __init__(self, probabilities: list[float]) -> None:
        super().__init__(transformers.GPT2Config(vocab_size=97, n_layer=1, n_head=1, n_embd=4))
        logits = torch.full((97,), -torch.inf)
        logits[4 : 4 + len(probabilities)] = torch.tensor(probabilities).log()
        self.logits = torch.nn.Parameter(logits)

    def prepare_inputs_for_generation(self, input_ids: Any, **_: Any) -> dict[str, Any]:
        return {"input_ids": input_ids}

    def forward(self, input_ids: Any = None, **_: Any) -> Any:
        logits = self.logits.expand(*input_ids.shape, -1)
        return transformers.modeling_outputs.CausalLMOutput(logits=logits)


def test_nothing_is_cut_off_unless_said() -> None:
    # generate's own default keeps the 50 most likely tokens only.
    texts = written(
        Dice([1 / 93] * 93), TOKENIZER, ["w9"] * 50, max_new_tokens=40, seed=1, temperature=1.0, context=None
    )
    assert {word for text in texts for word in text.split()} == set(words())
