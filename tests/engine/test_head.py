"""Which heads are split off, and which are left to the model: a head that cannot be proven is never used."""

from __future__ import annotations

import types
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize

from pytest_lmgate.backends.hf.likelihood.head import VocabularyHead, capture_hidden, prove_head
from pytest_lmgate.backends.hf.models.loading import quiet
from tests.engine.measuring import measure_nll
from tests.models.zoo import VOCABULARY, build, documents, loaded, naive_nll, sliding

STREAMS = documents(30, 9)
PLAN = sliding(STREAMS, 16, 8)
IDS = torch.from_numpy(STREAMS.ids[0])


def proven(model: Any) -> VocabularyHead | None:
    with torch.inference_mode(), quiet():
        split = prove_head(model, IDS)
    return None if split is None else split[0]


def assert_exact(model: Any) -> None:
    measured = measure_nll(loaded(model), STREAMS, PLAN, dataset="d")
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


@pytest.mark.parametrize(
    "change",
    [
        lambda logits: logits * 1.7,
        lambda logits: logits * 1.001,
        lambda logits: logits + torch.linspace(0, 1, VOCABULARY),
        lambda logits: 30 * torch.tanh(logits / 30),
        lambda logits: logits.masked_fill(torch.arange(VOCABULARY) == 5, -1e9),
        lambda logits: logits.flip(-1),
        lambda logits: logits.clamp(-20, 20),
        lambda logits: torch.log_softmax(logits, -1),
        lambda logits: logits[..., :-4],
    ],
    ids=[
        "scale",
        "scale near one",
        "bias",
        "soft-cap",
        "forbidden token",
        "permutation",
        "clamp",
        "normalization",
        "fewer tokens",
    ],
)
def test_what_a_config_does_not_tell_is_left_to_the_model(change: Callable[[Tensor], Tensor]) -> None:
    model = after_the_head(build("llama"), change)

    assert proven(model) is None
    assert_exact(model)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64])
def test_a_scale_near_one_does_not_pass_for_the_rounding_of_any_precision(dtype: torch.dtype) -> None:
    assert proven(build("llama", dtype=dtype)) is not None
    assert proven(after_the_head(build("llama", dtype=dtype), lambda logits: logits * 1.01)) is None


@pytest.mark.parametrize("cap", [0.5, 3.0, 30.0])
@pytest.mark.parametrize("spread", [1e-3, 4.0])
def test_a_soft_cap_is_found_even_where_the_text_does_not_reach_it(cap: float, spread: float) -> None:
    model = build("gemma2", final_logit_softcapping=cap, spread=spread)

    head = proven(model)

    assert head is not None
    assert head.transform is not None
    assert head.transform(torch.tensor([1000.0])).item() == pytest.approx(cap)
    assert_exact(model)


@pytest.mark.parametrize("name", ["cohere", "granite", "falcon_h1"])
def test_a_scale_is_found(name: str) -> None:
    head = proven(build(name))

    assert head is not None
    assert head.transform is not None


def test_a_scale_and_a_soft_cap_together_are_found_in_their_order() -> None:
    model = build("llama")
    model.config.logits_scaling, model.config.final_logit_softcapping = 4.0, 2.0
    after_the_head(model, lambda logits: 2 * torch.tanh(logits / 4 / 2))

    assert proven(model) is not None
    assert_exact(model)


def test_numbers_of_a_nested_text_config_are_tried_too() -> None:
    model = build("gemma3")
    model.config.text_config.final_logit_softcapping = 2.0
    after_the_head(model, lambda logits: 2 * torch.tanh(logits / 2))

    assert proven(model) is not None
    assert_exact(model)


@pytest.mark.parametrize("name", ["phi", "gptj", "codegen"])
def test_the_bias_of_a_head_is_streamed(name: str) -> None:
    model = build(name)

    head = proven(model)

    assert head is not None
    assert head.bias is not None
    assert head.bias.abs().max() > 1


def lora(model: Any, *targets: str) -> Any:
    import peft

    torch.manual_seed(8)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        adapted = peft.get_peft_model(
            model, peft.LoraConfig(task_type="CAUSAL_LM", r=4, lora_alpha=16, target_modules=list(targets))
        )
    with torch.no_grad():
        for name, parameter in adapted.named_parameters():
            if "lora_B" in name:
                parameter.normal_(0, 0.5)
    return adapted.eval()


def test_an_adapter_on_the_attention_leaves_the_head_streamed() -> None:
    plain = naive_nll(build("llama"), STREAMS, PLAN)
    model = lora(build("llama"), "q_proj", "v_proj")

    assert proven(model) is not None
    assert_exact(model)
    assert abs(naive_nll(model, STREAMS, PLAN) - plain).max() > 0.1


def test_an_adapter_on_the_head_is_left_to_the_model() -> None:
    model = lora(build("llama"), "q_proj", "lm_head")

    assert proven(model) is None
    assert_exact(model)


def test_the_virtual_tokens_of_prompt_tuning_shift_nothing() -> None:
    import peft

    torch.manual_seed(8)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = peft.get_peft_model(
            build("llama"), peft.PromptTuningConfig(task_type="CAUSAL_LM", num_virtual_tokens=5)
        ).eval()

    measured = measure_nll(loaded(model), STREAMS, PLAN, dataset="d")

    expected = []
    prompt = model.get_prompt(batch_size=1)
    for document, begin, end, first in zip(PLAN.document, PLAN.begin, PLAN.end, PLAN.first, strict=True):
        ids = torch.from_numpy(STREAMS.ids[document][begin:end])[None]
        embedded = torch.cat([prompt, model.get_input_embeddings()(ids)], dim=1)
        with torch.no_grad():
            log_p = torch.log_softmax(model.base_model(inputs_embeds=embedded).logits[0].double(), -1)
        expected += [-float(log_p[5 + at - 1 - begin, STREAMS.ids[document][at]]) for at in range(first, end)]
    assert measured == pytest.approx(expected, rel=1e-6, abs=1e-5)


class Int8Linear(nn.Linear):
    """A quantized layer: its `weight` is not what it multiplies with."""

    def forward(self, hidden: Tensor) -> Tensor:
        scale = self.weight.abs().amax(1, keepdim=True) / 7
        return nn.functional.linear(hidden, (self.weight / scale).round() * scale, self.bias)


def test_a_quantized_layer_is_left_to_the_model() -> None:
    model = build("llama")
    model.lm_head.__class__ = Int8Linear

    assert proven(model) is None
    assert_exact(model)


class Int8Weight(Tensor):
    """A weight in a type of its own within a plain linear layer, as torchao makes them."""

    codes: Tensor
    scale: Tensor

    @staticmethod
    def __new__(cls, codes: Tensor, scale: Tensor) -> Int8Weight:
        return Tensor._make_wrapper_subclass(cls, codes.shape, dtype=scale.dtype, requires_grad=False)

    def __init__(self, codes: Tensor, scale: Tensor) -> None:
        self.codes, self.scale = codes, scale

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.ops.aten.detach.default:
            return cls(args[0].codes, args[0].scale)
        plain = [each.codes * each.scale if isinstance(each, cls) else each for each in args]
        return func(*plain, **(kwargs or {}))


def test_a_weight_in_a_type_of_its_own_is_left_to_the_model() -> None:
    model = build("llama")
    weight = model.lm_head.weight.detach()
    scale = weight.abs().amax(1, keepdim=True) / 127
    model.lm_head.weight = nn.Parameter(Int8Weight((weight / scale).round().to(torch.int8), scale), requires_grad=False)
    assert type(model.lm_head) is nn.Linear

    assert proven(model) is None
    assert_exact(model)


def test_a_parametrized_head_is_left_to_the_model() -> None:
    class Doubled(nn.Module):
        def forward(self, weight: Tensor) -> Tensor:
            return 2 * weight

    model = build("llama")
    parametrize.register_parametrization(model.lm_head, "weight", Doubled())

    assert proven(model) is None
    assert_exact(model)


@pytest.mark.parametrize("kind", ["output", "input"])
def test_a_head_with_a_hook_of_the_users_is_left_to_the_model(kind: str) -> None:
    model = build("llama")
    if kind == "output":
        model.lm_head.register_forward_hook(lambda _, __, output: output * 1.5)
    else:
        model.lm_head.register_forward_pre_hook(lambda _, given: (given[0] * 1.5,))

    assert_exact(model)
    if kind == "output":
        assert proven(model) is None


def test_a_head_called_more_than_once_is_left_to_the_model() -> None:
    model = build("llama")
    plain = model.lm_head.forward
    after_the_head(model, lambda logits: logits)
    forward = model.forward

    def twice(**given: Any) -> Any:
        model.lm_head(torch.zeros(1, 2, 32))
        return forward(**given)

    model.forward = twice

    assert proven(model) is None
    assert_exact(model)
    assert model.lm_head.forward == plain


def test_a_head_on_flattened_states_is_left_to_the_model() -> None:
    model = build("llama")

    def forward(self: Any, input_ids: Tensor, use_cache: bool | None = None) -> Any:
        hidden = self.model(input_ids=input_ids, use_cache=False).last_hidden_state
        logits = self.lm_head(hidden.flatten(0, 1)).unflatten(0, hidden.shape[:2])
        return types.SimpleNamespace(logits=logits)

    model.forward = types.MethodType(forward, model)

    assert proven(model) is None
    assert_exact(model)


@pytest.mark.parametrize("error", [AttributeError, NotImplementedError])
def test_a_model_that_does_not_tell_its_head_is_run_as_it_is(error: type[Exception]) -> None:
    model = build("llama")

    def refuse() -> None:
        raise error("no such thing")

    model.get_output_embeddings = refuse

    assert proven(model) is None
    assert_exact(model)


def test_a_model_without_a_head_of_its_own_is_run_as_it_is() -> None:
    """Such a one multiplies by the embeddings itself, and says that it has no head."""
    model = build("llama")
    model.get_output_embeddings = lambda: None

    assert proven(model) is None
    assert_exact(model)


def test_proving_leaves_no_hook_behind() -> None:
    model = build("llama")
    proven(model)

    assert not model.lm_head._forward_hooks
    assert not model.lm_head._forward_pre_hooks


def test_capturing_spares_the_head_its_work_and_gives_its_input() -> None:
    model = build("llama")
    seen: list[torch.Size] = []
    model.lm_head.register_forward_hook(lambda _, __, output: seen.append(output.shape))

    with torch.no_grad(), capture_hidden(model.lm_head) as captured:
        model(input_ids=IDS[None])

    assert [states.shape for states in captured] == [(1, 30, 32)]
    assert seen == [(1, 0, VOCABULARY)]
    assert not model.lm_head._forward_pre_hooks


def test_a_model_whose_logits_are_damaged_is_not_proven() -> None:
    model = build("llama")
    with torch.no_grad():
        model.lm_head.weight[4] = torch.nan

    assert proven(model) is None


def test_the_longest_window_is_what_a_head_is_proven_on(monkeypatch: pytest.MonkeyPatch) -> None:
    lengths: list[int] = []

    def watch(model: Any, ids: Tensor) -> Any:
        lengths.append(len(ids))
        return prove_head(model, ids)

    monkeypatch.setattr("pytest_lmgate.backends.hf.runner.prove_head", watch)
    streams = documents(2, 25, 2)
    measure_nll(loaded(build("gpt2")), streams, sliding(streams, 32, 16), dataset="d")

    assert lengths == [24]
