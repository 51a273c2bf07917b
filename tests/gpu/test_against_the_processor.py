"""What a GPU measures is what the processor measures in float32, within what the dtype rounds.

`make test-gpu` runs these tests on CUDA, and skips them loudly where there is none. LMGATE_TEST_DEVICE=cpu runs them on
the processor, which proves the tests and nothing about a GPU.
"""

import copy
import os
from typing import Any

import numpy as np
import pytest
import torch

from pytest_lmgate.engines.tokenizers import quiet
from pytest_lmgate.engines.transformers.loading import LoadedModel
from pytest_lmgate.engines.transformers.runner import TransformersRunner
from pytest_lmgate.settings.gate_options import GenerationSettings
from pytest_lmgate.windows.requests import window_requests
from tests.engines.transformers.measuring import (
    generate_texts,
    measure_conditional_nll,
    measure_divergence,
    measure_nll,
    measure_pseudo_nll,
    pair_of,
)
from tests.engines.transformers.test_conditional import pairs_of
from tests.engines.transformers.test_masked import TEXTS, pieces_of
from tests.engines.transformers.writing import PROMPTS
from tests.models.encoders import encoder_decoder, framed_tokenizer, masked
from tests.models.zoo import ARCHITECTURES, build, documents, loaded, sliding, word_tokenizer

DEVICE = torch.device(os.environ.get("LMGATE_TEST_DEVICE", "cuda"))
STREAMS = documents(300, 41, 7)
# Mean change of a token's NLL in nats that is rounding; float32 on a GPU sums in another order.
ROUNDING = {torch.float32: 1e-4, torch.bfloat16: 0.1, torch.float16: 0.02}

if DEVICE.type == "cuda" and not torch.cuda.is_available():
    pytest.skip("no GPU: numbers on CUDA are NOT checked", allow_module_level=True)


def there(model: Any, tokenizer: Any = None, dtype: torch.dtype = torch.float32) -> LoadedModel:
    """Return a copy of a model on the device."""
    return LoadedModel(type(model).__name__, copy.deepcopy(model).to(DEVICE, dtype), tokenizer, DEVICE)


def agree(found: Any, expected: Any, dtype: torch.dtype = torch.float32) -> None:
    """Check that NLLs differ by rounding."""
    assert np.isfinite(found).all()
    assert np.abs(np.asarray(found) - np.asarray(expected)).mean() <= ROUNDING[dtype]


HALVED = ["falcon_h1", "gemma2", "gpt2", "llama", "mixtral"]


@pytest.mark.parametrize(
    ("name", "dtype"),
    [(name, dtype) for dtype in ROUNDING for name in (ARCHITECTURES if dtype == torch.float32 else HALVED)],
)
def test_windows_of_every_architecture_and_of_some_in_half_precision(name: str, dtype: torch.dtype) -> None:
    plan, model = sliding(STREAMS, 32, 16), build(name)
    agree(measure_nll(there(model, dtype=dtype), STREAMS, plan), measure_nll(loaded(model), STREAMS, plan), dtype)


@pytest.mark.parametrize("side_by_side", [True, False])
@pytest.mark.parametrize("dtype", ROUNDING)
def test_divergences_in_memory_and_by_way_of_the_disk(side_by_side: bool, dtype: torch.dtype) -> None:
    p, q, plan = build("llama"), build("gpt2"), sliding(STREAMS, 32, 16)
    expected = measure_divergence(pair_of(loaded(p), loaded(q)), STREAMS, plan)
    moved = pair_of(there(p, dtype=dtype), there(q, dtype=dtype), side_by_side=side_by_side)
    agree(measure_divergence(moved, STREAMS, plan)[:, 0], expected[:, 0], dtype)


@pytest.mark.parametrize("dtype", ROUNDING)
def test_masked_tokens(dtype: torch.dtype) -> None:
    model, tokenizer, pieces = masked("bert"), framed_tokenizer("</s> $A </s>", mask=True), pieces_of(TEXTS)
    expected = measure_pseudo_nll(loaded(model, tokenizer), pieces)
    agree(measure_pseudo_nll(there(model, tokenizer, dtype), pieces), expected, dtype)


@pytest.mark.parametrize("dtype", ROUNDING)
def test_targets_of_an_encoder_decoder(dtype: torch.dtype) -> None:
    model = encoder_decoder("t5")
    pairs = pairs_of(model)
    expected = measure_conditional_nll(loaded(model, framed_tokenizer()), pairs)
    agree(measure_conditional_nll(there(model, framed_tokenizer(), dtype), pairs), expected, dtype)


@pytest.mark.parametrize("how", [{}, {"num_beams": 3}, {"temperature": 0.8, "seed": 3}])
def test_texts(how: dict[str, Any]) -> None:
    model, tokenizer, settings = build("llama"), word_tokenizer(), GenerationSettings(max_new_tokens=8, **how)
    expected, found = (
        generate_texts(on, PROMPTS, settings, dataset="rows", context=128)
        for on in (loaded(model, tokenizer), there(model, tokenizer))
    )
    # A tie that rounds otherwise changes a text from there on.
    assert sum(one == other for one, other in zip(found, expected, strict=True)) >= len(PROMPTS) - 1


@pytest.mark.skipif(DEVICE.type != "cuda", reason="the processor's memory is tested in tests/measure")
def test_a_batch_too_large_for_the_gpu_is_halved_and_gives_the_same_numbers() -> None:
    streams = documents(*[2000] * 64)
    plan, moved = sliding(streams, 100, 50), there(build("llama"))
    expected = measure_nll(moved, streams, plan)
    torch.cuda.empty_cache()
    total = torch.cuda.mem_get_info(DEVICE)[1]
    try:
        torch.cuda.set_per_process_memory_fraction((torch.cuda.memory_reserved(DEVICE) + 2**26) / total)
        agree(measure_nll(moved, streams, plan, batch_size=100_000), expected)
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0)


@pytest.mark.skipif(DEVICE.type != "cuda", reason="tests/engines/transformers/test_waits proves it without a GPU")
def test_the_gpu_is_waited_for_at_the_end_of_a_batch_only(monkeypatch: pytest.MonkeyPatch) -> None:
    plan, runner = sliding(STREAMS, 32, 16), TransformersRunner(there(build("llama")), None)
    requests = window_requests(STREAMS, plan, "d")
    monkeypatch.setattr("transformers.masking_utils.find_packed_sequence_indices", lambda _: None)
    with runner.measuring(), quiet():
        runner.prepare(requests)
        some = [requests.make(int(index)) for index in requests.order[:4]]
        torch.cuda.set_sync_debug_mode("error")
        try:
            wait = runner.begin(some)
        finally:
            torch.cuda.set_sync_debug_mode("default")
        assert len(wait()) == 4
