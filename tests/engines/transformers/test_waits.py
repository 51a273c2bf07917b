"""No device is waited for within a batch: proven on the device `meta`, whose tensors hold no numbers to wait for.

Whatever would read a number of a GPU (``.item()``, ``if tensor:``, ``nonzero``, a mask as an index) raises there. The
waits of transformers itself are left out: at the beginning of a forward pass it looks for packed texts and for padding.
"""

from typing import Any

import numpy as np
import pytest
import torch

from pytest_lmgate.engines.logits import Logits, TileShape, VocabularyHead, streamed_divergence
from pytest_lmgate.engines.transformers import head as head_module
from pytest_lmgate.engines.transformers.head import Scorer, SplitHead, launch_nll
from pytest_lmgate.engines.transformers.loading import LoadedModel
from pytest_lmgate.engines.transformers.runner import TransformersRunner
from pytest_lmgate.windows.requests import Request
from tests.models.zoo import VOCABULARY, build

META = torch.device("meta")
NAMES = ("falcon_h1", "gemma2", "gpt2", "llama", "mixtral")  # hybrid, capped, learnt positions, rotary, experts


def _head(weight: torch.Tensor) -> VocabularyHead:
    return VocabularyHead(weight, None, None)


def _without_waits_of_transformers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("transformers.masking_utils.find_packed_sequence_indices", lambda _: None, raising=False)
    ignored = "transformers.modeling_utils.PreTrainedModel.warn_if_padding_and_no_attention_mask"
    monkeypatch.setattr(ignored, lambda *_: None, raising=False)


@pytest.mark.parametrize("with_head", [True, False], ids=["by the head", "by whole logits"])
@pytest.mark.parametrize("name", NAMES)
def test_a_batch_is_launched_without_a_wait(name: str, with_head: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    model: Any = build(name, dtype=torch.bfloat16).to(META)
    runner = TransformersRunner(LoadedModel(name, model, None, META), None)
    output = model.get_output_embeddings()
    runner._scorer = Scorer(name, SplitHead(_head(output.weight.detach()), output, 0) if with_head else None)
    rows = [np.arange(length) % VOCABULARY for length in (9, 5)]
    _without_waits_of_transformers(monkeypatch)

    with runner.measuring():
        wait = runner.begin([Request(row, np.arange(len(row) - 1), row[1:]) for row in rows])
    with pytest.raises(NotImplementedError, match="meta"):
        wait()


def test_divergences_are_computed_without_a_wait() -> None:
    p, q = (Logits(torch.empty(30, 4, device=META), _head(torch.empty(VOCABULARY, 4, device=META))) for _ in range(2))
    found = streamed_divergence(p, q, torch.arange(30) % VOCABULARY, TileShape(16, 5))
    assert found.shape == (30, 5)


def test_a_device_without_float64_is_asked_for_none(monkeypatch: pytest.MonkeyPatch) -> None:
    """As Apple's GPUs are: they raise where a tensor would be float64."""
    torch.manual_seed(0)
    hidden, other, targets = torch.randn(40, 8), torch.randn(40, 8), torch.arange(40)
    head = _head(torch.randn(90, 8))
    far = head.weight.clone()
    far[3] *= 100  # rows whose sum overflows are done again
    exact = [launch_nll(hidden, targets, each)() for each in (head, _head(far))]
    apart = streamed_divergence(Logits(hidden, head), Logits(other, head), targets)
    monkeypatch.setattr(head_module, "_cpu_block", head_module._accelerator_block)
    for module in ("transformers.head", "logits"):
        monkeypatch.setattr(f"pytest_lmgate.engines.{module}.wide", lambda _: torch.float32)

    with _NoFloat64():
        waits = [launch_nll(hidden, targets, each, TileShape(16, 32)) for each in (head, _head(far))]
        narrow = streamed_divergence(Logits(hidden, head), Logits(other, head), targets, TileShape(16, 32))
    for wait, whole in zip(waits, exact, strict=True):
        torch.testing.assert_close(wait(), whole, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(narrow.double(), apart, rtol=1e-4, atol=1e-5)


class _NoFloat64(torch.utils._python_dispatch.TorchDispatchMode):
    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        found = function(*args, **(kwargs or {}))
        for each in found if isinstance(found, tuple | list) else [found]:
            assert not isinstance(each, torch.Tensor) or each.dtype != torch.float64, function
        return found
