"""NLLs of targets given sources are those of ``model(input_ids, labels=labels)``, one row at a time, in float64."""

from typing import Any

import numpy as np
import pytest
import torch

from pytest_lmgate.engines.tokenizers import quiet, tokenizer_facts
from pytest_lmgate.engines.transformers.runner import TransformersRunner
from pytest_lmgate.errors import DataError, ModelError, NonFiniteError
from pytest_lmgate.measure.loop import Job, score_requests
from pytest_lmgate.windows.requests import Pair, encode_pairs, pair_requests
from tests.engines.transformers.measuring import measure_conditional_nll
from tests.engines.transformers.writing import PROMPTS, prompts
from tests.models.encoders import ENCODER_DECODERS, encoder_decoder, framed_tokenizer
from tests.models.zoo import CONTEXT, loaded

TOKENIZER = framed_tokenizer()
TARGETS = prompts(4, 1, 8, 5, 2, 11, 4, seed=1)
# Heads that cannot be split off: a soft-cap that the config nests too deep, several streams.
PLAIN = {"t5gemma", "prophetnet"}


def pairs_of(model: Any, tokenizer: Any = TOKENIZER, context: int | None = CONTEXT) -> list[Pair]:
    return encode_pairs(
        tokenizer_facts(tokenizer), PROMPTS, TARGETS, model=type(model).__name__, dataset="rows", context=context
    )


def loss(model: Any, pairs: list[Pair]) -> np.ndarray[Any, np.dtype[np.float64]]:
    """One row at a time, no padding, the shift left to the model."""
    nll: list[float] = []
    for pair in pairs:
        labels = torch.from_numpy(pair.target)[None]
        with torch.no_grad(), quiet():
            logits = model(input_ids=torch.from_numpy(pair.source)[None], labels=labels).logits
        log_p = torch.log_softmax(logits[0].double(), -1)
        nll += (-log_p.gather(-1, labels[0, :, None])[:, 0]).tolist()
    return np.array(nll)


def measure(model: Any, pairs: list[Pair], **how: Any) -> np.ndarray[Any, np.dtype[np.float64]]:
    return measure_conditional_nll(loaded(model, TOKENIZER), pairs, dataset="rows", **how)


@pytest.mark.parametrize("name", ENCODER_DECODERS)
def test_nlls_are_the_models_own_in_any_batch(name: str) -> None:
    model = encoder_decoder(name)
    pairs = pairs_of(model)
    expected = loss(model, pairs)
    assert expected.std() > 0.2
    for size in (1, "auto") if name == "t5" else (3,):
        runner = TransformersRunner(loaded(model, TOKENIZER), None)
        found = score_requests(
            runner, pair_requests(pairs, "rows"), Job(model="m", dataset="rows", batch_size=size)
        ).nll
        np.testing.assert_allclose(found, expected, atol=1e-5, rtol=0)
        assert (runner._scorer.head is not None) == (name not in PLAIN)


def test_targets_beyond_the_trained_length_of_a_decoder_have_the_numbers_that_they_have_alone() -> None:
    """Its rotary frequencies follow the longest target read so far."""
    scaling = {"rope_type": "dynamic", "rope_theta": 1e4, "factor": 2.0}
    decoder = ENCODER_DECODERS["t5gemma"]["decoder"] | {"rope_parameters": scaling, "max_position_embeddings": 16}

    def model() -> Any:
        return encoder_decoder("t5gemma", decoder=decoder)

    ids = np.random.default_rng(0).integers(5, 30, 30)
    pairs = [Pair(ids[:10], ids[:length]) for length in (20, 18, 24, 9)]
    expected = np.concatenate([loss(model(), [pair]) for pair in pairs])
    for size in (1, 3, "auto"):
        np.testing.assert_allclose(measure(model(), pairs, batch_size=size), expected, atol=1e-5, rtol=0)


def test_what_the_tokenizer_adds_to_a_target_is_scored() -> None:
    model, tokenizer = encoder_decoder("bart"), framed_tokenizer("<s> $A </s>")
    pairs = pairs_of(model, tokenizer)
    assert [pair.target[0] for pair in pairs] == [tokenizer.bos_token_id] * len(pairs)
    np.testing.assert_allclose(measure(model, pairs), loss(model, pairs), atol=1e-5, rtol=0)


def test_damaged_weights_are_an_error_that_names_the_row() -> None:
    model = encoder_decoder("bart")
    pairs = pairs_of(model)
    token = int(pairs[2].source[0])
    assert all(token not in pair.source and token not in pair.target for pair in (*pairs[:2], *pairs[3:]))
    with torch.no_grad():
        model.model.encoder.embed_tokens.weight[token] = float("nan")
    with pytest.raises(NonFiniteError, match="NaN log-likelihood of target token 0 in row 2 of 'rows'"):
        measure(model, pairs, batch_size=1)


def test_a_source_that_does_not_fit_loses_its_left_where_the_dataset_says_so() -> None:
    facts, long = tokenizer_facts(framed_tokenizer("<s> $A </s>")), prompts(65)[0]
    (pair,) = encode_pairs(facts, [long], ["w1"], model="m", dataset="rows", context=CONTEXT, cut=True)
    whole = facts.encode(long, True)
    assert pair.source.tolist() == [whole[0], *whole[-CONTEXT + 1 :]]


@pytest.mark.parametrize("name", ["bart", "m2m_100", "t5"])
def test_a_decoder_that_begins_with_no_known_token_is_an_error(name: str) -> None:
    model = encoder_decoder(name)
    model.config.decoder_start_token_id = None
    with pytest.raises(ModelError, match="its decoder has no start token; set decoder_start_token_id"):
        measure(model, pairs_of(model))


LONG = prompts(65)[0]


@pytest.mark.parametrize(
    ("source", "target", "message"),
    [
        ("w1", "", "row 0: expected a target, got one without a token"),
        ("", "w1", "row 0: expected a prompt, got one without a token"),
        ("w1", LONG, "row 0: the target has 65 tokens, but the model 'T5' can write 64"),
        (LONG, "w1", "row 0: the prompt has 65 tokens, but the model .* has room for 64 .context 64.; shorten it"),
        ("w1", "w1\ud83d", "row 0: the target: .* at character 2 is half of a surrogate pair"),
    ],
)
def test_rows_that_cannot_be_read_are_errors_that_name_them(source: str, target: str, message: str) -> None:
    facts = tokenizer_facts(framed_tokenizer("$A"))
    with pytest.raises(DataError, match=f"dataset 'rows': {message}"):
        encode_pairs(facts, [source], [target], model="T5", dataset="rows", context=CONTEXT)


def test_a_bias_behind_the_head_is_not_lost() -> None:
    model = encoder_decoder("marian")
    model.final_logits_bias.normal_(0, 3)
    pairs = pairs_of(model)
    np.testing.assert_allclose(measure(model, pairs), loss(model, pairs), atol=1e-5, rtol=0)
