"""What a session registers with a library, or puts in the place of its code, is part of a model from files."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest
import torch
import transformers

from pytest_lmgate.engine.session_code import session_code

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


@pytest.mark.parametrize("name", ["LlamaRMSNorm.forward", "apply_rotary_pos_emb"])
def test_a_replaced_function_of_a_model_is_known_by_its_code(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    def replace(factor: float) -> dict[str, str]:
        monkeypatch.setattr(f"transformers.models.llama.modeling_llama.{name}", lambda *args: args[0] * factor)
        return session_code({"model_type": "llama"})

    assert replace(0.5) == replace(0.5) != replace(0.25)
    monkeypatch.undo()
    assert session_code({"model_type": "llama"}) == {}
