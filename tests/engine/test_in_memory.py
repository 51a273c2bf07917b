"""A model made in memory: whatever changes a number changes its ingredients, or is named as unknown."""

from __future__ import annotations

import copy
import functools
import io
import math
import random
import re
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

from pytest_lmgate.backends.hf.models.in_memory import describe_pair
from tests.engine.measuring import measure_nll
from tests.models.zoo import build, documents, dynamic_int8, loaded, sliding, word_tokenizer, words

TOKENIZER = word_tokenizer()


def identity(model: Any, tokenizer: Any = TOKENIZER) -> dict[str, str]:
    """Ingredients of a model that is known whole."""
    ingredients, unknown = describe_pair(loaded(model, tokenizer))
    assert unknown == []
    return ingredients


def unknown(model: Any, tokenizer: Any = TOKENIZER) -> list[str]:
    """Why a model's measurements may not be kept."""
    return describe_pair(loaded(model, tokenizer))[1]


def changed(before: dict[str, str], after: dict[str, str]) -> list[str]:
    assert before.keys() == after.keys()
    return [key for key in before if before[key] != after[key]]


@pytest.mark.parametrize("name", ["bloom", "falcon_h1", "gpt2", "jamba", "llama", "mamba", "mixtral", "opt"])
def test_the_same_model_made_again_and_measured_has_the_same_identity(name: str) -> None:
    first = build(name)
    before = identity(first)
    streams = documents(30)
    measure_nll(loaded(first), streams, sliding(streams, 16, 8), dataset="d")

    assert identity(first) == identity(build(name)) == before


def test_where_a_model_was_loaded_from_is_no_part_of_it(tmp_path: Any) -> None:
    identities = []
    for folder in (tmp_path / "a", tmp_path / "b"):
        build("llama").save_pretrained(folder)
        TOKENIZER.save_pretrained(folder)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            model = transformers.AutoModelForCausalLM.from_pretrained(folder)
            identities.append(identity(model, transformers.AutoTokenizer.from_pretrained(folder)))

    assert identities[0] == identities[1]


def test_training_or_not_is_no_part_of_a_model() -> None:
    assert identity(build("llama").train()) == identity(build("llama"))


def _one_weight(model: Any) -> None:
    with torch.no_grad():
        model.model.layers[1].mlp.up_proj.weight[3, 4] += 1e-6


def _one_buffer(model: Any) -> None:
    model.model.rotary_emb.inv_freq[1] *= 1.0001


def _two_swapped(model: Any) -> None:
    layers = model.model.layers
    layers[0].mlp.up_proj.weight, layers[1].mlp.up_proj.weight = (
        layers[1].mlp.up_proj.weight,
        layers[0].mlp.up_proj.weight,
    )


def _activation(model: Any) -> None:
    model.model.layers[0].mlp.act_fn = nn.GELU()


def _attribute(model: Any) -> None:
    model.model.layers[0].self_attn.scaling *= 2


def _config(model: Any) -> None:
    model.config.rms_norm_eps = 0.1


def _attention(model: Any) -> None:
    model.set_attn_implementation("eager")


def _hook(model: Any) -> None:
    model.model.layers[0].register_forward_hook(lambda module, given, output: output)


def _method(model: Any) -> None:
    plain = model.forward
    model.forward = types.MethodType(lambda self, **given: plain(**given), model)


def _tensor(model: Any) -> None:
    model.model.layers[0].self_attn.scaling = torch.tensor(0.5)


def _scalar(model: Any) -> None:
    model.model.layers[0].self_attn.scaling = np.float32(0.5)


def _inner_config(model: Any) -> None:
    model.model.layers[1].self_attn.config = transformers.LlamaConfig(attention_dropout=0.5)


def _hook_with_kwargs(model: Any) -> None:
    model.model.layers[0].register_forward_hook(lambda module, given, named, output: output, with_kwargs=True)


def _pre_hook(model: Any) -> None:
    model.model.layers[0].register_forward_pre_hook(lambda module, given: given)


@pytest.mark.parametrize(
    ("change", "where"),
    [
        (_tensor, ["memory.modules"]),
        (_scalar, ["memory.modules"]),
        (_inner_config, ["memory.modules"]),
        (_one_weight, ["memory.weights"]),
        (_one_buffer, ["memory.weights"]),
        (_two_swapped, ["memory.weights"]),
        (lambda model: model.to(torch.bfloat16), ["memory.weights"]),
        (_activation, ["memory.modules"]),
        (_attribute, ["memory.modules"]),
        (_config, ["memory.modules"]),
        (_attention, ["memory.modules"]),
    ],
)
def test_whatever_can_change_a_number_changes_the_identity(change: Callable[[Any], None], where: list[str]) -> None:
    model = build("llama")
    before = identity(model)

    change(model)

    assert changed(before, identity(model)) == where


def _wrapped_method(model: Any) -> None:
    model.model.norm.forward = functools.wraps(model.model.norm.forward)(lambda hidden: hidden)


def _library_function_as_method(model: Any) -> None:
    model.model.norm.forward = torch.relu


def _own_object(model: Any) -> None:
    model.model.settings = types.SimpleNamespace(lock=threading.Lock())


def _own_activation(model: Any) -> None:
    model.model.layers[0].mlp.act_fn = Scale(2.0)


def _function_in_an_attribute(model: Any) -> None:
    model.model.layers[0].mlp.act_fn = None
    del model.model.layers[0].mlp.act_fn
    model.model.layers[0].mlp.act_fn = lambda x: x


def _config_of_ones_own(model: Any) -> None:
    class Config(transformers.LlamaConfig):
        pass

    model.config = Config(**model.config.to_dict())


def _own_tensor(model: Any) -> None:
    model.model.extra = Wrapper(torch.arange(4, dtype=torch.int8), 0.5)


def _forged(model: Any) -> None:
    kind = type(
        "LlamaRMSNorm", (nn.Module,), {"__module__": type(model.model.norm).__module__, "forward": lambda s, x: x}
    )
    model.model.norm = kind()


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (_hook, "model.layers.0 has forward hooks"),
        (_hook_with_kwargs, "model.layers.0 has forward hooks"),
        (_pre_hook, "model.layers.0 has forward hooks"),
        (_method, "the model has its method forward replaced"),
        (_wrapped_method, "model.norm has its method forward replaced"),
        (_library_function_as_method, "model.norm has its method forward replaced"),
        (_own_object, "model.settings is a types.SimpleNamespace, whose content"),
        (_own_activation, "model.layers.0.mlp.act_fn is tests."),
        (_function_in_an_attribute, "model.layers.0.mlp.act_fn is tests."),
        (_config_of_ones_own, "the model.config is tests."),
        (_own_tensor, "model.extra is tests."),
        (_forged, "model.norm is transformers.models.llama.modeling_llama.LlamaRMSNorm, "),
        (lambda model: setattr(model.model, "x", torch.zeros(3, device="meta")), "model.x is a tensor without content"),
        (lambda model: setattr(model.model, "x", torch.Generator()), "model.x is a torch._C.Generator, whose content"),
        (lambda model: setattr(model.model, "x", io.BytesIO(b"a")), "model.x is a _io.BytesIO, whose content"),
        (lambda model: setattr(model.model, "x", random.Random(1)), "model.x is a random.Random, whose content"),
    ],
)
def test_code_and_objects_that_no_library_defines_are_named(change: Callable[[Any], None], reason: str) -> None:
    model = build("llama")
    change(model)
    assert any(reason in each for each in unknown(model)), unknown(model)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (re.compile("a"), re.compile("b")),
        (re.compile("a"), re.compile("a", re.IGNORECASE)),
        (re.compile(b"a"), re.compile(b"b")),
        ({"a": 1}.get, {"a": 2}.get),
        (functools.partial(math.pow, 2), functools.partial(math.pow, 3)),
    ],
    ids=["pattern", "flags", "bytes", "method", "partial"],
)
def test_objects_of_python_are_known_by_what_they_hold(one: Any, other: Any) -> None:
    def held(value: Any) -> dict[str, str]:
        model = build("llama")
        model.model.x = value
        return identity(model)

    assert held(one) == held(copy.deepcopy(one))
    assert changed(held(one), held(other)) == ["memory.modules"]


def test_another_adapter_another_strength_or_none_is_another_model() -> None:
    import peft

    torch.manual_seed(1)
    found = []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        settings = {"task_type": "CAUSAL_LM", "r": 2, "target_modules": ["q_proj"], "init_lora_weights": False}
        model = peft.get_peft_model(build("llama"), peft.LoraConfig(**settings), adapter_name="a")
        model.add_adapter("b", peft.LoraConfig(**settings))
        for name in ("a", "b"):
            model.set_adapter(name)
            found.append(identity(model))
        for module in model.modules():
            if isinstance(module, peft.tuners.lora.LoraLayer):
                module.set_scale("b", 3.0)
        found.append(identity(model))
        with model.disable_adapter():
            found.append(identity(model))

    assert len({tuple(each.values()) for each in found}) == 4


def test_a_tensor_on_a_librarys_module_is_known_by_its_content() -> None:
    def held(factor: float) -> dict[str, str]:
        model = build("llama")
        model.model.layers[0].self_attn.scaling = torch.tensor(factor)
        return identity(model)

    assert held(0.5) == held(0.5)
    assert changed(held(0.5), held(0.25)) == ["memory.modules"]


class Scale(nn.Module):
    """A module of the user's, in place of one of the library's."""

    def __init__(self, factor: float) -> None:
        super().__init__()
        self.vector = torch.full((32,), factor)  # neither parameter nor buffer

    def forward(self, hidden: Tensor) -> Tensor:
        return hidden * self.vector


def test_quantized_weights_are_known_by_their_codes_and_scales() -> None:
    class Packed(nn.Module):
        """Keeps its codes in a buffer and its scale where only saving looks, as some quantizers do."""

        def __init__(self, scale: float) -> None:
            super().__init__()
            self.register_buffer("codes", torch.arange(12, dtype=torch.int8).view(3, 4))
            self.__dict__["_state"] = types.SimpleNamespace(scale=torch.tensor(scale))

        def _save_to_state_dict(self, destination: Any, prefix: str, keep_vars: bool) -> None:
            super()._save_to_state_dict(destination, prefix, keep_vars)
            destination[prefix + "scale"] = self._state.scale

    def weights(scale: float) -> str:
        model = build("llama")
        model.extra = Packed(scale)
        return describe_pair(loaded(model, TOKENIZER))[0]["memory.weights"]

    assert weights(0.5) == weights(0.5) != weights(0.25)


def test_a_model_that_torch_quantized_is_known_by_the_weights_that_it_would_save() -> None:
    def weights(change: Callable[[Any], None] = lambda model: None) -> str:
        model = build("llama")
        change(model)
        return describe_pair(loaded(dynamic_int8(model), TOKENIZER))[0]["memory.weights"]

    def shifted(model: Any) -> None:
        with torch.no_grad():
            model.model.layers[1].mlp.up_proj.weight[3, 4] += 1

    assert weights() == weights() != weights(shifted)


def digest(tensor: Tensor) -> str:
    """Digest of a tensor that a module holds."""
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


def test_dtype_and_shape_are_part_of_a_tensor() -> None:
    zeros = [torch.zeros(4), torch.zeros(2, 2), torch.zeros(4, dtype=torch.int32), torch.zeros(16, dtype=torch.uint8)]

    assert len({digest(each) for each in zeros}) == 4


class Wrapper(Tensor):
    """A tensor made of others, as torchao's."""

    @staticmethod
    def __new__(cls, codes: Tensor, scale: float) -> Wrapper:
        return Tensor._make_wrapper_subclass(cls, codes.shape, dtype=torch.float32)

    def __init__(self, codes: Tensor, scale: float) -> None:
        self.codes, self.scale = codes, scale

    def __tensor_flatten__(self) -> tuple[list[str], dict[str, float]]:
        return ["codes"], {"scale": self.scale}

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        raise NotImplementedError(func)


def test_a_wrapped_tensor_is_known_by_what_it_wraps() -> None:
    codes = torch.arange(4, dtype=torch.int8)

    assert digest(Wrapper(codes, 0.5)) == digest(Wrapper(codes.clone(), 0.5))
    assert digest(Wrapper(codes, 0.5)) != digest(Wrapper(codes + 1, 0.5))
    assert digest(Wrapper(codes, 0.5)) != digest(Wrapper(codes, 0.25))


# Tokenizers.


def test_padding_and_truncation_of_a_call_are_no_part_of_a_tokenizer() -> None:
    tokenizer = word_tokenizer()
    before = identity(build("gpt2"), tokenizer)

    tokenizer([words()[0], " ".join(words()[:5])], padding=True, truncation=True, max_length=3)

    assert identity(build("gpt2"), tokenizer) == before


@pytest.mark.parametrize(
    "other",
    [
        word_tokenizer(words()[::-1]),
        word_tokenizer(words()[:-1]),
        word_tokenizer(adds_bos=True),
    ],
)
def test_another_vocabulary_or_special_token_is_another_tokenizer(other: Any) -> None:
    assert changed(identity(build("gpt2")), identity(build("gpt2"), other)) == ["memory.tokenizer"]


def test_a_pipeline_made_of_a_pair_leaves_its_identity() -> None:
    model, tokenizer = build("llama"), word_tokenizer()
    before = identity(model, tokenizer)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        transformers.pipeline("text-generation", model=model, tokenizer=tokenizer)

    assert identity(model, tokenizer) == before


class Cutting(transformers.PreTrainedTokenizerFast):
    """A fast tokenizer with an attribute of the user's own."""

    keep = 0

    def __call__(self, text: Any, *args: Any, **kwargs: Any) -> Any:
        return super().__call__(text[: self.keep] if self.keep else text, *args, **kwargs)


def _cutting(keep: int = 0) -> Any:
    tokenizer = Cutting(tokenizer_object=TOKENIZER.backend_tokenizer, pad_token="<pad>")
    tokenizer.keep = keep
    return tokenizer


def _replaced_method(factor: int) -> Any:
    tokenizer = word_tokenizer()
    plain = tokenizer._encode_plus
    tokenizer._encode_plus = lambda text, *args, **kwargs: plain(text[:factor], *args, **kwargs)
    return tokenizer


def _spaces(cleaned: int) -> Any:
    tokenizer = word_tokenizer()
    tokenizer.clean_up_tokenization_spaces = bool(cleaned)
    return tokenizer


@pytest.mark.parametrize("made", [_cutting, _replaced_method])
def test_a_tokenizer_with_code_of_the_users_is_named(made: Callable[[int], Any]) -> None:
    assert any("the tokenizer" in each for each in unknown(build("gpt2"), made(1)))


def test_whatever_a_fast_tokenizer_holds_beside_its_backend_is_part_of_it() -> None:
    model = build("gpt2")
    used = _spaces(1)
    used("a b c", padding="max_length", truncation=True, max_length=3)

    assert identity(model, _spaces(1)) == identity(model, used)
    assert changed(identity(model, _spaces(1)), identity(model, _spaces(0))) == ["memory.tokenizer"]


def test_another_name_for_a_special_token_is_another_tokenizer() -> None:
    other = word_tokenizer()
    other.bos_token = "</s>"

    assert changed(identity(build("gpt2")), identity(build("gpt2"), other)) == ["memory.tokenizer"]


class Bytes:
    """A tokenizer of the user's own."""

    def __init__(self, offset: int) -> None:
        self.offset = offset

    def __call__(self, text: str, add_special_tokens: bool = True) -> dict[str, list[int]]:
        return {"input_ids": [byte + self.offset for byte in text.encode()]}


def test_a_tokenizer_of_the_users_own_is_named() -> None:
    (reason,) = unknown(build("gpt2"), Bytes(0))
    assert reason.startswith("the tokenizer is tests.")
    assert reason.endswith("Bytes, which no installed library defines")


def _python_tokenizer(words: str = "abc") -> Any:
    """A tokenizer of the library's that is written in Python."""
    return transformers.ByT5Tokenizer(extra_ids=0, additional_special_tokens=list(words))


def test_a_librarys_tokenizer_in_python_is_known_by_all_it_holds() -> None:
    model = build("gpt2")
    used = _python_tokenizer()
    used("a b c", add_special_tokens=False)
    added = _python_tokenizer()
    added.add_tokens([transformers.AddedToken("a b")])

    assert identity(model, used) == identity(model, _python_tokenizer())
    assert changed(identity(model, used), identity(model, added)) == ["memory.tokenizer"]
    assert changed(identity(model, used), identity(model, _python_tokenizer("xyz"))) == ["memory.tokenizer"]


def test_an_adapted_model_has_the_same_identity_when_made_again_and_a_compiled_one_is_named() -> None:
    import peft

    def adapted() -> Any:
        torch.manual_seed(1)
        return peft.get_peft_model(build("llama"), peft.LoraConfig(task_type="CAUSAL_LM", r=2))

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert identity(adapted()) == identity(adapted())
        assert unknown(torch.compile(build("llama")))
