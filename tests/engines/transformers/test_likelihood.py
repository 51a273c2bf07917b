"""Batches of windows, memory that runs out, and what cannot be measured."""

import types
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from pytest_lmgate.errors import ModelError, NonFiniteError
from pytest_lmgate.windows.protocols import WindowPlan
from pytest_lmgate.windows.tokens import Streams
from tests.engines.transformers.measuring import measure_nll
from tests.models.zoo import VOCABULARY, build, documents, loaded, naive_nll, sliding

STREAMS = documents(70, 9, 41, 2, 30)
PLAN = sliding(STREAMS, 16, 8)
RUNNER = "pytest_lmgate.engines.transformers.runner"


class Watched:
    """A model that records the shape of each batch, and runs out of memory beyond a number of tokens."""

    def __init__(self, most: float = np.inf) -> None:
        self.model, self.shapes, self._most = build("llama"), list[tuple[int, int]](), most
        plain = self.model.forward

        def forward(module: Any, input_ids: Tensor, **given: Any) -> Any:
            self.shapes.append(tuple(input_ids.shape))
            if input_ids.numel() > most:
                raise torch.OutOfMemoryError
            return plain(input_ids=input_ids, **given)

        self.model.forward = types.MethodType(forward, self.model)

    def batches(self, streams: Streams = STREAMS, plan: WindowPlan = PLAN) -> list[tuple[int, int]]:
        """Without those that prove what the model is like: all that a measurement runs that is known already."""
        proof = Watched(self._most)
        measure_nll(loaded(proof.model), streams, plan, known=np.zeros(int(plan.targets.sum())))
        return self.shapes[len(proof.shapes) :]


def plain(model: Any) -> Any:
    """Hide a model's head, so that its logits are made whole."""
    model.get_output_embeddings = lambda: None
    return model


def test_every_window_is_read_once_in_batches_of_like_length_that_fit_the_budget(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(f"{RUNNER}._CPU_TOKENS", 50)
    watched = Watched()
    measure_nll(loaded(watched.model), STREAMS, PLAN)
    batches = watched.batches()
    assert batches[0] == (3, 15)
    assert sum(rows for rows, _ in batches) == len(PLAN)
    assert max(rows * length for rows, length in batches) <= 50
    lengths = [length for _, length in batches]
    assert lengths == sorted(lengths, reverse=True)


# Questions of 20, 20, 12 and 9 tokens, each with the same four choices of a token.
QUIZ = Streams(tuple(np.append(ids, letter) for ids in documents(20, 20, 12, 9).ids for letter in (7, 8, 9, 10)), None)


@pytest.mark.parametrize(
    ("batch_size", "shapes"),
    [(1, [(1, 20), (1, 20), (1, 12), (1, 9)]), (3, [(3, 20), (1, 9)]), ("auto", [(4, 20)])],
)
def test_a_question_is_read_once_for_all_choices_of_one_token(batch_size: Any, shapes: list[tuple[int, int]]) -> None:
    watched, plan = Watched(), sliding(QUIZ, 32, 32)
    nll = measure_nll(loaded(watched.model), QUIZ, plan, batch_size=batch_size)
    assert watched.batches(QUIZ, plan) == shapes
    assert nll == pytest.approx(naive_nll(build("llama"), QUIZ, plan), rel=0, abs=1e-5)


def test_a_model_run_as_it_is_gets_smaller_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(f"{RUNNER}._PLAIN_LOGIT_BYTES", 4 * VOCABULARY * 33)
    watched = Watched()
    nll = measure_nll(loaded(plain(watched.model)), STREAMS, PLAN)
    sizes = [rows * length for rows, length in watched.shapes]
    sizes.remove(8 * 15)  # the trial of changed tokens, before
    assert max(sizes) <= 33
    assert nll == pytest.approx(naive_nll(watched.model, STREAMS, PLAN), rel=0, abs=1e-5)


def test_out_of_memory_halves_the_batch_and_goes_on() -> None:
    watched = Watched(most=40)
    nll = measure_nll(loaded(watched.model), STREAMS, PLAN)
    assert nll == pytest.approx(naive_nll(build("llama"), STREAMS, PLAN), rel=1e-5, abs=1e-5)
    too_large = [rows * length > 40 for rows, length in watched.batches()]
    assert 1 <= sum(too_large) <= 4
    assert too_large == sorted(too_large, reverse=True), "once lowered, the budget stays low"


@pytest.mark.parametrize("where", ["text", "prefix"])
def test_a_token_beyond_the_vocabulary_is_an_error_before_anything_runs(where: str) -> None:
    ids, watched = STREAMS.ids[0].copy(), Watched()
    if where == "text":
        ids[33] = VOCABULARY
    streams = Streams((ids,), VOCABULARY if where == "prefix" else None)
    with pytest.raises(ModelError, match=f"its tokenizer gives token id {VOCABULARY}, but its voc"):
        measure_nll(loaded(watched.model), streams, sliding(streams, 16, 8))
    assert watched.shapes == []


@pytest.mark.parametrize("prepare", [lambda model: model, plain], ids=["by the head", "by whole logits"])
def test_a_target_that_the_head_does_not_have_is_an_error(prepare: Any) -> None:
    model, most = build("llama"), VOCABULARY - 20
    model.lm_head = torch.nn.Linear(32, most, bias=False)  # some models embed more tokens than they can say
    ids = STREAMS.ids[0].copy() % most
    ids[33] = most
    streams = Streams((ids,), None)
    with pytest.raises(ModelError, match=f"gives token id {most}, but its vocabulary has {most}"):
        measure_nll(loaded(prepare(model)), streams, sliding(streams, 16, 8))


@pytest.mark.parametrize(("value", "kind"), [(torch.nan, "NaN"), (torch.inf, "(NaN|infinite)")])
@pytest.mark.parametrize("prepare", [lambda model: model, plain], ids=["by the head", "by whole logits"])
def test_a_likelihood_that_is_not_finite_names_document_and_token(value: float, kind: str, prepare: Any) -> None:
    model = build("mamba")  # in attention a single NaN spreads over its window
    with torch.no_grad():
        model.get_input_embeddings().weight[VOCABULARY - 1] = value
    ids = [each.copy() for each in STREAMS.ids]
    ids[2][35] = VOCABULARY - 1  # its successor's likelihood is the first that suffers
    with pytest.raises(NonFiniteError, match=f"^model 'Mamba.*': {kind} log-likelihood of token 36 in document 2"):
        measure_nll(loaded(prepare(model)), Streams(tuple(ids), None), PLAN, batch_size=4)


def test_the_result_is_in_double_precision_where_the_model_is() -> None:
    assert measure_nll(loaded(build("llama")), STREAMS, PLAN).dtype == np.float32
    model = build("llama", dtype=torch.float64)
    assert measure_nll(loaded(model), STREAMS, PLAN).dtype == np.float64
    assert measure_nll(loaded(plain(model)), STREAMS, PLAN).dtype == np.float64


def test_measuring_leaves_the_model_as_it_was_and_dropout_is_off_meanwhile() -> None:
    model = build("gpt2", resid_pdrop=0.5).train()
    model.transformer.h[0].eval()
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    first, second = (measure_nll(loaded(model), STREAMS, PLAN) for _ in range(2))
    assert (first == second).all()
    modules = (model, model.transformer.h[0], model.transformer.h[1].attn)
    assert [module.training for module in modules] == [True, False, True]
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())
    assert not model.lm_head._forward_pre_hooks
    assert all(parameter.requires_grad and parameter.grad is None for parameter in model.parameters())
    model(input_ids=torch.arange(8)[None], labels=torch.arange(8)[None]).loss.backward()
