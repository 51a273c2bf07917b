"""Pseudo-likelihoods are those of a loop that masks one token at a time; special tokens are not scored."""

from typing import Any

import numpy as np
import pytest
import torch

from pytest_lmgate.engines.checkpoints import Architecture
from pytest_lmgate.engines.tokenizers import quiet, tokenizer_facts
from pytest_lmgate.errors import DataError, ModelError, NonFiniteError
from pytest_lmgate.windows.requests import Piece, cut_pieces
from tests.engines.transformers.measuring import measure_pseudo_nll
from tests.engines.transformers.writing import prompts
from tests.models.encoders import MASK, MASKED, framed_tokenizer, masked
from tests.models.zoo import CONTEXT, loaded

Floats = np.ndarray[Any, np.dtype[np.float64]]

# No <s>: its id is that of the padding of models which count positions from behind it.
TOKENIZER = framed_tokenizer("</s> $A </s>", mask=True)
TEXTS = prompts(3, 9, 1, 5, 26)


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


@pytest.mark.parametrize("name", MASKED)
def test_batches_of_masked_copies_are_the_loop_over_masks(name: str) -> None:
    model, pieces = masked(name), pieces_of(TEXTS, max_length=12)
    expected = one_by_one(model, pieces)
    assert len(expected) == sum(len(text.split()) for text in TEXTS)
    assert expected.std() > 0.5
    for size in (1, "auto") if name == "bert" else (5,):
        np.testing.assert_allclose(measure(model, pieces, batch_size=size), expected, atol=1e-5, rtol=0)
    # A piece may be as long as the context; RoBERTa and its kin have positions that no token ever has.
    assert Architecture(name, model.config.to_dict()).context == CONTEXT
    (longest,) = pieces_of(prompts(62))
    assert len(longest.ids) == CONTEXT
    assert np.isfinite(measure(model, [longest])).all()


def test_every_token_of_a_long_text_is_scored_once_in_pieces_with_special_tokens_of_their_own() -> None:
    text = prompts(25)[0]
    pieces = pieces_of([text], max_length=10)
    assert [len(piece.ids) for piece in pieces] == [10, 10, 10, 3]
    assert all(piece.ids[0] == piece.ids[-1] == 2 for piece in pieces)
    scored = np.concatenate([piece.ids[piece.targets] for piece in pieces])
    assert scored.tolist() == TOKENIZER(text, add_special_tokens=False)["input_ids"]


@pytest.mark.parametrize("template", ["$A", "<s> $A </s>", "<s> <s> $A", "$A </s> </s>"])
def test_special_tokens_around_and_within_a_text_are_read_but_not_scored_and_unknown_words_are(template: str) -> None:
    tokenizer = framed_tokenizer(template, mask=True)
    (piece,) = pieces_of(["w5 </s> w6 nobody <mask> <pad> w7"], tokenizer)
    assert piece.ids.tolist() == tokenizer("w5 </s> w6 nobody <mask> <pad> w7")["input_ids"]
    assert piece.ids[piece.targets].tolist() == [10, 11, 3, 12]


def test_documents_without_a_token_are_left_out_and_the_others_keep_their_numbers() -> None:
    assert [piece.document for piece in pieces_of(["", "w5", " ", "<mask>", "w6"])] == [1, 4]
    with pytest.raises(DataError, match="dataset 'texts': expected text, got none that has a token"):
        pieces_of(["", " "])


def test_damaged_weights_are_an_error_that_names_the_token() -> None:
    model = masked("bert", tie_word_embeddings=False)
    with torch.no_grad():
        model.bert.embeddings.word_embeddings.weight[10] = float("nan")
    with pytest.raises(NonFiniteError, match="NaN log-likelihood of token 1 in document 1 of 'texts'"):
        measure(model, pieces_of(["w6 w7", "w8 w5"]), batch_size=1)


def test_a_tokenizer_without_a_mask_or_room_beside_the_special_tokens_is_an_error() -> None:
    with pytest.raises(ModelError, match="pppl masks one token at a time, but its tokenizer has no mask token"):
        pieces_of(TEXTS, framed_tokenizer("<s> $A </s>"))
    with pytest.raises(ModelError, match="max_length=2 leaves no room for text besides its special tokens"):
        pieces_of(TEXTS, max_length=2)
