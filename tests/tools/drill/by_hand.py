"""Models of transformers with 4 blocks that are broken by hand, without code of the drill."""

import copy
import math
from collections.abc import Callable, Iterator
from typing import Any

import torch

Break = Callable[[Any, float], None]


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


def rounded_sums(model: Any, level: float) -> None:
    """Sum in steps of so many products; no layer of the model has a bias."""

    def stepwise(layer: Any) -> Any:
        def run(states: torch.Tensor) -> torch.Tensor:
            total = torch.zeros(*states.shape[:-1], len(layer.weight), dtype=torch.bfloat16)
            for begin in range(0, states.shape[-1], int(level)):
                part = states[..., begin : begin + int(level)] @ layer.weight[:, begin : begin + int(level)].T
                total = (total.float() + part).to(torch.bfloat16)
            return total.float()

        return run

    for block in layers(model):
        for layer in linear(block):
            layer.forward = stepwise(layer)


def round_worst(model: Any, level: float) -> None:
    """Find by trial the block that moves 32 tokens most when it is rounded to 4 bits."""
    ids, moved = torch.arange(32)[None], []
    said = model(input_ids=ids).logits.double().log_softmax(-1)
    for at in range(4):
        trial = copy.deepcopy(model)
        round_block(at)(trial, 4)
        theirs = trial(input_ids=ids).logits.double().log_softmax(-1)
        moved.append(float((said.exp() * (said - theirs)).sum()))
    round_block(moved.index(max(moved)))(model, level)


def untied(model: Any, level: float) -> None:
    weight = model.lm_head.weight
    rows = math.ceil(level * len(weight))
    own = torch.randn(rows, weight.shape[1], generator=torch.Generator().manual_seed(1234)) * weight.std()
    model.lm_head.weight = torch.nn.Parameter(torch.cat([own, weight[rows:]]), requires_grad=False)


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
    "round-sensitive": round_worst,
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
    "sums": rounded_sums,
    "skip": skipped,
    "untied": untied,
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
