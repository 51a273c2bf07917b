"""The log-sum-exp over tiles against ``log_softmax`` of whole float64 logits: tile edges, logits of any size."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from pytest_lmgate.backends.hf.likelihood.head import VocabularyHead
from pytest_lmgate.backends.hf.likelihood.streaming import launch_nll
from pytest_lmgate.backends.tiles import TileShape, tile_shape


def streamed_nll(*given: Any) -> torch.Tensor:
    return launch_nll(*given)()


def whole_nll(logits: Tensor, targets: Tensor) -> Tensor:
    return -torch.log_softmax(logits.double(), -1).gather(-1, targets[:, None])[:, 0]


def given_logits(logits: Tensor) -> tuple[Tensor, VocabularyHead]:
    """Return hidden states and a head whose logits are exactly `logits`: unit vectors pick its columns."""
    return torch.eye(len(logits), dtype=logits.dtype), VocabularyHead(logits.t().contiguous(), None, None)


@settings(deadline=None, max_examples=200)
@given(
    positions=st.integers(1, 9),
    vocabulary=st.integers(1, 40),
    tile=st.builds(TileShape, st.integers(1, 10), st.integers(1, 45)),
    spread=st.sampled_from([0.1, 3.0, 40.0, 1000.0]),
    dtype=st.sampled_from([torch.float32, torch.float64]),
    bias=st.booleans(),
    seed=st.integers(0, 10_000),
)
def test_any_tile_gives_the_log_softmax_of_the_whole_logits(
    positions: int, vocabulary: int, tile: TileShape, spread: float, dtype: torch.dtype, bias: bool, seed: int
) -> None:
    torch.manual_seed(seed)
    hidden = torch.randn(positions, 6, dtype=dtype)
    weight = torch.randn(vocabulary, 6, dtype=dtype) * spread
    shift = torch.randn(vocabulary, dtype=dtype) * spread if bias else None
    targets = torch.randint(vocabulary, (positions,))

    nll = streamed_nll(hidden, targets, VocabularyHead(weight, shift, None), tile)

    logits = hidden.double() @ weight.double().t() + (0 if shift is None else shift.double())
    expected = whole_nll(logits, targets)
    rounding = 4 * torch.finfo(dtype).eps * max(1.0, logits.abs().max().item(), expected.max().item())
    assert nll.dtype == torch.float64
    assert nll.shape == (positions,)
    assert (nll - expected).abs().max().item() <= rounding
    assert nll.min() >= -rounding


@pytest.mark.parametrize("size", [0, 1, 511, 512, 513, 1024, 1025])
@pytest.mark.parametrize("vocabulary", [511, 512, 513, 1024, 1025])
def test_every_edge_of_the_tiles_of_a_processor_is_exact(size: int, vocabulary: int) -> None:
    assert tile_shape(torch.device("cpu")) == TileShape(1024, 512)
    torch.manual_seed(size)
    hidden, weight = torch.randn(size, 4, dtype=torch.float64), torch.randn(vocabulary, 4, dtype=torch.float64)
    # The first and last token of every tile are among the targets.
    targets = torch.tensor([0, 510, 511, 512, 513, 1023, 1024, vocabulary - 1]).clamp(max=vocabulary - 1)
    targets = targets.repeat(size // 8 + 1)[:size]

    nll = streamed_nll(hidden, targets, VocabularyHead(weight, None, None))

    torch.testing.assert_close(nll, whole_nll(hidden @ weight.t(), targets), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("gap", [80.0, 87.0, 88.7, 89.0, 120.0, 3000.0])
def test_a_target_far_below_or_above_its_rivals_neither_overflows_nor_vanishes(dtype: torch.dtype, gap: float) -> None:
    below = torch.zeros(1, 10, dtype=dtype)
    below[0, 3] = -gap
    above = torch.zeros(1, 10, dtype=dtype)
    above[0, 3] = gap
    target = torch.tensor([3])

    nll_below = streamed_nll(*_hidden_targets_head(below, target))
    nll_above = streamed_nll(*_hidden_targets_head(above, target))

    assert nll_below.item() == pytest.approx(gap + math.log(9 + math.exp(-gap)), rel=2e-7)
    assert nll_above.item() == pytest.approx(math.log1p(9 * math.exp(-gap)), abs=2e-7)


def _hidden_targets_head(logits: Tensor, targets: Tensor) -> tuple[Tensor, Tensor, VocabularyHead]:
    hidden, head = given_logits(logits)
    return hidden, targets, head


@pytest.mark.parametrize("offset", [-1e4, 1e4])
def test_a_shift_of_all_logits_changes_nothing(offset: float) -> None:
    torch.manual_seed(1)
    logits = torch.randn(5, 30, dtype=torch.float64)
    targets = torch.arange(5)

    plain = streamed_nll(*_hidden_targets_head(logits, targets), TileShape(2, 7))
    shifted = streamed_nll(*_hidden_targets_head(logits + offset, targets), TileShape(2, 7))

    torch.testing.assert_close(shifted, plain, rtol=0, atol=1e-10)


def test_rows_that_overflow_do_not_disturb_their_neighbours() -> None:
    logits = torch.randn(6, 40)
    logits[1, 7] = 500.0
    logits[4, 39] = 1e30
    targets = torch.tensor([0, 1, 2, 3, 4, 5])

    nll = streamed_nll(*_hidden_targets_head(logits, targets), TileShape(4, 16))

    assert nll.tolist() == pytest.approx(whole_nll(logits, targets).tolist(), rel=1e-6)


def test_forbidden_tokens_of_logit_minus_infinity_are_left_out() -> None:
    logits = torch.zeros(2, 20)
    logits[:, 5:] = -torch.inf  # whole tiles of them, the last among these
    head = _Given(logits)

    nll = streamed_nll(torch.eye(2), torch.tensor([0, 4]), head, TileShape(2, 4))

    assert nll.tolist() == pytest.approx([math.log(5)] * 2, rel=1e-6)


def test_a_forbidden_target_has_an_infinite_nll() -> None:
    logits = torch.zeros(1, 20)
    logits[0, 7] = -torch.inf

    assert streamed_nll(torch.eye(1), torch.tensor([7]), _Given(logits), TileShape(2, 4)).item() == math.inf


@pytest.mark.parametrize("bad", [math.nan, math.inf])
@pytest.mark.parametrize("column", [0, 7, 19])
def test_a_logit_that_is_no_number_or_infinite_never_gives_a_finite_nll(bad: float, column: int) -> None:
    logits = torch.randn(3, 20)
    logits[1, column] = bad
    targets = torch.tensor([2, 7, 3])

    nll = streamed_nll(torch.eye(3), targets, _Given(logits), TileShape(2, 4))

    assert nll.isfinite().tolist() == [True, False, True]


class _Given(VocabularyHead):
    """A head with logits that no matrix product of finite numbers gives."""

    def __init__(self, logits: Tensor) -> None:
        object.__setattr__(self, "logits", logits)
        super().__init__(torch.empty(logits.shape[1], logits.shape[0]), None, None)

    def tile(self, hidden: Tensor, begin: int, end: int, buffer: Tensor) -> Tensor:
        return self.logits[hidden.argmax(-1), begin:end].clone()

    def at(self, hidden: Tensor, targets: Tensor) -> Tensor:
        return self.logits[hidden.argmax(-1), targets]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_logits_are_upcast_before_they_are_exponentiated(dtype: torch.dtype) -> None:
    torch.manual_seed(3)
    hidden, weight = torch.randn(20, 8).to(dtype), (torch.randn(600, 8) * 3).to(dtype)
    targets = torch.randint(600, (20,))

    nll = streamed_nll(hidden, targets, VocabularyHead(weight, None, None))

    # The product itself is rounded to the model's dtype, as in the model; nothing after it is.
    torch.testing.assert_close(nll, whole_nll(hidden @ weight.t(), targets), rtol=1e-6, atol=1e-5)


def test_the_logits_are_never_held_whole() -> None:
    sizes: list[int] = []

    class Watched(VocabularyHead):
        def tile(self, hidden: Tensor, begin: int, end: int, buffer: Tensor) -> Tensor:
            sizes.append(buffer.numel())
            return super().tile(hidden, begin, end, buffer)

    head = Watched(torch.randn(1000, 4), None, None)
    streamed_nll(torch.randn(50, 4), torch.arange(50), head, TileShape(16, 64))

    assert len(sizes) == 4 * 16
    assert set(sizes) == {16 * 64}


def test_the_transform_is_applied_to_every_logit_once() -> None:
    torch.manual_seed(4)
    hidden, weight = torch.randn(9, 4, dtype=torch.float64), torch.randn(50, 4, dtype=torch.float64) * 5
    targets = torch.randint(50, (9,))
    head = VocabularyHead(weight, None, lambda logits: logits.div_(3).tanh_().mul_(3))

    nll = streamed_nll(hidden, targets, head, TileShape(4, 16))

    torch.testing.assert_close(nll, whole_nll(3 * torch.tanh(hidden @ weight.t() / 3), targets), rtol=1e-12, atol=0)
