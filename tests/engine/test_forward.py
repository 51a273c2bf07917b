"""What is required of a model: that it is causal, and gives logits for the tokens it was given."""

from __future__ import annotations

import types
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from pytest_lmgate.backends.hf.likelihood.forward import evaluation_mode, logits_of, run
from pytest_lmgate.errors import EngineError, ModelError
from tests.engine.measuring import measure_nll, prove_causal
from tests.models.zoo import ARCHITECTURES, VOCABULARY, build, documents, loaded, sliding

IDS = torch.from_numpy(documents(30).ids[0])
MASKED = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4}
SEES_ALL = {"bert": MASKED, "roberta": MASKED, "xlnet": {"d_model": 32, "n_layer": 2, "n_head": 4, "d_inner": 48}}


@pytest.mark.parametrize("name", ARCHITECTURES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_causal_models_pass_in_any_precision(name: str, dtype: torch.dtype) -> None:
    prove_causal(build(name, dtype=dtype))


@pytest.mark.parametrize("name", SEES_ALL)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_model_that_sees_the_tokens_it_is_asked_for_is_refused(name: str, dtype: torch.dtype) -> None:
    with pytest.raises(ModelError, match=r"'m': its likelihood of a token depends on the tokens after it"):
        prove_causal(build(name, dtype=dtype, **SEES_ALL[name]))


def test_the_refusal_comes_before_any_number() -> None:
    streams = documents(30)
    with pytest.raises(ModelError, match="perplexity is undefined for the model 'BertLMHeadModel'"):
        measure_nll(loaded(build("bert", **MASKED)), streams, sliding(streams, 16, 8), dataset="d")


def test_a_bert_trained_as_a_decoder_passes() -> None:
    prove_causal(build("bert", is_decoder=True, **MASKED))


def test_the_noise_of_quantized_activations_does_not_pass_for_sight_of_later_tokens() -> None:
    """One scale for a whole text, as dynamic quantization may take: each number depends a little on the later ones."""
    model = build("llama")

    def rounded(module: nn.Module, given: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        scale = given[0].abs().amax((1, 2), keepdim=True) / 127
        return ((given[0] / scale).round() * scale, *given[1:])

    for module in model.modules():
        if isinstance(module, nn.Linear):
            module.register_forward_pre_hook(rounded)

    prove_causal(model)


class Unigram(nn.Module):
    """Knows nothing of the context; its logits differ by rounding from batch to batch."""

    def __init__(self, noise: float) -> None:
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, 4)
        self.noise = noise

    def get_input_embeddings(self) -> nn.Module:
        return self.embedding

    def forward(self, input_ids: Tensor) -> Tensor:
        logits = torch.linspace(-3, 3, VOCABULARY).expand(*input_ids.shape, VOCABULARY)
        return logits + self.noise * torch.randn(logits.shape)


@pytest.mark.parametrize("noise", [0.0, 1e-7])
def test_a_model_without_any_context_passes(noise: float) -> None:
    prove_causal(Unigram(noise))


def test_one_token_proves_nothing_and_needs_no_proof() -> None:
    prove_causal(build("bert", **MASKED), IDS[:1])


def test_forbidden_tokens_do_not_hide_that_a_model_is_not_causal() -> None:
    model = build("bert", **MASKED)
    with torch.no_grad():
        model.get_output_embeddings().bias[:8] = torch.tensor([-torch.inf, torch.finfo(torch.float32).min]).repeat(4)

    with pytest.raises(ModelError, match="depends on the tokens after it"):
        prove_causal(model)


def test_a_module_that_takes_token_ids_only_and_returns_a_tensor_is_a_model() -> None:
    streams = documents(9)

    nll = measure_nll(loaded(Unigram(0)), streams, sliding(streams, 16, 8), dataset="d")

    expected = -torch.log_softmax(torch.linspace(-3, 3, VOCABULARY).double(), 0)[streams.ids[0][1:]]
    assert nll == pytest.approx(expected.numpy(), rel=1e-6)


def test_a_model_that_returns_a_tuple_gives_its_logits_first() -> None:
    model = build("openai-gpt", n_embd=32, n_layer=2, n_head=4, n_positions=64)
    expected = logits_of(model, IDS[None])
    model.config.return_dict = False
    assert isinstance(run(model, IDS[None]), tuple)

    assert torch.equal(logits_of(model, IDS[None]), expected)


@pytest.mark.parametrize(
    ("output", "message"),
    [
        (types.SimpleNamespace(), "expected logits of Stub, got SimpleNamespace without them"),
        (types.SimpleNamespace(logits=None), "expected logits of Stub, got SimpleNamespace without them"),
        (torch.zeros(1, 29, 7), r"expected logits of shape \[1, 30, vocabulary\] of Stub, got \[1, 29, 7\]"),
        (torch.zeros(2, 30, 7), r"got \[2, 30, 7\]"),
        (torch.zeros(1, 7), r"got \[1, 7\]"),
    ],
)
def test_anything_but_logits_for_every_token_is_an_error(output: Any, message: str) -> None:
    class Stub(nn.Module):
        def forward(self, input_ids: Tensor) -> Any:
            return output

    with pytest.raises(EngineError, match=message):
        logits_of(Stub(), IDS[None])


def test_dropout_is_off_while_a_model_is_measured_and_on_again_after() -> None:
    model = build("gpt2", resid_pdrop=0.5).train()
    model.transformer.h[0].eval()
    streams = documents(40)
    plan = sliding(streams, 16, 8)

    first, second = (measure_nll(loaded(model), streams, plan, dataset="d") for _ in range(2))

    assert (first == second).all()
    assert model.training
    assert model.transformer.h[1].attn.training
    assert not model.transformer.h[0].training


def test_dropout_is_on_again_after_a_failure() -> None:
    model = build("gpt2").train()

    def fail_in_evaluation() -> None:
        with evaluation_mode(model):
            assert not model.training
            raise RuntimeError("stop")

    with pytest.raises(RuntimeError, match="stop"):
        fail_in_evaluation()

    assert model.training
