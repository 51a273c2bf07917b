"""Models that the user made: identified by their content, measured as they are, left as they were."""

import math
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

import pytest_lmgate as lmgate
from pytest_lmgate.errors import ProtocolError
from pytest_lmgate.metrics.score import Score
from pytest_lmgate.settings.gate_options import WindowProtocol
from tests.measure.conftest import ALPHABET, TEXT, make_model, make_tokenizer


def _measure(session: Any, model: Any, text: str = TEXT, **how: Any) -> Score:
    return session.perplexity((model, make_tokenizer()), [text], **how)


def _one_weight(model: Any) -> None:
    with torch.no_grad():
        model.model.layers[0].mlp.up_proj.weight[3, 2] += 1e-3


def _hook(model: Any) -> None:
    model.lm_head.register_forward_hook(lambda _module, _inputs, output: output * 2)


def _replaced_method(model: Any) -> None:
    norm = model.model.norm
    norm.forward = lambda states: type(norm).forward(norm, states) * 2


def test_a_model_changed_in_place_is_another_model(workplace: Any) -> None:
    session = workplace.session()
    model = make_model()
    first = _measure(session, model)
    assert _measure(session, model).cached
    _one_weight(model)
    changed = _measure(session, model)
    assert (changed.cached, changed.fingerprint == first.fingerprint) == (False, False)
    assert (_measure(session, make_model()), _measure(session, make_model()).cached) == (first, True)


@pytest.mark.parametrize("change", [_hook, _replaced_method])
def test_a_model_with_code_of_the_users_is_measured_each_time_and_not_kept(
    workplace: Any, change: Callable[[Any], None]
) -> None:
    session = workplace.session(explain_cache=True)
    model = make_model()
    change(model)
    assert [_measure(session, model).cached for _ in range(2)] == [False, False]
    assert not {path.suffix for path in (workplace.folder / ".lmgate_cache").rglob("*")} & {".lmgate", ".partial"}
    (name, reason), *_ = session.evaluator.measurements.uncacheable_reasons.items()
    assert name == "in-memory LlamaForCausalLM"
    assert session.evaluator.measurements.lookups[0].changed == (f"not kept: {reason}",)


def test_a_revision_keeps_the_measurements_of_a_model_with_code_of_the_users(workplace: Any) -> None:
    def measured(revision: str, change: Callable[[Any], None] = _hook) -> Score:
        model = make_model()
        change(model)
        given = lmgate.model(model, make_tokenizer(), revision=revision)
        return workplace.session().perplexity(given, [TEXT])

    first = measured("1")
    assert [measured("1").cached, measured("2").cached, measured("2").cached] == [True, False, True]
    assert measured("1") == first
    # The revision stands for the code alone.
    assert not measured("1", lambda model: (_hook(model), _one_weight(model))).cached


@pytest.mark.parametrize("revision", ["", "  ", None, 3])
def test_a_revision_is_a_text(revision: Any) -> None:
    with pytest.raises(TypeError, match=r"lmgate\.model expects a revision that is not empty, got "):
        lmgate.model("int8", revision=revision)
    with pytest.raises(TypeError, match=r"return lmgate\.model\(model, tokenizer, revision=\.\.\.\) from the"):
        lmgate.model(lmgate.fixture("pair"), revision="1")


class _Counter(nn.Module):
    """Says that each token is followed by the next of the alphabet, with a chosen certainty."""

    def __init__(self, certainty: float) -> None:
        super().__init__()
        self.certainty = certainty
        self.config = SimpleNamespace(name="counter")

    def forward(self, input_ids: torch.Tensor, **_: Any) -> Any:
        size = len(ALPHABET) + 1
        following = nn.functional.one_hot((input_ids + 1) % size, size)
        return SimpleNamespace(logits=following.double() * self.certainty)


def test_any_module_that_gives_logits_can_be_measured(workplace: Any) -> None:
    session = workplace.session()
    uniform = _measure(session, _Counter(0.0), "abcdefgh")
    assert uniform == pytest.approx(len(ALPHABET) + 1, rel=1e-6)
    sure = _measure(session, _Counter(3.0), "abcdefgh")  # a softmax of one logit of 3 among zeros
    assert sure == pytest.approx(1 + len(ALPHABET) / math.exp(3), rel=1e-6)
    assert not sure.cached
    with pytest.raises(ProtocolError, match="has no context length"):
        _measure(session, _Counter(0.0), "abc", protocol=WindowProtocol())
