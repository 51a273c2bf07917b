"""Code that is put in the place of a library's is found and named; what libraries do among themselves is not."""

import functools
import subprocess
import sys
import types
from typing import Any
from unittest.mock import MagicMock

import pytest
import torch
from transformers.models.falcon_h1 import modeling_falcon_h1
from transformers.models.llama import modeling_llama
from transformers.models.t5 import modeling_t5

from pytest_lmgate.identity import replaced_in_libraries, replaced_in_model
from tests.end_to_end.projects import environment
from tests.models.zoo import build, lora
from tests.warm import warm_python


@functools.wraps(modeling_llama.apply_rotary_pos_emb)
def _wrapping(*args: Any, **kwargs: Any) -> Any:
    return modeling_llama.apply_rotary_pos_emb(*args, **kwargs)


class _Norm(torch.nn.Module):
    def forward(self, states: torch.Tensor) -> torch.Tensor:
        return states


OTHER_CODE = {
    "a class": (modeling_llama, "LlamaRMSNorm", _Norm),
    "a function in the name of the library's": (modeling_llama, "apply_rotary_pos_emb", _wrapping),
    "a function in a library's decorator": (modeling_llama, "rotate_half", torch.no_grad()(lambda *args: args)),
    "a forward": (modeling_llama.LlamaForCausalLM, "forward", lambda self, *args, **kwargs: args),
    "a forward that calls the library's": (modeling_t5.T5Attention, "forward", _wrapping),
    "a forward that is a partial": (modeling_llama.LlamaMLP, "forward", functools.partial(_wrapping, 1)),
    "a mock": (modeling_falcon_h1.FalconH1Mixer, "forward", MagicMock()),
    "a layer of torch": (torch.nn.Linear, "forward", _wrapping),
    "a function of torch": (torch.nn.functional, "silu", _wrapping),
}


@pytest.mark.parametrize("what", OTHER_CODE)
def test_other_code_in_a_library_is_named(monkeypatch: pytest.MonkeyPatch, what: str) -> None:
    owner, name, code = OTHER_CODE[what]
    assert replaced_in_libraries() == ()
    monkeypatch.setattr(owner, name, code)
    assert any(f"{name} is " in words for words in replaced_in_libraries())


def test_nothing_is_imported_to_look() -> None:
    code = (
        "import sys; from pytest_lmgate.identity import replaced_in_libraries\n"
        "assert replaced_in_libraries() == ()\n"
        "assert not {'torch', 'transformers', 'numpy'} & sys.modules.keys()"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.parametrize("where", ["model.norm", "model.layers.1.mlp", "lm_head"])
def test_other_code_in_a_model_is_named(where: str) -> None:
    model = build("llama")
    assert replaced_in_model(model) == ()
    if where == "model.norm":
        model.model.norm.forward = types.MethodType(lambda self, states: states, model.model.norm)
    elif where == "lm_head":  # as accelerate does it
        model.lm_head.forward = functools.partial(_wrapping, model.lm_head)
    else:
        model.model.layers[1].mlp = _Norm()
    found = replaced_in_model(model)
    assert found
    assert all(f"({where}) is " in words for words in found)


def test_what_libraries_put_into_models_is_theirs() -> None:
    accelerate = pytest.importorskip("accelerate")
    hooked = accelerate.hooks.add_hook_to_module(build("llama").model.norm, accelerate.hooks.ModelHook())
    assert "forward" in vars(hooked)
    assert replaced_in_model(hooked) == ()
    assert replaced_in_model(lora(build("llama"), "q_proj")) == ()
    assert replaced_in_libraries() == ()


_LIGER = """
import transformers
from liger_kernel.transformers import apply_liger_kernel_to_llama
from pytest_lmgate.identity import replaced_in_libraries, replaced_in_model
from tests.models.zoo import build

plain = build("llama")
assert replaced_in_libraries() == (), replaced_in_libraries()
apply_liger_kernel_to_llama(model=plain)
found = " ".join(replaced_in_libraries())
for name in ("LlamaRMSNorm", "LlamaMLP", "apply_rotary_pos_emb"):
    assert f"{name} is liger_kernel." in found, found
assert "liger_kernel." in " ".join(replaced_in_model(plain)), replaced_in_model(plain)
apply_liger_kernel_to_llama()
assert "LlamaForCausalLM.forward is liger_kernel." in " ".join(replaced_in_libraries())
later = transformers.LlamaForCausalLM(plain.config)
assert "LlamaForCausalLM.forward (the model) is liger_kernel." in " ".join(replaced_in_model(later))
"""


def test_liger_kernel_is_named() -> None:
    pytest.importorskip("liger_kernel", reason="make test-newest installs liger-kernel")
    subprocess.run([warm_python(environment(), "transformers"), "-c", _LIGER], check=True)
