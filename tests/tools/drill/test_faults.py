"""Faults of models: strength 0 changes no bit, the model keeps every bit, and each fault is what its sentence says.

The perplexity of each broken model is compared with that of a loop that has no code of the drill: it copies the model,
breaks it by hand and sums the losses of whole texts.
"""

import copy
import functools
import math
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

from pytest_lmgate.engines.tokenizers import tokenizer_facts
from pytest_lmgate.engines.transformers.blocks import BlockModel, block_list
from pytest_lmgate.errors import ConfigError
from pytest_lmgate.tools.drill.faults import chosen_faults, known_faults
from pytest_lmgate.tools.drill.planting import Fault, NotPlanted
from tests.models import zoo

FAULTS = known_faults()
# An architecture that has what the fault breaks; the others are planted in a Llama.
ARCHITECTURES = {
    "bias": "gpt2",
    "window": "gemma2",
    "no-window": "gemma2",
    "softcap": "gemma2",
    "logit-scale": "cohere",
}
IN_MODELS = [name for name, fault in FAULTS.items() if fault.kind not in ("texts", "data")]
Break = Callable[[Any, float], None]


def texts() -> torch.Tensor:
    return torch.randint(0, zoo.VOCABULARY, (4, 48), generator=torch.Generator().manual_seed(11))


@functools.cache
def _model(architecture: str, *, adapted: bool) -> Any:
    model = zoo.build(architecture, num_hidden_layers=4)
    for key, parameter in model.named_parameters():
        if parameter.ndim == 1:
            torch.nn.init.normal_(parameter, 0.0 if key.endswith("bias") else 1.0, 0.5)
    return (zoo.lora(model, "q_proj", "v_proj") if adapted else model).requires_grad_(False)


def model_for(name: str) -> Any:
    """Return a model whose biases and norms are not those of a new one; tests leave it as it is."""
    return _model(ARCHITECTURES.get(name, "llama"), adapted=name == "base")


def blocks(model: Any) -> BlockModel:
    return block_list(zoo.loaded(model, zoo.word_tokenizer()), "model")


def planted(fault: Fault, model: Any, strength: int) -> Any:
    return fault.planted(blocks(model), tokenizer_facts(zoo.word_tokenizer()), strength).model


def logits(model: Any) -> torch.Tensor:
    with torch.inference_mode():
        found: torch.Tensor = model(input_ids=texts(), use_cache=False).logits
        return found


def perplexity(model: Any) -> float:
    ids, said = texts(), logits(model).double().log_softmax(-1)
    return math.exp(-float(said[:, :-1].gather(-1, ids[:, 1:, None]).mean()))


@pytest.mark.parametrize("name", IN_MODELS)
def test_a_fault_of_strength_0_gives_the_same_bits(name: str) -> None:
    model = model_for(name)
    assert torch.equal(logits(planted(FAULTS[name], model, 0)), logits(model))


@pytest.mark.parametrize("name", IN_MODELS)
def test_the_model_keeps_every_bit_while_its_copy_is_broken(name: str) -> None:
    model, fault = model_for(name), FAULTS[name]
    before, weights = logits(model), {key: value.clone() for key, value in model.state_dict().items()}
    broken = planted(fault, model, len(fault.levels))
    assert not torch.equal(logits(broken), before), "the fault does nothing"
    assert torch.equal(logits(model), before)
    assert all(torch.equal(value, weights[key]) for key, value in model.state_dict().items())


def layers(model: Any) -> Any:
    inner = getattr(model, "base_model", model)
    inner = getattr(inner, "model", inner)
    return inner.h if hasattr(inner, "h") else getattr(inner, "model", inner).layers


def linear(block: Any) -> Iterator[Any]:
    return (module for module in block.modules() if isinstance(module, torch.nn.Linear))


def rounded_to(weight: torch.Tensor, bits: int) -> torch.Tensor:
    rows = []
    for row in weight:
        step = row.abs().max() / (2 ** (bits - 1) - 1)
        rows.append(torch.round(row / step) * step)
    return torch.stack(rows)


def round_block(at: int) -> Break:
    def break_(model: Any, level: float) -> None:
        for layer in linear(layers(model)[at]):
            layer.weight.copy_(rounded_to(layer.weight, int(level)))

    return break_


def narrow(dtype: torch.dtype) -> Break:
    def break_(model: Any, level: float) -> None:
        for block in layers(model)[-math.ceil(4 * level) :]:
            for layer in linear(block):
                scale = layer.weight.abs().max() / torch.finfo(dtype).max if dtype.itemsize == 1 else 1.0
                layer.weight.copy_((layer.weight / scale).to(dtype).float() * scale)

    return break_


def doubled(model: Any, level: float) -> None:
    weight = layers(model)[2].mlp.down_proj.weight
    weight[: math.ceil(level * len(weight))] *= 2


def other_layer(model: Any, level: float) -> None:
    ours, theirs = (layers(model)[at].mlp.gate_proj.weight for at in (2, 1))
    rows = math.ceil(level * len(ours))
    ours[:rows] = theirs[:rows]


def no_biases(model: Any, level: float) -> None:
    for block in layers(model)[-math.ceil(4 * level) :]:
        for key, parameter in block.named_parameters():
            if key.rpartition(".")[2] == "bias":
                parameter.zero_()


def no_norms(model: Any, level: float) -> None:
    for block in layers(model)[-math.ceil(4 * level) :]:
        block.input_layernorm.weight.fill_(1)
        block.post_attention_layernorm.weight.fill_(1)


def less_adapter(model: Any, level: float) -> None:
    for key, parameter in model.named_parameters():
        if "lora_B" in key:
            parameter.mul_(1 - level)


def coarse_activations(model: Any, level: float) -> None:
    most = 2 ** (int(level) - 1) - 1

    def coarse(layer: Any, forward: Any) -> Any:
        def run(states: torch.Tensor) -> torch.Tensor:
            step = states.abs().max(-1, keepdim=True).values / most
            return forward(torch.round(states / step) * step)

        return run

    for block in layers(model):
        for layer in linear(block):
            layer.forward = coarse(layer, layer.forward)


def skipped(model: Any, level: float) -> None:
    del layers(model)[1]  # of 4 blocks, the one of a quarter that is nearest to the middle


def swapped(model: Any, level: float) -> None:
    for block in layers(model)[-math.ceil(4 * level) :]:
        weight = block.self_attn.o_proj.weight
        weight[:, :16] = torch.cat([weight[:, 8:16], weight[:, :8]], 1)


def repeated(model: Any, level: float) -> None:
    for block in layers(model)[-math.ceil(4 * level) :]:
        weight = block.self_attn.o_proj.weight
        weight[:, :8] += weight[:, 8:16]
        weight[:, 8:16] = 0


def rope_base(model: Any, level: float) -> None:
    base = 10_000 / level
    model.model.rotary_emb.inv_freq.copy_(torch.tensor([base ** (-2 * at / 8) for at in range(4)]))


def rope_scaled(model: Any, level: float) -> None:
    model.model.rotary_emb.inv_freq.div_(level)


def moved_on(model: Any, level: float) -> None:
    rotary = model.model.rotary_emb
    forward = rotary.forward

    def run(states: torch.Tensor, position_ids: torch.Tensor) -> Any:
        ids = [at if at < 16 else at + int(level) for at in range(position_ids.shape[1])]
        return forward(states, torch.tensor([ids] * len(position_ids)))

    rotary.forward = run


def configured(**settings: Callable[[float, float], Any]) -> Break:
    def break_(model: Any, level: float) -> None:
        for name, change in settings.items():
            value = change(getattr(model.config, name), level)
            setattr(model.config, name, value)
            for module in model.modules():
                if hasattr(module, name):
                    setattr(module, name, value)

    return break_


BY_HAND: dict[str, Break] = {
    "round-first": round_block(0),
    "round-middle": round_block(2),
    "round-last": round_block(3),
    "scale": doubled,
    "wrong-layer": other_layer,
    "bias": no_biases,
    "norm": no_norms,
    "base": less_adapter,
    "bfloat16": narrow(torch.bfloat16),
    "float16": narrow(torch.float16),
    "fp8-e4m3": narrow(torch.float8_e4m3fn),
    "fp8-e5m2": narrow(torch.float8_e5m2),
    "activations": coarse_activations,
    "skip": skipped,
    "heads-swapped": swapped,
    "heads-repeated": repeated,
    "rope-base": rope_base,
    "rope-scaling": rope_scaled,
    "position": moved_on,
    "window": configured(sliding_window=lambda window, level: int(window * level)),
    "no-window": configured(sliding_window=lambda window, level: int(window * level)),
    "softcap": configured(
        final_logit_softcapping=lambda cap, level: cap * level, attn_logit_softcapping=lambda cap, level: cap * level
    ),
    "logit-scale": configured(logit_scale=lambda scale, level: scale ** (1 - level)),
}


@pytest.mark.parametrize("name", BY_HAND)
def test_the_perplexity_at_the_middle_strength_is_that_of_a_model_broken_by_hand(name: str) -> None:
    fault, model = FAULTS[name], model_for(name)
    strength = (len(fault.levels) + 1) // 2
    by_hand = copy.deepcopy(model)
    with torch.no_grad():
        BY_HAND[name](by_hand, fault.levels[strength - 1])
    healthy, expected = perplexity(model), perplexity(by_hand)
    assert abs(expected / healthy - 1) > 1e-6, "the fault made by hand does nothing"
    assert perplexity(planted(fault, model, strength)) == pytest.approx(expected, rel=1e-5)


def test_noise_is_of_the_size_that_its_level_says_and_the_same_each_time() -> None:
    fault, model = FAULTS["noise"], model_for("noise")
    broken, again = (planted(fault, model, 5) for _ in range(2))
    for ours, theirs, same in zip(linear(layers(broken)), linear(layers(model)), linear(layers(again)), strict=True):
        assert float((ours.weight - theirs.weight).std() / theirs.weight.std()) == pytest.approx(0.2, rel=0.15)
        assert torch.equal(ours.weight, same.weight)


def test_every_fault_in_a_model_is_broken_by_hand_or_has_a_test_of_its_own() -> None:
    assert {*BY_HAND, "noise"} == set(IN_MODELS)


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("base", "no LoRA adapter"),
        ("bias", "no bias with a value of its own"),
        ("window", "no window of attention"),
        ("softcap", "no soft cap"),
        ("logit-scale", "no scale of logits"),
        ("norm", "no norm with a value of its own"),
    ],
)
def test_a_fault_says_what_a_model_lacks(name: str, reason: str) -> None:
    with pytest.raises(NotPlanted, match=reason):
        planted(FAULTS[name], zoo.build("llama"), 1)


def test_weights_that_are_stored_in_a_quantized_form_are_not_rounded() -> None:
    model = zoo.build("llama")
    weight = model.model.layers[0].mlp.up_proj.weight
    model.model.layers[0].mlp.up_proj.weight = torch.nn.Parameter(weight.to(torch.int8), requires_grad=False)
    with pytest.raises(NotPlanted, match="quantized form"):
        planted(FAULTS["round-first"], model, 1)


def test_a_model_of_bfloat16_has_no_digits_to_lose_to_bfloat16() -> None:
    with pytest.raises(NotPlanted, match="no more digits than bfloat16"):
        planted(FAULTS["bfloat16"], zoo.build("llama", dtype=torch.bfloat16), 4)


def test_tied_weights_stay_tied() -> None:
    model = zoo.build("llama", tie_word_embeddings=True)
    broken = planted(FAULTS["noise"], model, 3)
    assert broken.lm_head.weight is broken.model.embed_tokens.weight is model.lm_head.weight


def test_faults_are_chosen_by_name_or_kind_and_a_misspelt_one_is_named_with_the_nearest() -> None:
    assert [fault.name for fault in chosen_faults("skip, answers")] == ["skip", "answers"]
    assert {fault.kind for fault in chosen_faults("texts")} == {"texts"}
    assert len(chosen_faults(None)) == len(FAULTS)
    with pytest.raises(ConfigError, match=r"no fault is called 'skp'.*skip"):
        chosen_faults("skp")
