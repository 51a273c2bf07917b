"""Models that the user made: identified by their content, measured as they are, left as they were."""

from __future__ import annotations

import gc
import math
import weakref
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import transformers
from torch import nn

import pytest_lmgate as lmgate
from pytest_lmgate.errors import ModelError, ProtocolError
from pytest_lmgate.metrics.score import Score
from pytest_lmgate.spec.protocol import Protocol
from tests.evaluate.entries import perplexity

from .conftest import ALPHABET, TEXT, make_model, make_tokenizer

PROTOCOL = Protocol(max_length=16, stride=8)


def _measure(session: Any, model: Any, tokenizer: Any = None, dataset: Any = (TEXT,)) -> Score:
    pair = (model, tokenizer or make_tokenizer())
    return perplexity(session.evaluator, pair, list(dataset), PROTOCOL)


def test_a_pair_is_measured_like_the_checkpoint_it_was_saved_as(workplace: Any) -> None:
    session = workplace.session()
    from_files = perplexity(session.evaluator, "float", "text", PROTOCOL)
    pair = _measure(session, make_model())
    assert pair == pytest.approx(from_files, rel=1e-6)
    assert (pair.model, pair.dataset) == ("in-memory LlamaForCausalLM", "in-memory list")
    assert not pair.cached


def test_a_pipeline_is_the_pair_in_it(workplace: Any) -> None:
    session = workplace.session()
    pair = _measure(session, make_model())
    pipeline = transformers.pipeline("text-generation", model=make_model(), tokenizer=make_tokenizer(), device="cpu")
    score = perplexity(session.evaluator, pipeline, [TEXT], PROTOCOL)
    assert (score, score.cached) == (pair, True)


def test_the_same_weights_made_again_are_found(workplace: Any) -> None:
    first = _measure(workplace.session(), make_model())
    second = _measure(workplace.session(), make_model())
    assert (second, second.cached) == (first, True)


def _one_weight(model: Any) -> None:
    with torch.no_grad():
        model.model.layers[0].mlp.up_proj.weight[3, 2] += 1e-3


def _other_type(model: Any) -> None:
    model.to(torch.float64)


def _plain_attribute(model: Any) -> None:
    model.model.layers[0].self_attn.scaling *= 2


def _hook(model: Any) -> None:
    model.lm_head.register_forward_hook(lambda _module, _inputs, output: output * 2)


def _replaced_method(model: Any) -> None:
    norm = model.model.norm
    norm.forward = lambda states: type(norm).forward(norm, states) * 2


def _config(model: Any) -> None:
    model.config.rms_norm_eps = 0.5


@pytest.mark.parametrize("change", [_one_weight, _other_type, _plain_attribute, _hook, _replaced_method, _config])
def test_a_model_changed_in_place_is_another_model(workplace: Any, change: Callable[[Any], None]) -> None:
    session = workplace.session()
    model = make_model()
    first = _measure(session, model)
    assert _measure(session, model).cached
    change(model)
    changed = _measure(session, model)
    assert not changed.cached
    assert changed.fingerprint != first.fingerprint
    assert (_measure(session, make_model()), _measure(session, make_model()).cached) == (first, True)


@pytest.mark.parametrize("change", [_hook, _replaced_method])
def test_a_model_with_code_of_the_users_is_measured_each_time_and_not_kept(
    workplace: Any, change: Callable[[Any], None]
) -> None:
    session = workplace.session(explain_cache=True)
    model = make_model()
    change(model)
    assert not _measure(session, model).cached
    assert not _measure(session, model).cached
    assert list((workplace.folder / ".lmgate_cache").rglob("*.lmgate")) == []
    assert list((workplace.folder / ".lmgate_cache").rglob("*.partial")) == []
    (name, reason), *_ = session.evaluator.not_kept.items()
    assert name == "in-memory LlamaForCausalLM"
    assert session.evaluator.lookups[0].changed == (f"not kept: {reason}",)


def test_gates_of_one_test_share_a_measurement_that_is_not_kept(workplace: Any) -> None:
    evaluator = workplace.session().evaluator
    model, tokenizer = make_model(), make_tokenizer()
    _hook(model)
    evaluator.forget(share=True)
    found = [perplexity(evaluator, (model, tokenizer), [TEXT], PROTOCOL) for _ in range(2)]
    assert [score.cached for score in found] == [False, True]
    evaluator.forget(share=True)
    assert not perplexity(evaluator, (model, tokenizer), [TEXT], PROTOCOL).cached
    gone = weakref.ref(model)
    del model
    evaluator.forget()
    gc.collect()
    assert gone() is None


def test_a_revision_keeps_the_measurements_of_a_model_with_code_of_the_users(workplace: Any) -> None:
    def measured(revision: str, change: Callable[[Any], None] = _hook) -> Score:
        model = make_model()
        change(model)
        given = lmgate.model(model, make_tokenizer(), revision=revision)
        return perplexity(workplace.session().evaluator, given, [TEXT], PROTOCOL)

    first = measured("1")
    assert [measured("1").cached, measured("2").cached, measured("2").cached] == [True, False, True]
    assert measured("1") == first
    # The revision stands for the code alone.
    assert not measured("1", lambda model: (_hook(model), _one_weight(model))).cached


@pytest.mark.parametrize("revision", ["", "  ", None, 3])
def test_a_revision_is_a_text(revision: Any) -> None:
    with pytest.raises(TypeError, match=r"lmgate\.model expects revision to be a text that is not empty, got "):
        lmgate.model("int8", revision=revision)
    with pytest.raises(TypeError, match=r"return lmgate\.model\(model, tokenizer, revision=\.\.\.\) from the"):
        lmgate.model(lmgate.fixture("pair"), revision="1")


def test_a_model_changed_in_place_is_never_measured_for_one_made_anew(workplace: Any) -> None:
    session = workplace.session()
    model = make_model()
    _measure(session, model)
    with torch.no_grad():
        model.lm_head.weight.zero_()
    fresh = _measure(session, make_model(), dataset=["another text, not yet measured."])
    expected = _measure(
        workplace.session(cache=workplace.folder / "elsewhere"),
        make_model(),
        dataset=["another text, not yet measured."],
    )
    assert not fresh.cached
    assert fresh == expected


def _own_class(factor: float) -> type[Any]:
    if factor == 1:

        class Own(transformers.LlamaForCausalLM):
            def forward(self, *args: Any, **kwargs: Any) -> Any:
                return super().forward(*args, **kwargs)
    else:

        class Own(transformers.LlamaForCausalLM):  # type: ignore[no-redef]
            def forward(self, *args: Any, **kwargs: Any) -> Any:
                output = super().forward(*args, **kwargs)
                output.logits = output.logits * 3
                return output

    Own.__qualname__ = "Own"
    return Own


def _of_class(kind: type[Any]) -> Any:
    model = make_model()
    model.__class__ = kind
    return model


def test_a_class_of_ones_own_is_measured_each_time(workplace: Any) -> None:
    session = workplace.session()
    plain = _measure(session, make_model())
    one, same, other = (_measure(session, _of_class(_own_class(factor))) for factor in (1, 1, 3))
    assert [one.cached, same.cached, other.cached] == [False, False, False]
    assert one == same == pytest.approx(plain, rel=1e-6)
    assert abs(other - plain) > 0.1


def test_another_tokenizer_is_another_measurement(workplace: Any) -> None:
    session = workplace.session()
    _measure(session, make_model())
    assert _measure(session, make_model(), make_tokenizer()).cached
    tokenizer = make_tokenizer()
    tokenizer.add_tokens(["the "])
    model = make_model()
    model.resize_token_embeddings(len(ALPHABET) + 2, mean_resizing=False)
    assert not _measure(session, model, tokenizer).cached


def test_a_model_in_training_is_measured_without_dropout_and_goes_on_training(workplace: Any) -> None:
    quiet = _measure(workplace.session(), make_model(attention_dropout=0.5).eval())
    model = make_model(attention_dropout=0.5).train()
    model.model.norm.eval()
    before = [module.training for module in model.modules()]
    score = _measure(workplace.session(cache=workplace.folder / "elsewhere"), model)
    assert score == quiet
    assert [module.training for module in model.modules()] == before
    assert all(parameter.requires_grad for parameter in model.parameters())
    assert _measure(workplace.session(), model).cached


def test_a_model_is_let_go_when_the_user_lets_it_go(workplace: Any) -> None:
    session = workplace.session()
    model = make_model()
    _measure(session, model)
    gone = weakref.ref(model)
    del model
    gc.collect()
    assert gone() is None


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
    uniform = _measure(session, _Counter(0.0), dataset=["abcdefgh"])
    assert uniform == pytest.approx(len(ALPHABET) + 1, rel=1e-6)
    sure = _measure(session, _Counter(3.0), dataset=["abcdefgh"])  # a softmax of one logit of 3 among zeros
    assert sure == pytest.approx(1 + len(ALPHABET) / math.exp(3), rel=1e-6)
    assert not sure.cached
    with pytest.raises(ProtocolError, match="names no context length of its own"):
        perplexity(session.evaluator, (_Counter(0.0), make_tokenizer()), ["abc"], Protocol())


@pytest.mark.parametrize(
    ("pair", "message"),
    [
        (("model", make_tokenizer), r"expected \(model, tokenizer\), got \(str, \.\.\.\)"),
        ((nn.Linear(1, 1), "tokenizer"), r"expected \(model, tokenizer\), got \(\.\.\., str\)"),
    ],
)
def test_a_pair_of_other_things_is_refused(workplace: Any, pair: tuple[Any, Any], message: str) -> None:
    with pytest.raises(ModelError, match=message):
        perplexity(workplace.session().evaluator, pair, [TEXT], PROTOCOL)
