"""A model that sees a token before it is asked for it is refused, however little further it looks."""

from typing import Any

import pytest
import torch
import transformers

from pytest_lmgate.engines.tokenizers import quiet
from pytest_lmgate.errors import ModelError
from tests.engines.transformers.measuring import prove_causal
from tests.models.looking_ahead import LookingAhead
from tests.models.zoo import ARCHITECTURES, VOCABULARY, build, dynamic_int8

MASKS = {"1 ahead": {"ahead": 1}, "8 ahead": {"ahead": 8}, "prefix of 2": {"prefix": 2}, "blocks of 4": {"block": 4}}


def fresh(name: str) -> Any:
    """As its library initialises it: attention has little weight, so that a token ahead changes little."""
    known = {"vocab_size": VOCABULARY, "bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0}
    torch.manual_seed(0)
    with quiet():
        config = transformers.AutoConfig.for_model(name, **(known | ARCHITECTURES[name]))
        return transformers.AutoModelForCausalLM.from_config(config).eval()


@pytest.mark.parametrize(
    ("name", "mask"),
    [*(("llama", mask) for mask in MASKS), ("gpt2", "prefix of 2")],
)
def test_a_fresh_model_that_looks_ahead_is_refused(name: str, mask: str) -> None:
    for model in (fresh(name).to(torch.bfloat16), build(name)):
        prove_causal(LookingAhead(model))
        with pytest.raises(ModelError, match=r"depends on the tokens after it.*attention mask looks ahead"):
            prove_causal(LookingAhead(model, **MASKS[mask]))


@pytest.mark.parametrize("name", ["gpt_neox", "llama", "mixtral", "phi"])
def test_dynamically_quantized_models_are_accepted(name: str) -> None:
    for model in (fresh(name), build(name)):
        prove_causal(dynamic_int8(model))
