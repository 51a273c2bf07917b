"""The identity of a model made in memory: whatever changes a number changes it, and nothing else does."""

from __future__ import annotations

import copy
import functools
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

from pytest_lmgate.engine.identity import digest
from pytest_lmgate.engine.in_memory import digest_pair
from pytest_lmgate.engine.likelihood import measure_nll
from tests.models.zoo import build, documents, loaded, sliding, word_tokenizer, words

TOKENIZER = word_tokenizer()


def identity(model: Any, tokenizer: Any = TOKENIZER) -> dict[str, str]:
    return digest_pair(loaded(model, tokenizer))


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
        (_tensor, ["model.structure", "model.code"]),
        (_scalar, ["model.structure", "model.code"]),
        (_inner_config, ["model.config"]),
        (_hook_with_kwargs, ["model.code"]),
        (_pre_hook, ["model.code"]),
        (_one_weight, ["model.weights"]),
        (_one_buffer, ["model.weights"]),
        (_two_swapped, ["model.weights"]),
        (lambda model: model.to(torch.bfloat16), ["model.weights"]),
        (_activation, ["model.structure", "model.code"]),
        (_attribute, ["model.structure"]),
        (_config, ["model.config"]),
        (_attention, ["model.config"]),
        (_hook, ["model.code"]),
        (_method, ["model.code"]),
    ],
)
def test_whatever_can_change_a_number_changes_the_identity(change: Callable[[Any], None], where: list[str]) -> None:
    model = build("llama")
    before = identity(model)

    change(model)

    assert changed(before, identity(model)) == where


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


def test_an_inner_models_config_is_part_of_the_outer_one() -> None:
    class Outer(nn.Module):
        def __init__(self, cap: float) -> None:
            super().__init__()
            self.inner = build("gemma2")
            self.inner.config.final_logit_softcapping = cap

    assert identity(Outer(30.0)) == identity(Outer(30.0))
    assert changed(identity(Outer(30.0)), identity(Outer(1.0))) == ["model.config"]


def test_the_number_that_a_hook_got_is_no_part_of_a_model() -> None:
    def hooked() -> dict[str, str]:
        model = build("llama")
        model.model.norm.register_forward_hook(functools.partial(steering, torch.ones(32)), with_kwargs=True)
        return identity(model)

    assert hooked() == hooked()


def test_a_tensor_on_a_librarys_module_is_known_by_its_content() -> None:
    def held(factor: float) -> dict[str, str]:
        model = build("llama")
        model.model.layers[0].self_attn.scaling = torch.tensor(factor)
        return identity(model)

    assert held(0.5) == held(0.5)
    assert changed(held(0.5), held(0.25)) == ["model.code"]


def test_what_objects_around_a_model_hold_of_it_is_not_read_again() -> None:
    model = build("llama")
    model.own_forward = model.forward  # a method's object is the model

    assert identity(model) == identity(model)
    assert digest(model.own_forward, {"model": model}) != digest(model.own_forward, {})


def test_a_compiled_and_an_adapted_model_have_the_same_identity_when_made_again() -> None:
    import peft

    def adapted() -> Any:
        torch.manual_seed(1)
        return peft.get_peft_model(build("llama"), peft.LoraConfig(task_type="CAUSAL_LM", r=2))

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert identity(adapted()) == identity(adapted())
        assert identity(torch.compile(build("llama"))) == identity(torch.compile(build("llama")))


class Scale(nn.Module):
    """A module of the user's, in place of one of the library's."""

    def __init__(self, factor: float) -> None:
        super().__init__()
        self.vector = torch.full((32,), factor)  # neither parameter nor buffer

    def forward(self, hidden: Tensor) -> Tensor:
        return strange(hidden) * self.vector


def strange(hidden: Tensor) -> Tensor:
    return hidden + 1


def with_scale(factor: float = 2.0) -> Any:
    model = build("llama")
    model.model.norm = Scale(factor)
    return model


def test_the_users_own_modules_are_known_by_their_code_and_all_they_hold(monkeypatch: pytest.MonkeyPatch) -> None:
    before = identity(with_scale())
    assert identity(with_scale()) == before

    assert changed(before, identity(with_scale(2.5))) == ["model.code"]

    with monkeypatch.context() as patch:
        patch.setattr(Scale, "forward", lambda self, hidden: hidden * self.vector)
        assert changed(before, identity(with_scale())) == ["model.code"]

    # What its code calls is part of it too.
    monkeypatch.setitem(globals(), "strange", lambda hidden: hidden + 2)
    assert changed(before, identity(with_scale())) == ["model.code"]


def steering(vector: Tensor) -> Callable[..., Tensor]:
    return lambda module, given, output: output + vector


def test_a_hook_is_known_by_its_code_and_what_it_closes_over() -> None:
    def steered(vector: Tensor) -> dict[str, str]:
        model = build("llama")
        model.model.norm.register_forward_hook(steering(vector))
        return identity(model)

    assert steered(torch.ones(32)) == steered(torch.ones(32))
    assert changed(steered(torch.ones(32)), steered(torch.ones(32) * 2)) == ["model.code"]


def _scaled(forward: Callable[..., Any], factor: float) -> Callable[..., Any]:
    @functools.wraps(forward)  # which makes it say that it comes from where `forward` does
    def scaled(*args: Any, **kwargs: Any) -> Any:
        output = forward(*args, **kwargs)
        output.logits = output.logits * factor
        return output

    return scaled


def test_code_that_passes_for_a_librarys_is_known_by_what_it_does(monkeypatch: pytest.MonkeyPatch) -> None:
    def on_the_instance(factor: float) -> dict[str, str]:
        model = build("llama")
        model.forward = _scaled(model.forward, factor)
        return identity(model)

    made_before = build("llama")
    plain = type(made_before).forward

    def on_the_class(factor: float) -> dict[str, str]:
        monkeypatch.setattr(type(made_before), "forward", _scaled(plain, factor))
        return identity(made_before)

    def beside_the_class(factor: float) -> dict[str, str]:
        monkeypatch.setattr("transformers.models.llama.modeling_llama.rotate_half", lambda x: x * factor)
        return identity(made_before)

    for made in (on_the_instance, on_the_class, beside_the_class):
        assert made(0.5) == made(0.5)
        assert changed(made(0.5), made(0.25)) == ["model.code"]


def test_a_librarys_decorator_hides_no_code_of_ones_own() -> None:
    def own(factor: float) -> Callable[..., Any]:
        return torch.no_grad()(lambda x: x * factor)

    assert digest(own(0.5)) == digest(own(0.5)) != digest(own(0.25))


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
        return identity(model)["model.weights"]

    assert weights(0.5) == weights(0.5) != weights(0.25)


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


class Refusing:
    """An object that cannot be looked at."""

    def __reduce_ex__(self, protocol: Any) -> Any:
        raise ValueError("no")

    def __repr__(self) -> str:
        raise ValueError("no")


UNKNOWN = {
    "a tensor on no device": torch.zeros(3, device="meta"),
    "a lock": threading.Lock(),
    "a generator": (number for number in range(3)),
    "an object that refuses": Refusing(),
    "one within others": {"a": [types.SimpleNamespace(b=threading.Lock())]},
    "a set of such": {Refusing()},
    "a ufunc of one's own": np.frompyfunc(lambda x: x, 1, 1),
    "what is nested too deeply": functools.reduce(lambda inner, _: [inner], range(100_000), []),
}


@pytest.mark.parametrize("what", UNKNOWN)
def test_what_cannot_be_known_is_never_the_same_again(what: str) -> None:
    assert digest(UNKNOWN[what]) != digest(UNKNOWN[what])


def test_collections_are_known_by_their_content_and_cycles_end() -> None:
    assert digest({"a": {"x", "y"}, "b": [1, (2.0, None)]}) == digest({"a": {"y", "x"}, "b": [1, (2.0, None)]})
    assert digest({"a": 1, "b": 2}) != digest({"b": 2, "a": 1})  # code may go through them in their order
    assert digest([1, 2]) != digest([2, 1]) != digest([12])
    assert digest(["a", "b"]) != digest(["ab"]) != digest("ab")
    assert digest(1) != digest(1.0) != digest(True)
    loop: list[Any] = [1]
    loop.append(loop)
    assert digest(loop) == digest(loop)


def test_functions_are_known_by_what_they_do() -> None:
    def adding(number: int) -> Callable[[int], int]:
        return lambda x: x + number

    assert digest(adding(1)) == digest(adding(1)) != digest(adding(2))
    assert digest(functools.partial(adding, 1)) != digest(functools.partial(adding, 2))
    assert digest(lambda x: x.real) != digest(lambda x: x.imag)
    assert digest(lambda x=1: x) != digest(lambda x=2: x)


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
    assert changed(identity(build("gpt2")), identity(build("gpt2"), other)) == ["tokenizer"]


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


@pytest.mark.parametrize("made", [_cutting, _replaced_method, _spaces])
def test_whatever_a_fast_tokenizer_holds_beside_its_backend_is_part_of_it(made: Callable[[int], Any]) -> None:
    model = build("gpt2")
    used = made(1)
    used("a b c", padding="max_length", truncation=True, max_length=3)

    assert identity(model, made(1)) == identity(model, used)
    assert changed(identity(model, made(1)), identity(model, made(0))) == ["tokenizer"]


def test_another_name_for_a_special_token_is_another_tokenizer() -> None:
    other = word_tokenizer()
    other.bos_token = "</s>"

    assert changed(identity(build("gpt2")), identity(build("gpt2"), other)) == ["tokenizer"]


class Bytes:
    """A tokenizer of the user's own."""

    def __init__(self, offset: int) -> None:
        self.offset = offset

    def __call__(self, text: str, add_special_tokens: bool = True) -> dict[str, list[int]]:
        return {"input_ids": [byte + self.offset for byte in text.encode()]}


def test_a_tokenizer_of_the_users_own_is_known_by_its_code_and_state() -> None:
    model = build("gpt2")

    assert identity(model, Bytes(0)) == identity(model, Bytes(0))
    assert changed(identity(model, Bytes(0)), identity(model, Bytes(1))) == ["tokenizer"]


class Words(transformers.PythonBackend):
    """A tokenizer of the user's own, on the library's base class for those in Python."""

    def __init__(self, step: int = 1) -> None:
        self.step = step
        super().__init__(unk_token="a")

    @property
    def vocab_size(self) -> int:
        return 26

    def get_vocab(self) -> dict[str, int]:
        return {chr(97 + index): index for index in range(26)} | self.added_tokens_encoder

    def _tokenize(self, text: str, **_: Any) -> list[str]:
        return text.split()

    def _convert_token_to_id(self, token: str) -> int:
        return (ord(token[0]) - 97) * self.step % 26

    def _convert_id_to_token(self, index: int) -> str:
        return chr(97 + index)

    def save_vocabulary(self, *_: Any) -> tuple[str, ...]:
        return ()


def test_a_tokenizer_in_python_is_known_by_added_tokens_and_by_what_it_holds() -> None:
    before = identity(build("gpt2"), Words())
    used = Words()
    used("a b c", add_special_tokens=False)
    added = Words()
    added.add_tokens([transformers.AddedToken("a b")])

    assert identity(build("gpt2"), used) == before
    assert changed(before, identity(build("gpt2"), added)) == ["tokenizer"]
    assert changed(before, identity(build("gpt2"), Words(3))) == ["tokenizer"]
