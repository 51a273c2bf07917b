"""A model made in memory: whatever changes a number changes its ingredients, or is named as unknown."""

from __future__ import annotations

import copy
import functools
import operator
import threading
import types
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from torch import Tensor, nn

from pytest_lmgate.engines.tokenizers import quiet
from pytest_lmgate.engines.transformers.loading import describe_pair
from tests.engines.transformers.measuring import measure_nll
from tests.models.zoo import Int8Weight, build, documents, dynamic_int8, loaded, lora, sliding, word_tokenizer, words

TOKENIZER = word_tokenizer()


def identity(model: Any, tokenizer: Any = TOKENIZER) -> dict[str, str]:
    """Ingredients of a model that is known whole."""
    ingredients, unknown = describe_pair(loaded(model, tokenizer))
    assert unknown == []
    return ingredients


def unknown(model: Any, tokenizer: Any = TOKENIZER) -> list[str]:
    return describe_pair(loaded(model, tokenizer))[1]


def changed(before: dict[str, str], after: dict[str, str]) -> list[str]:
    assert before.keys() == after.keys()
    return [key for key in before if before[key] != after[key]]


@pytest.mark.parametrize("name", ["falcon_h1", "gpt2", "mixtral"])
def test_the_same_model_made_again_and_measured_has_the_same_identity(name: str) -> None:
    first, streams = build(name), documents(30)
    before = identity(first)
    measure_nll(loaded(first), streams, sliding(streams, 16, 8))
    assert identity(first) == identity(build(name)) == before


def test_neither_the_folder_that_a_model_was_loaded_from_nor_a_pipeline_made_of_it_is_part_of_it(tmp_path: Any) -> None:
    identities = []
    for folder in (tmp_path / "a", tmp_path / "b"):
        build("llama").save_pretrained(folder)
        TOKENIZER.save_pretrained(folder)
        with quiet():
            model = transformers.AutoModelForCausalLM.from_pretrained(folder)
            tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
            identities.append(identity(model, tokenizer))
            transformers.pipeline("text-generation", model=model, tokenizer=tokenizer)
        identities.append(identity(model, tokenizer))
    assert identities == identities[:1] * 4


def _weight(add: float = 1e-6) -> Callable[[Any], None]:
    def change(model: Any) -> None:
        with torch.no_grad():
            model.model.layers[1].mlp.up_proj.weight[3, 4] += add

    return change


def _two_swapped(model: Any) -> None:
    one, other = (layer.mlp.up_proj for layer in model.model.layers)
    one.weight, other.weight = other.weight, one.weight


def _set(path: str, value: Callable[[Any], Any]) -> Callable[[Any], None]:
    """Return a function that puts something of its present value into an attribute of a model."""
    where, _, name = path.rpartition(".")

    def change(model: Any) -> None:
        owner = operator.attrgetter(where)(model) if where else model
        setattr(owner, name, value(getattr(owner, name, None)))

    return change


LAYER = "model.layers.0"
SCALING, ACTIVATION = f"{LAYER}.self_attn.scaling", f"{LAYER}.mlp.act_fn"


@pytest.mark.parametrize(
    ("change", "where"),
    [
        (_set(SCALING, lambda _: torch.tensor(0.5)), "memory.weights"),
        (_set(SCALING, lambda _: np.float32(0.5)), "memory.modules"),
        (_weight(), "memory.weights"),
        (_set("model.rotary_emb.inv_freq", lambda each: each * 1.0001), "memory.weights"),
        (_two_swapped, "memory.weights"),
        (lambda model: model.to(torch.bfloat16), "memory.weights"),
        (_set(ACTIVATION, lambda _: nn.GELU()), "memory.modules"),
        (_set("model.norm.forward", lambda _: nn.functional.silu), "memory.modules"),
        (_set("config.rms_norm_eps", lambda _: 0.1), "memory.modules"),
        (lambda model: model.set_attn_implementation("eager"), "memory.modules"),
    ],
)
def test_whatever_can_change_a_number_changes_the_identity(change: Callable[[Any], None], where: str) -> None:
    model = build("llama")
    before = identity(model)

    change(model)

    assert where in changed(before, identity(model))


def _forged(norm: nn.Module) -> nn.Module:
    names = {"__module__": type(norm).__module__, "forward": lambda s, x: x}
    return type("LlamaRMSNorm", (nn.Module,), names)()  # type: ignore[no-any-return]


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda model: model.model.layers[0].register_forward_hook(lambda *_: None), ".<lambda>"),
        (_set("model.norm.forward", lambda plain: functools.wraps(plain)(lambda hidden: hidden)), "RMSNorm.forward"),
        (_set("model.settings", lambda _: types.SimpleNamespace(lock=threading.Lock())), "_thread.lock, which cannot"),
        (_set(ACTIVATION, lambda _: Scale(2.0)), "test_in_memory.Scale"),
        (_set("model.norm", _forged), "modeling_llama.LlamaRMSNorm, which no installed library"),
        (_set("model.x", lambda _: torch.zeros(3, device="meta")), "cannot be hashed: "),
        (_set("model.x", lambda _: (loop := []).append(loop) or loop), "cannot be hashed: "),
    ],
)
def test_code_and_objects_that_no_library_defines_are_named(change: Callable[[Any], None], reason: str) -> None:
    model = build("llama")
    change(model)
    assert any(each.startswith("the model has ") and reason in each for each in unknown(model)), unknown(model)


def test_the_rest_of_a_model_with_code_of_the_users_still_counts() -> None:
    def digests(factor: float, shift: float = 0.0) -> dict[str, str]:
        model = build("llama")
        model.model.settings = [threading.Lock(), factor]
        model.model.norm = Scale(2.0)
        _weight(shift)(model)
        return describe_pair(loaded(model, TOKENIZER))[0]

    assert digests(1.0) == digests(1.0)
    assert changed(digests(1.0), digests(2.0)) == ["memory.modules"]
    assert changed(digests(1.0), digests(1.0, shift=1e-3)) == ["memory.weights"]


def test_another_adapter_another_strength_or_none_is_another_model() -> None:
    import peft

    assert identity(lora(build("llama"), "q_proj")) == identity(lora(build("llama"), "q_proj"))
    with quiet():
        settings = {"task_type": "CAUSAL_LM", "r": 2, "target_modules": ["q_proj"], "init_lora_weights": False}
        model = peft.get_peft_model(build("llama"), peft.LoraConfig(**settings), adapter_name="a")
        model.add_adapter("b", peft.LoraConfig(**settings))
        found = [identity(model)]
        model.set_adapter("b")
        found.append(identity(model))
        for module in model.modules():
            if isinstance(module, peft.tuners.lora.LoraLayer):
                module.set_scale("b", 3.0)
        found.append(identity(model))
        with model.disable_adapter():
            found.append(identity(model))
    assert len({tuple(each.values()) for each in found}) == 4


def test_a_compiled_model_is_named() -> None:
    compiled = build("llama")
    with warnings.catch_warnings(action="ignore"):
        compiled.compile()
        assert unknown(torch.compile(build("llama")))
        assert unknown(compiled)


def test_a_model_that_torch_quantized_is_known_by_its_weights() -> None:
    def quantized(shift: float = 0) -> dict[str, str]:
        model = build("llama")
        _weight(shift)(model)
        return identity(dynamic_int8(model))

    assert quantized() == quantized()
    assert "memory.weights" in changed(quantized(), quantized(shift=1))


class Scale(nn.Module):
    def __init__(self, factor: float) -> None:
        super().__init__()
        self.vector = torch.full((32,), factor)  # neither parameter nor buffer

    def forward(self, hidden: Tensor) -> Tensor:
        return hidden * self.vector


def digest(tensor: Tensor) -> str:
    module = nn.Module()
    module.held = tensor
    parts, _ = describe_pair(loaded(module, TOKENIZER))
    return parts["memory.weights"] + parts["memory.modules"]


@pytest.mark.parametrize(
    "tensor",
    [
        torch.tensor(3.5),
        torch.tensor([True, False]),
        torch.zeros(0, 4),
        torch.arange(6, dtype=torch.bfloat16).view(2, 3).t(),
        torch.arange(4).to(torch.float8_e4m3fn),
        torch.tensor([1 + 2j]),
        torch.arange(6.0).view(2, 3).to_sparse(),
        nn.Parameter(torch.arange(3.0)),
    ],
    ids=["scalar", "bool", "empty", "transposed", "float8", "complex", "sparse", "parameter"],
)
def test_tensors_of_every_kind_are_known_by_their_content(tensor: Tensor) -> None:
    assert digest(tensor) == digest(copy.deepcopy(tensor))
    # Another content of the same dtype, shape and layout.
    other = torch.zeros(tensor.shape).to(tensor.dtype)
    assert tensor.numel() == 0 or digest(tensor) != digest(other.to_sparse() if tensor.is_sparse else other)


def test_a_wrapped_tensor_is_known_by_what_it_wraps() -> None:
    codes, scale = torch.arange(4, dtype=torch.int8), torch.tensor(0.5)

    assert digest(Int8Weight(codes, scale)) == digest(Int8Weight(codes.clone(), scale.clone()))
    assert digest(Int8Weight(codes, scale)) != digest(Int8Weight(codes + 1, scale))
    assert digest(Int8Weight(codes, scale)) != digest(Int8Weight(codes, scale / 2))


def _in_python(words: str = "abc", added: str = "") -> Any:
    """A tokenizer of the library's that is written in Python, and has been used."""
    tokenizer = transformers.ByT5Tokenizer(extra_ids=0, additional_special_tokens=list(words))
    tokenizer("a b c", add_special_tokens=False)
    tokenizer.add_tokens([transformers.AddedToken(added)] if added else [])
    return tokenizer


@pytest.mark.parametrize(
    ("one", "others"),
    [
        (word_tokenizer, [word_tokenizer(words()[::-1]), word_tokenizer(words()[:-1]), word_tokenizer(adds_bos=True)]),
        (_in_python, [_in_python(added="a b"), _in_python("xyz")]),
    ],
)
def test_another_vocabulary_or_special_token_is_another_tokenizer(one: Callable[[], Any], others: list[Any]) -> None:
    model = build("gpt2")
    assert identity(model, one()) == identity(model, one())
    for other in others:
        assert changed(identity(model, one()), identity(model, other)) == ["memory.tokenizer"]


class Cutting(transformers.PreTrainedTokenizerFast):
    """A fast tokenizer with a method of the user's own."""

    def __call__(self, text: Any, *args: Any, **kwargs: Any) -> Any:
        return super().__call__(text[:1], *args, **kwargs)


def _replaced_method() -> Any:
    tokenizer = word_tokenizer()
    tokenizer._encode_plus = lambda *args, plain=tokenizer._encode_plus, **kwargs: plain(*args, **kwargs)
    return tokenizer


def _bytes(text: str, add_special_tokens: bool = True) -> dict[str, list[int]]:
    return {"input_ids": list(text.encode())}


@pytest.mark.parametrize(
    "tokenizer", [Cutting(tokenizer_object=TOKENIZER.backend_tokenizer, pad_token="<pad>"), _replaced_method(), _bytes]
)
def test_a_tokenizer_with_code_of_the_users_is_named(tokenizer: Any) -> None:
    assert any("the tokenizer" in each for each in unknown(build("gpt2"), tokenizer))
