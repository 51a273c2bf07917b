"""Pseudo-likelihoods are those of a loop that masks one token at a time; special tokens are not scored."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from pytest_lmgate.backends.hf.models.checkpoint import Architecture
from pytest_lmgate.backends.hf.models.loading import quiet, tokenizer_facts
from pytest_lmgate.data.requests.masked import Piece, cut_pieces
from pytest_lmgate.engine.loop import Progress
from pytest_lmgate.errors import DataError, EngineError, ModelError, NonFiniteError
from tests.engine.measuring import Kept, measure_pseudo_nll
from tests.engine.writing import prompts
from tests.models.encoders import MASK, MASKED, framed_tokenizer, masked
from tests.models.zoo import CONTEXT, loaded

Floats = np.ndarray[Any, np.dtype[np.float64]]

# No <s>: its id is that of the padding of models which count positions from behind it.
TOKENIZER = framed_tokenizer("</s> $A </s>", mask=True)
TEXTS = prompts(3, 9, 1, 5, 9, 17, 4, 70)


def pieces_of(texts: list[str], tokenizer: Any = TOKENIZER, max_length: int | None = CONTEXT) -> list[Piece]:
    return cut_pieces(texts, tokenizer_facts(tokenizer), max_length, model="m", dataset="texts")


def one_by_one(model: Any, pieces: list[Piece]) -> Floats:
    nll = []
    for piece in pieces:
        for position in piece.targets:
            ids = torch.from_numpy(piece.ids.copy())[None]
            ids[0, position] = MASK
            with torch.no_grad(), quiet():
                logits = model(input_ids=ids, attention_mask=torch.ones_like(ids)).logits
            nll.append(-torch.log_softmax(logits[0, position].double(), -1)[piece.ids[position]].item())
    return np.array(nll)


def measure(model: Any, pieces: list[Piece], tokenizer: Any = TOKENIZER, **how: Any) -> Floats:
    return measure_pseudo_nll(loaded(model, tokenizer), pieces, dataset="texts", **how)


@pytest.fixture(scope="module")
def bert() -> Any:
    return masked("bert")


@pytest.mark.parametrize("name", MASKED)
def test_batches_of_masked_copies_are_the_loop_over_masks(name: str) -> None:
    model = masked(name)
    pieces = pieces_of(TEXTS)
    expected = one_by_one(model, pieces)
    assert len(expected) == sum(len(text.split()) for text in TEXTS)
    assert expected.std() > 0.5
    for size in (1, 3, 16, "auto"):
        np.testing.assert_allclose(measure(model, pieces, batch_size=size), expected, atol=1e-5, rtol=0)


@pytest.mark.parametrize("name", MASKED)
def test_a_piece_as_long_as_the_context_can_be_read(name: str) -> None:
    model = masked(name)
    context = Architecture(name, model.config.to_dict()).context
    # RoBERTa and its kin have positions that no token ever has.
    assert context == CONTEXT
    assert {len(piece.ids) for piece in pieces_of(prompts(62), max_length=context)} == {CONTEXT}
    assert np.isfinite(measure(model, pieces_of(prompts(62)))).all()


@pytest.mark.parametrize("name", ["bert", "distilbert", "mpnet", "roberta"])
def test_a_piece_longer_than_the_context_fails_with_an_error(name: str) -> None:
    with pytest.raises(EngineError, match=r"tokens failed: .*an input beyond the model's context fails like this"):
        measure(masked(name), pieces_of(prompts(63), max_length=None))


def test_every_token_of_a_long_text_is_scored_once_in_pieces_with_special_tokens_of_their_own() -> None:
    text = prompts(25)[0]
    pieces = pieces_of([text], max_length=10)
    assert [len(piece.ids) for piece in pieces] == [10, 10, 10, 3]
    assert all(piece.ids[0] == piece.ids[-1] == 2 for piece in pieces)
    scored = np.concatenate([piece.ids[piece.targets] for piece in pieces])
    assert scored.tolist() == TOKENIZER(text, add_special_tokens=False)["input_ids"]


@pytest.mark.parametrize("template", ["$A", "<s> $A </s>", "<s> <s> $A", "$A </s> </s>"])
def test_what_stands_around_a_text_is_read_but_not_scored(template: str) -> None:
    tokenizer = framed_tokenizer(template, mask=True)
    (piece,) = pieces_of(["w5 w6 w7"], tokenizer)
    assert piece.ids.tolist() == tokenizer("w5 w6 w7")["input_ids"]
    assert piece.ids[piece.targets].tolist() == tokenizer("w5 w6 w7", add_special_tokens=False)["input_ids"]


def test_special_tokens_within_a_text_are_read_but_not_scored_and_unknown_words_are() -> None:
    (piece,) = pieces_of(["w5 </s> w6 nobody <mask> <pad> w7"])
    assert piece.ids[1:-1].tolist() == [10, 2, 11, 3, MASK, 0, 12]
    assert piece.ids[piece.targets].tolist() == [10, 11, 3, 12]


def test_documents_without_a_token_are_left_out_and_the_others_keep_their_numbers() -> None:
    assert [piece.document for piece in pieces_of(["", "w5", " ", "<mask>", "w6"])] == [1, 4]


def test_a_piece_does_not_change_what_another_one_has(bert: Any) -> None:
    whole = measure(bert, pieces_of(TEXTS))
    first = measure(bert, pieces_of(TEXTS[:3]))
    np.testing.assert_allclose(first, whole[: len(first)], atol=1e-6)


def test_masks_matter(bert: Any) -> None:
    pieces = pieces_of(TEXTS[:2])
    seen = []
    for piece in pieces:
        with torch.no_grad():
            log_p = torch.log_softmax(bert(input_ids=torch.from_numpy(piece.ids)[None]).logits[0].double(), -1)
        seen += (-log_p[piece.targets, piece.ids[piece.targets]]).tolist()
    assert np.abs(measure(bert, pieces) - np.array(seen)).max() > 0.1


def test_a_head_that_cannot_be_split_off_is_left_to_the_model(bert: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    pieces = pieces_of(TEXTS)
    expected = measure(bert, pieces)

    def no_head() -> Any:
        raise NotImplementedError

    monkeypatch.setattr(bert, "get_output_embeddings", no_head)
    np.testing.assert_allclose(measure(bert, pieces), expected, atol=1e-5)


def test_a_model_in_training_is_measured_without_dropout_and_goes_on_training() -> None:
    model = masked("bert", hidden_dropout_prob=0.5)
    pieces = pieces_of(TEXTS)
    expected = measure(model, pieces)
    model.train()
    np.testing.assert_array_equal(measure(model, pieces), expected)
    assert model.training


def test_out_of_memory_halves_the_batch(bert: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    pieces = pieces_of(TEXTS)
    expected, forward, failed = measure(bert, pieces), bert.forward, list[int]()

    def scarce(input_ids: torch.Tensor, **how: Any) -> Any:
        if input_ids.numel() > 300:
            failed.append(input_ids.numel())
            raise torch.OutOfMemoryError("CUDA out of memory")
        return forward(input_ids=input_ids, **how)

    monkeypatch.setattr(bert, "forward", scarce)
    np.testing.assert_allclose(measure(bert, pieces), expected, atol=1e-5)
    assert failed == [2048, 1024, 512]  # 32 copies of 64 tokens, halved until they fit; never as many tokens again


def test_an_interrupted_measurement_goes_on_where_it_was(bert: Any) -> None:
    pieces = pieces_of(TEXTS)
    expected, kept, told = measure(bert, pieces), list[Floats](), list[Progress]()

    def interrupt(nll: Floats) -> None:
        kept.append(nll.copy())
        if len(kept) == 3:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        measure(bert, pieces, batch_size=8, kept=Kept(save=interrupt, every=0))
    known = kept[-1]
    assert np.isfinite(known).sum() == 3 * 8
    marked = np.where(np.isfinite(known), 7.0, known)
    again = measure(bert, pieces, report=told.append, kept=Kept(marked))
    np.testing.assert_allclose(again, np.where(np.isfinite(known), 7.0, expected), atol=1e-5)
    assert {each.resumed for each in told} == {24}
    assert told[-1].done == told[-1].of == len(expected)


def test_what_an_earlier_run_left_of_other_texts_is_not_taken(bert: Any) -> None:
    pieces = pieces_of(TEXTS)
    found = measure(bert, pieces, kept=Kept(np.full(5, 7.0)))
    np.testing.assert_allclose(found, measure(bert, pieces), atol=1e-6)


def test_damaged_weights_are_an_error_that_names_the_token() -> None:
    model = masked("bert", tie_word_embeddings=False)
    with torch.no_grad():
        model.bert.embeddings.word_embeddings.weight[10] = float("nan")
    with pytest.raises(NonFiniteError, match="NaN log-likelihood of token 1 in document 1 of 'texts'"):
        measure(model, pieces_of(["w6 w7", "w8 w5"]), batch_size=1)


def test_a_tokenizer_without_a_mask_is_an_error() -> None:
    tokenizer = framed_tokenizer("<s> $A </s>")
    with pytest.raises(ModelError, match="pppl masks one token at a time, but its tokenizer has no mask token"):
        pieces_of(TEXTS, tokenizer)


def test_a_token_beyond_the_vocabulary_is_an_error() -> None:
    with pytest.raises(ModelError, match="gives token id 96, but its vocabulary has 90 entries"):
        measure(masked("bert", vocab_size=90), [Piece(0, np.array([2, 96, 2]), np.array([1]))])


def test_texts_without_a_token_are_an_error() -> None:
    with pytest.raises(DataError, match="dataset 'texts': expected text, got none that has a token"):
        pieces_of(["", " "])


def test_no_room_beside_the_special_tokens_is_an_error() -> None:
    with pytest.raises(ModelError, match="max_length=2 leaves no room beside its special tokens"):
        pieces_of(TEXTS, max_length=2)
