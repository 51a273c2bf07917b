"""Patched libraries are found and named; plain sessions have no patch, whatever they loaded and ran."""

import functools
import inspect
import json
import os
import shutil
import subprocess
import sys
import types
from collections import OrderedDict
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest.mock import MagicMock

import peft
import pytest
import torch
import transformers
from transformers.models.llama import modeling_llama

from pytest_lmgate.identity import code as looking
from pytest_lmgate.identity.code import find_patched_libraries
from tests.end_to_end.projects import environment
from tests.models.zoo import build, word_tokenizer
from tests.warm import warm_python


@pytest.fixture(autouse=True)
def looked() -> None:
    """Look before each test: a patch must be found where the last look found none."""
    assert find_patched_libraries() == ()


@pytest.fixture
def ours() -> Iterator[type[Any]]:
    """A config class of the session's own, registered; taken back after the test."""

    class OurConfig(transformers.LlamaConfig):
        model_type = "ours"

    yield OurConfig
    auto = transformers.models.auto
    auto.configuration_auto.CONFIG_MAPPING._extra_content.pop("ours", None)
    for mapping in (auto.modeling_auto.MODEL_FOR_CAUSAL_LM_MAPPING, auto.tokenization_auto.TOKENIZER_MAPPING):
        mapping._extra_content.pop(OurConfig, None)


def test_a_library_that_is_no_installed_package_is_a_patch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = str(tmp_path / "peft" / "__init__.py")
    monkeypatch.setattr(peft, "__file__", file)
    assert find_patched_libraries() == (f"peft, by importing it from {file}, which is not an installed package",)


def test_nothing_is_imported_to_find_patches() -> None:
    code = (
        "import sys; from pytest_lmgate.identity.code import find_patched_libraries\n"
        "assert find_patched_libraries() == ()\n"
        "assert not {'torch', 'transformers', 'numpy'} & sys.modules.keys()"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


@functools.wraps(modeling_llama.apply_rotary_pos_emb)
def _wrapping(*args: Any, **kwargs: Any) -> Any:
    return modeling_llama.apply_rotary_pos_emb(*args, **kwargs)


class _Norm(torch.nn.Module):
    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return args


_LLAMA = "transformers.models.llama.modeling_llama"
OWN_CODE = {
    "a method": (f"{_LLAMA}.LlamaRMSNorm.forward", lambda self, states: states),
    "a function in the name of the library's": (f"{_LLAMA}.apply_rotary_pos_emb", _wrapping),
    "a function in a library's decorator": (f"{_LLAMA}.rotate_half", torch.no_grad()(lambda *args: args)),
    "a mock": (f"{_LLAMA}.LlamaMLP.forward", MagicMock()),
    "an object in the place of a function": (f"{_LLAMA}.rotate_half", _Norm()),
    "a partial method": (f"{_LLAMA}.LlamaMLP.forward", functools.partialmethod(lambda self, x: x)),
    "a static method": (f"{_LLAMA}.LlamaRotaryEmbedding.forward", staticmethod(_wrapping)),
    "a property": ("transformers.cache_utils.Cache.is_compileable", property(lambda self: False)),
    "a class": (f"{_LLAMA}.LlamaRMSNorm", _Norm),
    "how a model writes": ("transformers.generation.utils.GenerationMixin._sample", _wrapping),
    "a function of torch": ("torch.matmul", lambda a, b: a),
    "a layer of torch": ("torch.nn.Linear.forward", _wrapping),
    "a layer of PEFT": ("peft.tuners.lora.Linear.forward", _wrapping),
    "a method of all tokenizers": ("transformers.PreTrainedTokenizerFast._encode_plus", _wrapping),
}


@pytest.mark.parametrize("what", OWN_CODE)
def test_code_of_the_users_in_a_library_is_a_patch(monkeypatch: pytest.MonkeyPatch, what: str) -> None:
    path, value = OWN_CODE[what]
    _put(monkeypatch, path, value)
    assert any(path.rpartition(".")[2] in patch for patch in find_patched_libraries())
    monkeypatch.undo()
    assert find_patched_libraries() == ()


def _put(monkeypatch: pytest.MonkeyPatch, path: str, value: Any) -> None:
    if path.startswith("peft"):
        monkeypatch.setattr(peft.tuners.lora.Linear, "forward", value)
    else:
        monkeypatch.setattr(path, value)


def test_a_functions_code_that_was_exchanged_is_a_patch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(modeling_llama.rotate_half, "__code__", (lambda x: x).__code__)
    assert len(find_patched_libraries()) == 1


class _OurTable(OrderedDict[str, Any]):
    pass


class _OurModule(types.ModuleType):
    pass


# Patches that put nothing else into a table: the attribute of an object that stays where it is.
_EXCHANGED = {
    "the code that a decorator hides": lambda: (
        inspect.unwrap(transformers.GenerationMixin.generate),
        "__code__",
        _mine.__code__,
    ),
    "what a decorator hides": lambda: (modeling_llama.LlamaModel.forward, "__wrapped__", _mine),
    "the class of a table": lambda: (transformers.activations.ACT2FN, "__class__", _OurTable),
    "the class of a module": lambda: (modeling_llama, "__class__", _OurModule),
}


def _mine(self: Any, *args: Any, **kwargs: Any) -> Any:
    return args


@pytest.mark.parametrize("what", _EXCHANGED)
def test_an_attribute_that_was_exchanged_is_a_patch(monkeypatch: pytest.MonkeyPatch, what: str) -> None:
    monkeypatch.setattr(*_EXCHANGED[what]())
    assert find_patched_libraries()


def test_a_property_that_was_made_again_is_a_patch() -> None:
    made = vars(transformers.cache_utils.Cache)["is_compileable"]
    before = made.fget
    made.__init__(lambda self: False)
    try:
        assert find_patched_libraries()
    finally:
        made.__init__(before)


def test_an_activation_that_was_exchanged_is_a_patch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(transformers.activations.ACT2FN, "silu", _Norm)
    assert any("ACT2FN.silu is " in patch for patch in find_patched_libraries())


@pytest.mark.parametrize("calls", [1, 20])
def test_a_look_that_was_interrupted_counts_for_nothing(monkeypatch: pytest.MonkeyPatch, calls: int) -> None:
    monkeypatch.setattr(modeling_llama.LlamaMLP, "forward", _mine)
    judge, seen = looking._is_librarys, []

    def interrupted(found: Any, module: types.ModuleType) -> bool:
        seen.extend([found] if module is modeling_llama else [])
        if len(seen) == calls:
            raise KeyboardInterrupt
        return judge(found, module)

    with monkeypatch.context() as patched:
        patched.setattr(looking, "_is_librarys", interrupted)
        with pytest.raises(KeyboardInterrupt):
            find_patched_libraries()
    assert find_patched_libraries()


@pytest.mark.parametrize("table", ["_global_mapping", "_local_mapping"])
def test_an_attention_function_that_was_exchanged_is_a_patch(monkeypatch: pytest.MonkeyPatch, table: str) -> None:
    everyone = transformers.modeling_utils.ALL_ATTENTION_FUNCTIONS
    monkeypatch.setitem(getattr(everyone, table), "sdpa", _wrapping)
    assert any(f"{table}.sdpa is " in patch for patch in find_patched_libraries())


def test_a_hook_on_all_modules_is_a_patch() -> None:
    handle = torch.nn.modules.module.register_module_forward_hook(lambda module, given, output: output)
    try:
        assert find_patched_libraries()
    finally:
        handle.remove()
    assert find_patched_libraries() == ()


def test_a_registered_class_is_a_patch(ours: type[Any]) -> None:
    class OurModel(transformers.LlamaForCausalLM):
        config_class = ours

    class OurTokenizer(transformers.PreTrainedTokenizerFast):
        pass

    transformers.AutoConfig.register("ours", ours)
    assert any(".OurConfig" in patch for patch in find_patched_libraries())
    transformers.AutoModelForCausalLM.register(ours, OurModel)
    assert any(".OurModel" in patch for patch in find_patched_libraries())
    names = ("REGISTERED_TOKENIZER_CLASSES", "REGISTERED_FAST_ALIASES")  # transformers 4 has neither
    tables = [getattr(transformers.models.auto.tokenization_auto, name, {}) for name in names]
    before = list(map(dict, tables))
    transformers.AutoTokenizer.register(ours, fast_tokenizer_class=OurTokenizer)
    assert any(".OurTokenizer" in patch for patch in find_patched_libraries())
    for table, content in zip(tables, before, strict=True):
        table.clear()
        table.update(content)


ARCHITECTURES = ("falcon_h1", "llama")
_CODE = """
from transformers import LlamaForCausalLM


class OwnLlama(LlamaForCausalLM):
    pass
"""
_RUN = """
import sys, warnings
from pathlib import Path
from pytest_lmgate.cache.fingerprint import FileDigests
from pytest_lmgate.settings.file import load_project
from pytest_lmgate.settings.session import Options
from pytest_lmgate.measure.sources import Resolver

folder = Path(sys.argv[1])
resolver = Resolver(load_project(folder), Options(cache=folder), FileDigests(folder / "digests"), {})
names = sys.argv[2:]
before = {name: dict(resolver.model(name).ingredients) for name in names}
assert not {"torch", "transformers", "peft"} & sys.modules.keys()

import torch
import peft
warnings.simplefilter("ignore")
for name in names:
    loaded = resolver.model(name).open().loaded
    ids = torch.arange(4, 10)[None]
    loaded.model(input_ids=ids)
    loaded.model.generate(input_ids=ids, max_new_tokens=2)
    if name == "llama":
        peft.get_peft_model(loaded.model, peft.LoraConfig(target_modules="all-linear"))(input_ids=ids)
assert type(resolver.model("own").open().loaded.model).__module__.startswith("transformers_modules.")

resolver.code.forget(share=False)
after = {name: dict(resolver.model(name).ingredients) for name in names}
assert after == before, [(name, set(after[name].items()) ^ set(before[name].items())) for name in names]
assert not any(resolver.model(name).not_kept for name in names)
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
    (tmp_path / "lmgate.yaml").write_text(
        "models:\n"
        + "".join(
            f"  {name}: {{path: {name}, trust_remote_code: {str(name == 'own').lower()}}}\n"
            for name in (*ARCHITECTURES, "own")
        )
    )
    where = os.environ | {"HF_HOME": str(tmp_path / "home"), "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"}
    ran = subprocess.run(
        [sys.executable, "-c", _RUN, str(tmp_path), *ARCHITECTURES],
        env=where,
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr


_ALL = """
import contextlib, importlib, io, pkgutil, sys, warnings
warnings.simplefilter("ignore")
import torch, transformers, peft
names = [
    each.name
    for package in (transformers, peft, torch.nn)
    for each in pkgutil.walk_packages(package.__path__, package.__name__ + ".", onerror=lambda _: None)
    if not any(word in each.name for word in ("__main__", ".cli", "commands", "testing"))
]
models = [name for name in names if ".models." in name and (".modeling_" in name or ".tokenization_" in name)]
others = [name for name in names if "transformers.models." not in name]
for name in [*others[::4], *models[::32]]:
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        try:
            importlib.import_module(name)
        except BaseException:  # it needs a package that is not installed
            pass
from pytest_lmgate.identity.code import find_patched_libraries
assert len(sys.modules) > 1200
assert find_patched_libraries() == (), find_patched_libraries()
"""


def test_no_module_of_the_libraries_has_a_patch_of_its_own() -> None:
    subprocess.run([warm_python(environment(), "torch"), "-c", _ALL], check=True)
