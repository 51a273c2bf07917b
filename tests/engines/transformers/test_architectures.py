"""Exactness on every architecture of the zoo: against the model's own logits, one window at a time, in float64."""

from typing import Any

import numpy as np
import pytest
import torch

from pytest_lmgate.engines.tokenizers import quiet
from pytest_lmgate.engines.transformers.head import prove_head
from pytest_lmgate.engines.transformers.runner import TransformersRunner
from tests.engines.transformers.measuring import measure_nll
from tests.engines.transformers.test_beginnings import few_shot, measured
from tests.models.zoo import ARCHITECTURES, build, documents, loaded, naive_nll, sliding, word_tokenizer

STREAMS = documents(41, 7, 62, 2)
PLAN = sliding(STREAMS, 32, 16)
# Recurrent layers keep a state instead of keys and values, so that nothing of a beginning is shared.
RECURRENT = {"falcon_h1", "jamba", "mamba", "mamba2", "recurrent_gemma", "rwkv"}


def proven(model: Any) -> Any:
    with torch.inference_mode(), quiet():
        return prove_head(model, torch.from_numpy(STREAMS.ids[0]))


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_nlls_by_the_head_are_the_log_softmax_of_the_models_own_logits_in_any_batch(name: str) -> None:
    model = build(name)
    head, module, _ = proven(model)
    assert module is model.get_output_embeddings()
    assert head.vocabulary_size == model.get_input_embeddings().weight.shape[0]

    one, many = (measure_nll(loaded(model), STREAMS, PLAN, batch_size=size) for size in (1, 16))

    # Mamba's scan adds up in another order on some processors: 1.2e-5 of a token's NLL was seen with AVX-512.
    room = 2e-5 if name in ("mamba", "mamba2") else 1e-5
    assert one == pytest.approx(naive_nll(model, STREAMS, PLAN), rel=0, abs=room)
    assert many == pytest.approx(one, rel=room, abs=room)
    assert many.mean() == pytest.approx(one.mean(), rel=1e-6)

    # Texts that begin alike: the beginning is read once where its keys and values can be kept.
    runner = TransformersRunner(loaded(model), None)
    np.testing.assert_allclose(measured(runner, 4)[1], naive_nll(model, *few_shot(4)), rtol=2e-5, atol=2e-5)
    assert (runner._beginnings is None) == (name in RECURRENT)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("name", ["falcon_h1", "gemma2", "phi"])
def test_half_precision_heads_are_streamed_within_their_rounding(name: str, dtype: torch.dtype) -> None:
    model = build(name, dtype=dtype)
    found, expected = measure_nll(loaded(model), STREAMS, PLAN, batch_size=1), naive_nll(model, STREAMS, PLAN)
    assert proven(model) is not None
    assert found.dtype == np.float32
    # Two roundings of the target's logit and of its rivals'.
    assert np.abs(found - expected).max() <= 4 * torch.finfo(dtype).eps * max(expected.max(), 8)
    assert found.mean() == pytest.approx(expected.mean(), rel=2e-3)


@pytest.mark.parametrize("name", ["gemma2", "gpt2"])
def test_tied_heads_are_streamed(name: str) -> None:
    model = build(name, tie_word_embeddings=True)
    assert model.get_output_embeddings().weight is model.get_input_embeddings().weight
    assert measure_nll(loaded(model), STREAMS, PLAN) == pytest.approx(naive_nll(model, STREAMS, PLAN), rel=0, abs=1e-5)
    assert proven(model) is not None


def test_the_tokenizers_padding_side_does_not_matter() -> None:
    model, tokenizer, found = build("llama"), word_tokenizer(), list[Any]()
    for tokenizer.padding_side in ("left", "right"):
        found.append(measure_nll(loaded(model, tokenizer), STREAMS, PLAN))
    assert (found[0] == found[1]).all()
