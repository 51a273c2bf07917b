"""What a session registers with a library, or puts in the place of its code, is part of a model from files."""

from __future__ import annotations

import functools
import json
import os
import shutil
import subprocess
import sys
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import peft
import pytest
import torch
import transformers
from transformers.models.llama import modeling_llama

from pytest_lmgate.engine.session_code import session_code
from tests.models.zoo import build, word_tokenizer

CONFIG = {"model_type": "ours"}


@pytest.fixture
def ours() -> Iterator[type[Any]]:
    """A config class of the session's own, registered."""

    class OurConfig(transformers.LlamaConfig):
        model_type = "ours"

    transformers.AutoConfig.register("ours", OurConfig)
    yield OurConfig
    transformers.models.auto.configuration_auto.CONFIG_MAPPING._extra_content.pop("ours")
    transformers.models.auto.modeling_auto.MODEL_FOR_CAUSAL_LM_MAPPING._extra_content.pop(OurConfig, None)


def _model_class(config: type[Any], factor: float) -> type[Any]:
    class OurModel(transformers.LlamaForCausalLM):
        config_class = config

        def forward(self, *args: Any, **kwargs: Any) -> Any:
            output = super().forward(*args, **kwargs)
            output.logits = output.logits * factor
            return output

    return OurModel


def test_there_is_none_where_nothing_is_registered_or_replaced() -> None:
    transformers.LlamaForCausalLM  # noqa: B018 - loads the module
    assert session_code({"model_type": "llama"}) == {}


def test_nothing_is_imported_to_find_out() -> None:
    code = (
        "import sys; from pytest_lmgate.engine.session_code import session_code\n"
        "assert session_code({'model_type': 'llama'}) == {}\n"
        "assert not {'torch', 'transformers'} & sys.modules.keys()"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_a_registered_class_is_known_by_its_code(ours: type[Any]) -> None:
    found = [session_code(CONFIG)]
    for factor in (0.5, 0.5, 0.25):
        transformers.AutoModelForCausalLM.register(ours, _model_class(ours, factor), exist_ok=True)
        found.append(session_code(CONFIG))

    assert found[1] == found[2]
    assert len({each["session code"] for each in found}) == 3
    assert session_code({"model_type": "llama"}) == {}


def test_loading_and_running_a_registered_class_leaves_its_digest(ours: type[Any]) -> None:
    kind = _model_class(ours, 0.5)
    transformers.AutoModelForCausalLM.register(ours, kind)
    before = session_code(CONFIG)
    config = ours(vocab_size=8, hidden_size=8, intermediate_size=8, num_hidden_layers=1, num_attention_heads=1)
    model = transformers.AutoModelForCausalLM.from_config(config)
    model(input_ids=torch.tensor([[1, 2]]))

    assert type(model) is kind
    assert session_code(CONFIG) == before


@functools.wraps(modeling_llama.apply_rotary_pos_emb)
def _wrapping(*args: Any, **kwargs: Any) -> Any:
    return modeling_llama.apply_rotary_pos_emb(*args, **kwargs)


class _Norm(torch.nn.Module):
    pass


class _Callable:
    def __call__(self, *args: Any) -> Any:
        return args


REPLACED = {
    "a method": ("models.llama.modeling_llama.LlamaRMSNorm.forward", lambda self, states: states),
    "a function": ("models.llama.modeling_llama.apply_rotary_pos_emb", lambda *args: args),
    "a function in the name of the library's": ("models.llama.modeling_llama.apply_rotary_pos_emb", _wrapping),
    "a function in a library's decorator": (
        "models.llama.modeling_llama.apply_rotary_pos_emb",
        torch.no_grad()(lambda *args: args),
    ),
    "a partial function": ("models.llama.modeling_llama.rotate_half", functools.partial(_wrapping, 1)),
    "a cached function": ("models.llama.modeling_llama.rotate_half", functools.lru_cache(lambda x: x)),
    "a cached function in the name of the library's": (
        "models.llama.modeling_llama.rotate_half",
        functools.wraps(modeling_llama.rotate_half)(functools.lru_cache(lambda x: x)),
    ),
    "a function in a library's object": ("models.llama.modeling_llama.rotate_half", np.vectorize(lambda x: x)),
    "an object that is called": ("models.llama.modeling_llama.rotate_half", _Callable()),
    "a static method": ("models.llama.modeling_llama.LlamaRotaryEmbedding.forward", staticmethod(_wrapping)),
    "a property": ("cache_utils.Cache.is_compileable", property(lambda self: False)),
    "a class": ("models.llama.modeling_llama.LlamaRMSNorm", _Norm),
    "a class that is looked up by its name": ("models.llama.LlamaForCausalLM", _Norm),
    "what all models share": ("masking_utils.create_causal_mask", _wrapping),
    "how a model writes": ("generation.utils.GenerationMixin._sample", _wrapping),
}


@pytest.mark.parametrize("what", REPLACED)
def test_whatever_stands_where_the_library_had_its_own_is_seen(monkeypatch: pytest.MonkeyPatch, what: str) -> None:
    path, value = REPLACED[what]
    monkeypatch.setattr(f"transformers.{path}", value)
    assert session_code({"model_type": "llama"}).keys() == {"session code"}
    monkeypatch.undo()
    assert session_code({"model_type": "llama"}) == {}


@pytest.mark.parametrize("owner", [torch.nn.functional, torch.nn.Linear, peft.tuners.lora.Linear])
def test_torchs_layers_and_pefts_are_looked_at_too(monkeypatch: pytest.MonkeyPatch, owner: Any) -> None:
    monkeypatch.setattr(owner, "silu" if owner is torch.nn.functional else "forward", _wrapping)
    assert session_code({"model_type": "llama"})


@pytest.mark.parametrize("name", ["LlamaRMSNorm.forward", "apply_rotary_pos_emb"])
def test_what_replaces_a_librarys_function_is_known_by_its_code(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    def replace(factor: float) -> dict[str, str]:
        monkeypatch.setattr(f"transformers.models.llama.modeling_llama.{name}", lambda *args: args[0] * factor)
        return session_code({"model_type": "llama"})

    assert replace(0.5) == replace(0.5) != replace(0.25)


def test_what_a_replacement_looks_up_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    settings = types.SimpleNamespace(scale=0.5)
    monkeypatch.setattr(modeling_llama.LlamaRMSNorm, "forward", lambda self, states: states * settings.scale)
    before = session_code({"model_type": "llama"})
    assert session_code({"model_type": "llama"}) == before

    settings.scale = 0.25
    assert session_code({"model_type": "llama"}) != before


def test_a_hook_on_all_modules_is_seen() -> None:
    handle = torch.nn.modules.module.register_module_forward_hook(lambda module, given, output: output)
    try:
        assert session_code({"model_type": "llama"})
    finally:
        handle.remove()
    assert session_code({"model_type": "llama"}) == {}


def test_an_attention_function_of_the_sessions_own_is_seen() -> None:
    transformers.AttentionInterface.register("ours", _wrapping)
    try:
        assert session_code({"model_type": "llama"})
    finally:
        del transformers.AttentionInterface._global_mapping["ours"]
    assert session_code({"model_type": "llama"}) == {}


def test_a_registered_tokenizer_is_seen_whatever_model_it_is_registered_for(ours: type[Any]) -> None:
    class OurTokenizer(transformers.PreTrainedTokenizerFast):
        pass

    auto = transformers.models.auto.tokenization_auto
    before = [dict(table) for table in (auto.REGISTERED_TOKENIZER_CLASSES, auto.REGISTERED_FAST_ALIASES)]
    transformers.AutoTokenizer.register(ours, fast_tokenizer_class=OurTokenizer)
    try:
        # A checkpoint of any type may name it in its tokenizer_config.json.
        assert session_code({"model_type": "llama"})
    finally:
        auto.TOKENIZER_MAPPING._extra_content.pop(ours)
        for table, content in zip(
            (auto.REGISTERED_TOKENIZER_CLASSES, auto.REGISTERED_FAST_ALIASES), before, strict=True
        ):
            table.clear()
            table.update(content)
    assert session_code({"model_type": "llama"}) == {}


ARCHITECTURES = ("falcon_h1", "gemma2", "gpt2", "gpt_neox", "llama", "mamba", "mixtral", "mpt", "opt", "phi", "qwen3")

_CODE = """
from transformers import LlamaForCausalLM


class OwnLlama(LlamaForCausalLM):
    pass
"""

_RUN = """
import sys, warnings
from pathlib import Path
from pytest_lmgate.cache.digest import FileDigests
from pytest_lmgate.config.file import load_project
from pytest_lmgate.config.options import Options
from pytest_lmgate.evaluate.sources import Resolver

folder = Path(sys.argv[1])
resolver = Resolver(load_project(folder), Options(cache=folder), FileDigests(folder / "digests"))
names = sys.argv[2:]
before = {name: dict(resolver.model(name).ingredients) for name in names}
assert not {"torch", "transformers", "peft"} & sys.modules.keys()

import torch
import peft
warnings.simplefilter("ignore")
for name in names:
    loaded = resolver.model(name).load()
    ids = torch.arange(4, 10)[None]
    loaded.model(input_ids=ids)
    loaded.model.generate(input_ids=ids, max_new_tokens=2)
    if name == "llama":
        peft.get_peft_model(loaded.model, peft.LoraConfig(target_modules="all-linear"))(input_ids=ids)
assert type(resolver.model("own").load().model).__module__.startswith("transformers_modules.")

after = {name: dict(resolver.model(name).ingredients) for name in names}
assert after == before, [name for name in names if after[name] != before[name]]
"""


def test_an_address_is_the_same_before_and_after_models_were_loaded_and_run(tmp_path: Path) -> None:
    for name in ARCHITECTURES:
        build(name).save_pretrained(tmp_path / name)
        word_tokenizer().save_pretrained(tmp_path / name)
    shutil.copytree(tmp_path / "llama", tmp_path / "own")
    (tmp_path / "own" / "modeling_own.py").write_text(_CODE)
    config = json.loads((tmp_path / "own" / "config.json").read_text())
    config["auto_map"] = {"AutoModelForCausalLM": "modeling_own.OwnLlama"}
    (tmp_path / "own" / "config.json").write_text(json.dumps(config))
    names = [*ARCHITECTURES, "own"]
    (tmp_path / "lmgate.yaml").write_text(
        "models:\n"
        + "".join(f"  {name}: {{path: {name}, trust_remote_code: {str(name == 'own').lower()}}}\n" for name in names)
    )
    environment = os.environ | {"HF_HOME": str(tmp_path / "home"), "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"}
    ran = subprocess.run(
        [sys.executable, "-c", _RUN, str(tmp_path), *names],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr
