"""Batches and their order, memory that runs out, interrupted and stopped measurements, and what cannot be measured."""

import types
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from pytest_lmgate.errors import ModelError, NonFiniteError
from pytest_lmgate.windows.protocols import WindowPlan
from pytest_lmgate.windows.tokens import Streams
from tests.engines.transformers.measuring import Kept, measure_nll
from tests.models.zoo import VOCABULARY, build, documents, loaded, naive_nll, sliding

STREAMS = documents(70, 9, 41, 2, 30)
PLAN = sliding(STREAMS, 16, 8)


class Watched:
    """A model that records the shape of each batch, and runs out of memory beyond a number of tokens."""

    def __init__(
        self, model: Any, most: float = np.inf, error: Callable[[], Exception] = torch.OutOfMemoryError
    ) -> None:
        self.model, self.shapes = model, list[tuple[int, int]]()
        self._most, self._error = most, error
        plain = model.forward

        def forward(module: Any, input_ids: Tensor, **given: Any) -> Any:
            self.shapes.append(tuple(input_ids.shape))
            if input_ids.numel() > most:
                raise error()
            return plain(input_ids=input_ids, **given)

        model.forward = types.MethodType(forward, model)

    @property
    def batches(self) -> list[tuple[int, int]]:
        """Without those that prove what the model is like."""
        return self.batches_of(STREAMS, PLAN)

    def batches_of(self, streams: Streams, plan: WindowPlan) -> list[tuple[int, int]]:
        """The same of other windows; the proof is all that a measurement runs that is known already."""
        proof = Watched(build("llama"), self._most, self._error)
        known = Kept(np.zeros(int(plan.targets.sum())))
        measure_nll(loaded(proof.model), streams, plan, kept=known)
        return self.shapes[len(proof.shapes) :]


def test_every_window_is_read_once_in_batches_of_like_length() -> None:
    watched = Watched(build("llama"))

    measure_nll(loaded(watched.model), STREAMS, PLAN, batch_size=4)

    rows = [rows for rows, _ in watched.batches]
    assert sum(rows) == len(PLAN)
    assert set(rows[:-1]) == {4}
    lengths = [length for _, length in watched.batches]
    assert lengths == sorted(lengths, reverse=True)


# Questions of 20, 20, 12 and 9 tokens, each with the same four choices of a token.
QUIZ = Streams(tuple(np.append(ids, letter) for ids in documents(20, 20, 12, 9).ids for letter in (7, 8, 9, 10)), None)


@pytest.mark.parametrize(
    ("batch_size", "shapes"),
    [(1, [(1, 20), (1, 20), (1, 12), (1, 9)]), (3, [(3, 20), (1, 9)]), ("auto", [(4, 20)])],
)
def test_a_question_is_read_once_for_all_choices_of_one_token(
    batch_size: int | str, shapes: list[tuple[int, int]]
) -> None:
    watched, plan = Watched(build("llama")), sliding(QUIZ, 32, 32)

    nll = measure_nll(loaded(watched.model), QUIZ, plan, batch_size=batch_size)

    assert watched.batches_of(QUIZ, plan) == shapes
    assert nll == pytest.approx(naive_nll(build("llama"), QUIZ, plan), rel=0, abs=1e-5)


def test_a_batch_holds_no_more_tokens_than_the_budget(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pytest_lmgate.engines.transformers.runner._CPU_TOKENS", 50)
    watched = Watched(build("llama"))

    measure_nll(loaded(watched.model), STREAMS, PLAN)

    assert max(rows * length for rows, length in watched.batches) <= 50
    assert watched.batches[0] == (3, 15)


def test_a_model_run_as_it_is_gets_smaller_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pytest_lmgate.engines.transformers.runner._PLAIN_LOGIT_BYTES", 4 * VOCABULARY * 33)
    watched = Watched(build("llama"))
    watched.model.get_output_embeddings = lambda: None

    nll = measure_nll(loaded(watched.model), STREAMS, PLAN)

    sizes = [rows * length for rows, length in watched.shapes]
    sizes.remove(8 * 15)  # the trial of changed tokens, before
    assert max(sizes) <= 33
    assert nll == pytest.approx(naive_nll(watched.model, STREAMS, PLAN), rel=0, abs=1e-5)


@pytest.mark.parametrize("batch_size", [7, "auto"])
def test_out_of_memory_halves_the_batch_and_goes_on(batch_size: int | str) -> None:
    expected = measure_nll(loaded(build("llama")), STREAMS, PLAN)
    watched = Watched(build("llama"), most=40)

    nll = measure_nll(loaded(watched.model), STREAMS, PLAN, batch_size=batch_size)

    assert nll == pytest.approx(expected, rel=1e-6, abs=1e-5)
    fitted = [rows * length for rows, length in watched.batches if rows * length <= 40]
    failed = [rows * length for rows, length in watched.batches if rows * length > 40]
    assert 1 <= len(failed) <= 4
    # Once lowered, the budget stays low: the failures all come first.
    assert [rows * length > 40 for rows, length in watched.batches] == [True] * len(failed) + [False] * len(fitted)


# What cannot be measured.


@pytest.mark.parametrize("where", ["text", "prefix"])
def test_a_token_beyond_the_vocabulary_is_an_error_before_anything_runs(where: str) -> None:
    ids = STREAMS.ids[0].copy()
    if where == "text":
        ids[33] = VOCABULARY
    streams = Streams((ids,), VOCABULARY if where == "prefix" else None)
    watched = Watched(build("llama"))

    with pytest.raises(ModelError, match=f"'LlamaForCausalLM': its tokenizer gives token id {VOCABULARY}, but its voc"):
        measure_nll(loaded(watched.model), streams, sliding(streams, 16, 8))

    assert watched.shapes == []


@pytest.mark.parametrize("is_streamed", [True, False])
def test_a_target_that_the_head_does_not_have_is_an_error(is_streamed: bool) -> None:
    """Some models embed more tokens than they can say."""
    model = build("llama")
    model.lm_head = torch.nn.Linear(32, VOCABULARY - 20, bias=False)
    if not is_streamed:
        model.get_output_embeddings = lambda: None
    ids = STREAMS.ids[0].copy() % (VOCABULARY - 20)
    ids[33] = VOCABULARY - 20
    streams = Streams((ids,), None)

    with pytest.raises(ModelError, match=f"gives token id {VOCABULARY - 20}, but its vocabulary has {VOCABULARY - 20}"):
        measure_nll(loaded(model), streams, sliding(streams, 16, 8))


@pytest.mark.parametrize(("value", "kind"), [(torch.nan, "NaN"), (torch.inf, "(NaN|infinite)")])
@pytest.mark.parametrize("is_streamed", [True, False])
def test_a_likelihood_that_is_not_finite_names_document_and_token(value: float, kind: str, is_streamed: bool) -> None:
    model = build("mamba")  # in attention a single NaN spreads over its window
    with torch.no_grad():
        model.get_input_embeddings().weight[VOCABULARY - 1] = value
    if not is_streamed:
        model.get_output_embeddings = lambda: None
    ids = [each.copy() for each in STREAMS.ids]
    ids[2][35] = VOCABULARY - 1  # its successor's likelihood is the first that suffers
    streams = Streams(tuple(ids), None)

    with pytest.raises(NonFiniteError, match=f"^model 'Mamba.*': {kind} log-likelihood of token 36 in document 2"):
        measure_nll(loaded(model), streams, PLAN, batch_size=4)


def test_the_result_is_in_double_precision_where_the_model_is() -> None:
    assert measure_nll(loaded(build("llama")), STREAMS, PLAN).dtype == np.float32
    model = build("llama", dtype=torch.float64)
    assert measure_nll(loaded(model), STREAMS, PLAN).dtype == np.float64
    model.get_output_embeddings = lambda: None
    assert measure_nll(loaded(model), STREAMS, PLAN).dtype == np.float64


def test_measuring_leaves_the_model_as_it_was() -> None:
    model = build("llama").train()
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}

    measure_nll(loaded(model), STREAMS, PLAN)

    assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())
    assert not model.lm_head._forward_pre_hooks
    assert all(parameter.requires_grad and parameter.grad is None for parameter in model.parameters())
    model(input_ids=torch.arange(8)[None], labels=torch.arange(8)[None]).loss.backward()
