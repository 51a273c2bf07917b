"""A row has the same numbers in any batch: where a model would give others, its rows are read alone, and it says so."""

import types
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from pytest_lmgate.engines.tokenizers import tokenizer_facts
from pytest_lmgate.engines.transformers.head import follows_length
from pytest_lmgate.errors import ModelError
from pytest_lmgate.measure import loop
from pytest_lmgate.windows.protocols import WindowPlan
from pytest_lmgate.windows.requests import Pair, cut_pieces
from pytest_lmgate.windows.tokens import Streams
from tests.engines.transformers import writing
from tests.engines.transformers.measuring import (
    measure_conditional_nll,
    measure_divergence,
    measure_nll,
    measure_pseudo_nll,
    pair_of,
)
from tests.models.encoders import encoder_decoder, framed_tokenizer, masked
from tests.models.zoo import (
    ARCHITECTURES,
    build,
    documents,
    dynamic_int8,
    loaded,
    naive_nll,
    sliding,
    word_tokenizer,
    words,
)

TRAINED_FOR = 32
STREAMS = documents(60, 7, 41, 12, 35, 50, 20, seed=4)
PLAN = sliding(STREAMS, 64, 64)
RUNNER = "pytest_lmgate.engines.transformers.runner"
DYNAMIC_ROPE = {"rope_type": "dynamic", "rope_theta": 1e4, "factor": 2.0}


def longrope() -> Any:
    """As Phi-3-128k: other frequencies for all rows of a batch whose longest is beyond the trained length."""
    trained = {"original_max_position_embeddings": TRAINED_FOR}
    scaling = {"rope_type": "longrope", "rope_theta": 1e4, "short_factor": [1.0] * 4, "long_factor": [4.0] * 4}
    return build("phi3", **ARCHITECTURES["llama"], **trained, rope_parameters=scaling | trained)


def dynamic() -> Any:
    """Frequencies follow the longest row read so far, until a row is within the trained length."""
    return build("llama", max_position_embeddings=TRAINED_FOR, rope_parameters=DYNAMIC_ROPE)


def int8() -> Any:
    """One scale for the activations of a whole batch."""
    return dynamic_int8(build("llama"))


MODELS: dict[str, Callable[[], Any]] = {"longrope": longrope, "dynamic": dynamic, "int8": int8}


def one_at_a_time(name: str, streams: Streams, plan: WindowPlan) -> np.ndarray[Any, Any]:
    """Each window by a model that has read nothing before."""
    found = []
    for window in range(len(plan)):
        arrays = (getattr(plan, key)[window : window + 1] for key in ("document", "begin", "end", "first", "prefix"))
        found.append(naive_nll(MODELS[name](), streams, WindowPlan(*arrays)))
    return np.concatenate(found)


@pytest.mark.parametrize(
    ("name", "batch_size", "budget"),
    [("longrope", "auto", None), ("dynamic", 3, None), ("int8", "auto", None), ("longrope", "auto", 40)],
)
def test_windows_have_the_numbers_that_they_have_alone(
    name: str, batch_size: Any, budget: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    if budget:  # the longest window is too long to be tried beside another, and half of it within the trained length
        monkeypatch.setattr(f"{RUNNER}._CPU_TOKENS", budget)
    said: list[str] = []
    nll = measure_nll(loaded(MODELS[name]()), STREAMS, PLAN, batch_size=batch_size, remark=said.append)
    assert nll == pytest.approx(one_at_a_time(name, STREAMS, PLAN), rel=1e-4, abs=1e-4)
    assert len(said) == 1
    assert f"so each row is read with {'no other row' if name == 'int8' else 'rows of its own length'}" in said[0]


DYNAMIC = types.SimpleNamespace(
    model_type="text", rope_parameters={"rope_type": "dynamic"}, max_position_embeddings=TRAINED_FOR
)


@pytest.mark.parametrize(
    ("config", "trained"),
    [
        (vars(DYNAMIC), 32),
        ({"rope_scaling": {"type": "dynamic", "factor": 2.0}, "max_position_embeddings": 32}, 32),
        ({"rope_parameters": {"full": {"rope_type": "longrope"}, "sliding": None}, "max_position_embeddings": 32}, 32),
        ({"rope_parameters": {"rope_type": "longrope", "original_max_position_embeddings": 16}}, 16),
        ({"rope_parameters": {"rope_type": "longrope"}}, 0),
        ({"rope_parameters": {"rope_type": "yarn"}, "max_position_embeddings": 32}, None),
        ({"rope_scaling": {"type": "longrope", "original_max_position_embeddings": 32.0}}, 32),
        ({"thinker_config": types.SimpleNamespace(model_type="outer", text_config=DYNAMIC)}, 32),
        ({"rope_scaling": None}, None),
        ({}, None),
    ],
)
def test_frequencies_that_follow_the_length_are_told_by_the_config(config: dict[str, Any], trained: int | None) -> None:
    model = types.SimpleNamespace(config=types.SimpleNamespace(**config))
    tried = [tokens for tokens in range(100) if follows_length(model, tokens)]
    assert tried == ([] if trained is None else list(range(trained + 1, 100)))


@pytest.mark.parametrize("beyond", [0, 1])
@pytest.mark.parametrize("name", ["longrope", "dynamic"])
def test_windows_within_the_trained_length_share_batches_and_one_just_beyond_it_is_read_alone(
    name: str, beyond: int
) -> None:
    # So little beyond it that the first tokens of another row would not tell.
    streams, said = documents(TRAINED_FOR + beyond, TRAINED_FOR - 3, TRAINED_FOR // 2, seed=9), list[str]()
    plan = sliding(streams, 64, 64)
    nll = measure_nll(loaded(MODELS[name]()), streams, plan, remark=said.append)
    assert nll == pytest.approx(one_at_a_time(name, streams, plan), rel=1e-5, abs=1e-5)
    assert beyond or said == []


@pytest.mark.parametrize("lengths", [(TRAINED_FOR, TRAINED_FOR), (50, 40, 45)])
def test_windows_have_the_same_numbers_after_another_dataset_of_longer_ones(lengths: tuple[int, ...]) -> None:
    model, streams = loaded(dynamic()), documents(*lengths, seed=9)
    measure_nll(model, STREAMS, PLAN)
    nll = measure_nll(model, streams, sliding(streams, 64, 64), dataset="e")
    assert nll == pytest.approx(one_at_a_time("dynamic", streams, sliding(streams, 64, 64)), rel=1e-4, abs=1e-4)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("name", ["gpt2", "llama", "mixtral"])
def test_other_models_share_batches_and_nothing_is_said(name: str, dtype: torch.dtype) -> None:
    model, rows, said = build(name, dtype=dtype), list[int](), list[str]()
    plain = model.forward
    model.forward = lambda input_ids, **given: rows.append(len(input_ids)) or plain(input_ids=input_ids, **given)
    measure_nll(loaded(model), STREAMS, PLAN, remark=said.append)
    assert (said, rows[-1]) == ([], len(PLAN))


@pytest.mark.parametrize(("name", "side_by_side"), [("longrope", True), ("dynamic", False), ("int8", False)])
def test_divergences_are_those_of_windows_alone(name: str, side_by_side: bool) -> None:
    said: list[str] = []
    pair = pair_of(loaded(build("llama")), loaded(MODELS[name]()), side_by_side=side_by_side)
    found = measure_divergence(pair, STREAMS, PLAN, remark=said.append)
    assert found[:, 4] == pytest.approx(one_at_a_time(name, STREAMS, PLAN), rel=1e-4, abs=1e-4)
    assert found[:, 3] == pytest.approx(naive_nll(build("llama"), STREAMS, PLAN), rel=1e-5, abs=1e-5)
    assert len(said) == 1


@pytest.mark.parametrize(
    ("make", "lengths"),
    [
        (lambda: dynamic_int8(masked("bert")), (9, 14, 6)),
        (lambda: masked("eurobert", rope_parameters=DYNAMIC_ROPE), (70, 66)),
    ],
    ids=["int8", "dynamic"],
)
def test_masked_copies_have_the_numbers_of_their_text_alone(make: Callable[[], Any], lengths: tuple[int, ...]) -> None:
    tokenizer = framed_tokenizer("<s> $A </s>", mask=True)
    texts = [" ".join(words()[20 * at : 20 * at + length]) for at, length in enumerate(lengths)]
    pieces = cut_pieces(texts, tokenizer_facts(tokenizer), 128, model="m", dataset="d")
    nll = measure_pseudo_nll(loaded(make(), tokenizer), pieces)
    alone = [measure_pseudo_nll(loaded(make(), tokenizer), [piece], batch_size=1) for piece in pieces]
    assert nll == pytest.approx(np.concatenate(alone), rel=1e-4, abs=1e-4)


@pytest.mark.parametrize(("name", "lengths"), [("longrope", (10, 60, 20, 24)), ("dynamic", (50, 40, 60, 36))])
def test_texts_are_written_as_each_is_alone(name: str, lengths: tuple[int, ...]) -> None:
    rows, tokenizer = writing.prompts(*lengths), word_tokenizer()
    texts = writing.written(MODELS[name](), tokenizer, rows, context=None)
    assert texts == [writing.alone(MODELS[name](), tokenizer, [row])[0] for row in rows]


def test_pairs_run_alone_where_padding_is_looked_at() -> None:
    generator, said = np.random.default_rng(0), list[str]()
    pairs = [Pair(*(generator.integers(5, 90, size=length) for length in lengths)) for lengths in ((9, 12), (4, 3))]
    measure_conditional_nll(loaded(encoder_decoder("prophetnet"), framed_tokenizer()), pairs, remark=said.append)
    assert len(said) == 1
    assert "no other row" in said[0]


@pytest.mark.parametrize("lengths", [(60,), (60, 60), (60, 30, 45)])
@pytest.mark.parametrize("draw", [lambda: torch.randn(()).item(), np.random.default_rng(0).standard_normal])
def test_a_model_that_draws_its_numbers_is_an_error(draw: Callable[[], float], lengths: tuple[int, ...]) -> None:
    model, streams = build("llama"), documents(*lengths)
    plain = model.forward

    def noisy(**given: Any) -> Any:
        output = plain(**given)
        output.logits = output.logits * (1 + 0.01 * draw())
        return output

    model.forward, model.get_output_embeddings = noisy, lambda: None
    with pytest.raises(ModelError, match="is not deterministic"):
        measure_nll(loaded(model), streams, sliding(streams, 64, 64))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_an_interrupted_run_goes_on_with_the_same_batches_and_the_same_bits(
    dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Half precision moves with what a batch holds, so that what is left to do must not decide that."""
    monkeypatch.setattr(f"{RUNNER}._CPU_TOKENS", 130)
    monkeypatch.setattr(loop, "SAVE_SECONDS", 0.0)
    model, saved = build("llama", dtype=dtype), list[np.ndarray[Any, Any]]()
    whole = measure_nll(loaded(model), STREAMS, PLAN, save=lambda nll: saved.append(nll.copy()))
    assert len(saved) >= 2
    for known in saved[:]:
        assert (measure_nll(loaded(model), STREAMS, PLAN, known=known) == whole).all()
