"""Which heads are split off, and which are left to the model: a head that cannot be proven is never used."""

from __future__ import annotations

import math
import types
from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from pytest_lmgate.engines.logits import TileShape
from pytest_lmgate.engines.tokenizers import quiet
from pytest_lmgate.engines.transformers import head
from pytest_lmgate.engines.transformers.head import VocabularyHead, inputs_of, launch_nll, logits_of, prove_head
from pytest_lmgate.errors import EngineError, ModelError
from tests.engines.transformers.measuring import measure_nll, prove_causal
from tests.models.zoo import VOCABULARY, Int8Weight, build, documents, loaded, lora, naive_nll, sliding

STREAMS = documents(30, 9)
PLAN = sliding(STREAMS, 16, 8)
IDS = torch.from_numpy(STREAMS.ids[0])


def proven(model: Any) -> VocabularyHead | None:
    with torch.inference_mode(), quiet():
        split = prove_head(model, IDS)
    return None if split is None else split[0]


def assert_exact(model: Any) -> None:
    measured = measure_nll(loaded(model), STREAMS, PLAN)
    assert measured == pytest.approx(naive_nll(model, STREAMS, PLAN), rel=0, abs=1e-5)


def after_the_head(model: Any, change: Callable[[Tensor], Tensor]) -> Any:
    """Let a model change its logits by code that its config knows nothing of."""
    plain = model.forward

    def forward(self: Any, **given: Any) -> Any:
        output = plain(**given)
        output.logits = change(output.logits)
        return output

    model.forward = types.MethodType(forward, model)
    return model


CHANGES: dict[str, Callable[[Tensor], Tensor]] = {
    "scale": lambda logits: logits * 1.7,
    "scale near one": lambda logits: logits * 1.001,
    "bias": lambda logits: logits + torch.linspace(0, 1, VOCABULARY),
    "soft-cap": lambda logits: 30 * torch.tanh(logits / 30),
    "forbidden token": lambda logits: logits.masked_fill(torch.arange(VOCABULARY) == 5, -1e9),
    "permutation": lambda logits: logits.flip(-1),
    "normalization": lambda logits: torch.log_softmax(logits, -1),
    "fewer tokens": lambda logits: logits[..., :-4],
}


@pytest.mark.parametrize("name", CHANGES)
def test_what_a_config_does_not_tell_is_left_to_the_model(name: str) -> None:
    model = after_the_head(build("llama"), CHANGES[name])

    assert proven(model) is None
    assert_exact(model)


@pytest.mark.parametrize(("cap", "spread"), [(0.5, 4.0), (30.0, 1e-3)])
def test_a_soft_cap_is_found_even_where_the_text_does_not_reach_it(cap: float, spread: float) -> None:
    model = build("gemma2", final_logit_softcapping=cap, spread=spread)
    assert proven(model).transform(torch.tensor([1000.0])).item() == pytest.approx(cap)
    assert_exact(model)


def test_a_scale_and_a_soft_cap_together_are_found_in_their_order() -> None:
    model = build("llama")
    model.config.logits_scaling, model.config.final_logit_softcapping = 4.0, 2.0
    after_the_head(model, lambda logits: 2 * torch.tanh(logits / 4 / 2))
    assert proven(model) is not None
    assert_exact(model)


def test_an_adapter_on_the_attention_leaves_the_head_streamed() -> None:
    model = lora(build("llama"), "q_proj", "v_proj")
    assert proven(model) is not None
    assert_exact(model)
    assert abs(naive_nll(model, STREAMS, PLAN) - naive_nll(build("llama"), STREAMS, PLAN)).max() > 0.1


def test_the_virtual_tokens_of_prompt_tuning_shift_nothing() -> None:
    import peft

    torch.manual_seed(8)
    with quiet():
        how = peft.PromptTuningConfig(task_type="CAUSAL_LM", num_virtual_tokens=5)
        model = peft.get_peft_model(build("llama"), how).eval()
    assert_exact(model)  # whose logits begin with those of the virtual tokens
    assert abs(naive_nll(model, STREAMS, PLAN) - naive_nll(build("llama"), STREAMS, PLAN)).max() > 0.1


def own_weight(model: Any) -> None:
    model.lm_head.weight = nn.Parameter(Int8Weight.of(model.lm_head.weight), requires_grad=False)
    assert type(model.lm_head) is nn.Linear


def called_twice(model: Any) -> None:
    plain = model.forward

    def forward(**given: Any) -> Any:
        model.lm_head(torch.zeros(1, 2, 32))
        return plain(**given)

    model.forward = forward


def flattened(model: Any) -> None:
    def forward(self: Any, input_ids: Tensor, use_cache: bool | None = None) -> Any:
        hidden = self.model(input_ids=input_ids, use_cache=False).last_hidden_state
        logits = self.lm_head(hidden.flatten(0, 1)).unflatten(0, hidden.shape[:2])
        return types.SimpleNamespace(logits=logits)

    model.forward = types.MethodType(forward, model)


def not_told(model: Any) -> None:
    def refuse() -> None:
        raise NotImplementedError

    model.get_output_embeddings = refuse


LEFT_TO_THE_MODEL: dict[str, Callable[[Any], object]] = {
    "adapter on the head": lambda model: lora(model, "q_proj", "lm_head"),
    "weight in a type of its own": own_weight,
    "hook of the user's": lambda model: (
        model.lm_head.register_forward_hook(lambda _, __, output: output * 1.5) and None
    ),
    "called twice": called_twice,
    "on flattened states": flattened,
    "not told": not_told,
    "none": lambda model: setattr(model, "get_output_embeddings", lambda: None),
}


@pytest.mark.parametrize("name", LEFT_TO_THE_MODEL)
def test_a_head_that_is_no_plain_linear_layer_or_not_told_is_left_to_the_model(name: str) -> None:
    plain = build("llama")
    model = LEFT_TO_THE_MODEL[name](plain) or plain

    assert proven(model) is None
    assert_exact(model)


# The log-sum-exp over tiles against ``log_softmax`` of whole float64 logits: tile edges, logits of any size.


def streamed_nll(*given: Any, block: Callable[..., Tensor] = head._cpu_block) -> Tensor:
    """Return the NLLs as the kind of device computes them that has this block."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(head, "_cpu_block", block)
        return launch_nll(*given)()


both_blocks = pytest.mark.parametrize("block", [head._cpu_block, head._accelerator_block], ids=["cpu", "accelerator"])


def whole_nll(logits: Tensor, targets: Tensor) -> Tensor:
    return -torch.log_softmax(logits.double(), -1).gather(-1, targets[:, None])[:, 0]


class _Given(VocabularyHead):
    """A head that gives these logits for unit vectors, also those that no product of finite numbers is."""

    def __init__(self, logits: Tensor) -> None:
        object.__setattr__(self, "logits", logits)
        super().__init__(torch.empty(logits.shape[1], logits.shape[0]), None, None)

    def tile(self, hidden: Tensor, begin: int, end: int, buffer: Tensor) -> Tensor:
        return self.logits[hidden.argmax(-1), begin:end].clone()

    def at(self, hidden: Tensor, targets: Tensor) -> Tensor:
        return self.logits[hidden.argmax(-1), targets]


@both_blocks
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
    block: Callable[..., Tensor],
    positions: int,
    vocabulary: int,
    tile: TileShape,
    spread: float,
    dtype: torch.dtype,
    bias: bool,
    seed: int,
) -> None:
    torch.manual_seed(seed)
    hidden = torch.randn(positions, 6, dtype=dtype)
    weight = torch.randn(vocabulary, 6, dtype=dtype) * spread
    shift = torch.randn(vocabulary, dtype=dtype) * spread if bias else None
    targets = torch.randint(vocabulary, (positions,))

    nll = streamed_nll(hidden, targets, VocabularyHead(weight, shift, None), tile, block=block)

    logits = hidden.double() @ weight.double().t() + (0 if shift is None else shift.double())
    expected = whole_nll(logits, targets)
    rounding = 4 * torch.finfo(dtype).eps * max(1.0, logits.abs().max().item(), expected.max().item())
    assert nll.dtype == torch.float64
    assert nll.shape == (positions,)
    assert (nll - expected).abs().max().item() <= rounding
    assert nll.min() >= -rounding


@both_blocks
def test_a_target_far_below_or_above_its_rivals_neither_overflows_nor_vanishes(block: Callable[..., Tensor]) -> None:
    for gap in (80.0, 87.0, 88.7, 89.0, 120.0, 3000.0):
        logits = torch.zeros(2, 10)
        logits[0, 3], logits[1, 3] = -gap, gap
        below, above = streamed_nll(torch.eye(2), torch.tensor([3, 3]), _Given(logits), block=block).tolist()
        assert below == pytest.approx(gap + math.log(9 + math.exp(-gap)), rel=2e-7)
        assert above == pytest.approx(math.log1p(9 * math.exp(-gap)), abs=2e-7)


@both_blocks
@pytest.mark.parametrize(
    "changes",
    [
        [(1, 7, 500.0)],  # rows that overflow do not disturb their neighbours
        [(0, 19, 1e30)],
        [(0, slice(5, None), -math.inf), (1, slice(9, None), -math.inf)],  # whole tiles, the last among these
        [(2, slice(0, 8), -math.inf), (2, 12, 500.0)],  # or the first, before others overflow
        [(1, 7, -math.inf)],  # the target itself
        *[[(1, column, bad)] for column in (0, 7, 19) for bad in (math.nan, math.inf)],
    ],
)
def test_logits_of_any_size_have_the_log_softmax_of_the_whole(changes: list[Any], block: Callable[..., Tensor]) -> None:
    logits, targets = torch.randn(3, 20), torch.tensor([2, 7, 13])
    for row, columns, value in changes:
        logits[row, columns] = value

    nll = streamed_nll(torch.eye(3), targets, _Given(logits), TileShape(2, 4), block=block)
    expected = whole_nll(logits, targets)

    finite = expected.isfinite()
    assert nll.isfinite().tolist() == finite.tolist()
    assert nll[finite].tolist() == pytest.approx(expected[finite].tolist(), rel=1e-6)
    assert ((expected != math.inf) | (nll == math.inf)).all()


@both_blocks
def test_the_logits_are_never_held_whole(block: Callable[..., Tensor]) -> None:
    sizes: list[int] = []

    class Watched(VocabularyHead):
        def tile(self, hidden: Tensor, begin: int, end: int, buffer: Tensor) -> Tensor:
            sizes.append(buffer.numel())
            return super().tile(hidden, begin, end, buffer)

    watched = Watched(torch.randn(1000, 4), None, None)
    streamed_nll(torch.randn(50, 4), torch.arange(50), watched, TileShape(16, 64), block=block)

    assert len(sizes) == 4 * 16
    assert set(sizes) == {16 * 64}


# What is required of a model: that it is causal, and gives logits for the tokens it was given.


ROW = torch.from_numpy(documents(30).ids[0])


class Unigram(nn.Module):
    """Knows nothing of the context; its logits differ by rounding from batch to batch."""

    def __init__(self, noise: float) -> None:
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, 4)
        self.noise = noise

    def get_input_embeddings(self) -> nn.Module:
        return self.embedding

    def forward(self, input_ids: Tensor) -> Tensor:
        logits = torch.linspace(-3, 3, VOCABULARY).expand(*input_ids.shape, VOCABULARY)
        return logits + self.noise * torch.randn(logits.shape)


def test_a_module_without_context_that_takes_token_ids_only_and_returns_a_tensor_is_a_model() -> None:
    prove_causal(Unigram(1e-7))
    expected = -torch.log_softmax(torch.linspace(-3, 3, VOCABULARY).double(), 0)[STREAMS.ids[1][1:]]
    found = measure_nll(loaded(Unigram(0)), STREAMS, PLAN)
    assert found[-len(expected) :] == pytest.approx(expected.numpy(), rel=1e-6)


def test_forbidden_tokens_do_not_hide_that_a_model_is_not_causal() -> None:
    sizes = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4}
    model = build("bert", **sizes)
    with torch.no_grad():
        model.get_output_embeddings().bias[:8] = torch.tensor([-torch.inf, torch.finfo(torch.float32).min]).repeat(4)
    with pytest.raises(ModelError, match="depends on the tokens after it"):
        prove_causal(model)


def test_a_model_that_returns_a_tuple_gives_its_logits_first() -> None:
    model = build("openai-gpt", n_embd=32, n_layer=2, n_head=4, n_positions=64)
    expected = logits_of(model, ROW[None])
    model.config.return_dict = False
    assert isinstance(model(**inputs_of(model, ROW[None])), tuple)

    assert torch.equal(logits_of(model, ROW[None]), expected)


@pytest.mark.parametrize(
    ("output", "message"),
    [
        (types.SimpleNamespace(), "got SimpleNamespace without them"),
        (types.SimpleNamespace(logits=None), "got SimpleNamespace without them"),
        (torch.zeros(1, 29, 7), r"expected logits of shape \[1, 30, vocabulary\] of Stub, got \[1, 29, 7\]"),
        (torch.zeros(2, 30, 7), r"got \[2, 30, 7\]"),
        (torch.zeros(1, 7), r"got \[1, 7\]"),
    ],
)
def test_anything_but_logits_for_every_token_is_an_error(output: Any, message: str) -> None:
    class Stub(nn.Module):
        def forward(self, input_ids: Tensor) -> Any:
            return output

    with pytest.raises(EngineError, match=message):
        logits_of(Stub(), ROW[None])


@both_blocks
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_logits_are_upcast_before_they_are_exponentiated(
    dtype: torch.dtype, block: Callable[..., Tensor]
) -> None:
    torch.manual_seed(3)
    hidden, weight = torch.randn(20, 8).to(dtype), (torch.randn(600, 8) * 3).to(dtype)
    targets = torch.randint(600, (20,))

    nll = streamed_nll(hidden, targets, VocabularyHead(weight, None, None), block=block)

    # The product itself is rounded to the model's dtype, as in the model; nothing after it is.
    torch.testing.assert_close(nll, whole_nll(hidden @ weight.t(), targets), rtol=1e-6, atol=1e-5)
