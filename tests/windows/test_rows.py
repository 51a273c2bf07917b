"""Each token of joined rows belongs to the row that its characters come from, by real tokenizers."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tokenizers
import transformers

from pytest_lmgate.data.corpus import Corpus
from pytest_lmgate.engines.tokenizers import tokenizer_facts
from pytest_lmgate.windows.protocols import plan_windows, row_begins, rows_by_starts, tokenize
from pytest_lmgate.windows.requests import row_targets
from pytest_lmgate.windows.tokens import TokenizerFacts
from tests.windows.documents import trained_bpe, windowing

LETTERS = "abcdefghij"


def rows_of_letters(seed: int = 0) -> tuple[str, ...]:
    """Ten rows of uneven length, each of words of its own letter, so that a token's text tells its row."""
    random = np.random.default_rng(seed)
    return tuple(
        " ".join(letter * int(size) for size in random.integers(1, 9, int(random.lognormal(2, 1)) + 1))
        for letter in LETTERS
    )


def fast_tokenizer(*, special: bool) -> Any:
    """Make a byte-level BPE tokenizer, as GPT-2's, that may put a BOS before and an EOS behind a text."""
    named = {"bos_token": "<s>", "eos_token": "</s>"}
    tokenizer = trained_bpe(["\n\n".join(rows_of_letters(seed)) for seed in range(9)], 300, **named)
    if special:
        tokenizer.backend_tokenizer.post_processor = tokenizers.processors.TemplateProcessing(
            single="<s> $A </s>", special_tokens=[("<s>", 0), ("</s>", 1)]
        )
    return tokenizer


def row_by_text(tokenizer: Any, ids: list[int]) -> list[int | None]:
    """Say by its letters which row each token is of; None where it has no letter."""
    found = []
    for each in ids:
        letters = set(tokenizer.decode([each])) & set(LETTERS) if each > 1 else set()
        found.append(LETTERS.index(letters.pop()) if letters else None)
        assert not letters, "a token of two rows"
    return found


@pytest.mark.parametrize("protocol", ["sliding", "gptq", "bos-chunks"])
@pytest.mark.parametrize("special", [False, True])
def test_a_fast_tokenizers_tokens_belong_to_the_row_that_their_characters_lie_in(protocol: str, special: bool) -> None:
    tokenizer, rows = fast_tokenizer(special=special), rows_of_letters()
    streams = tokenize(Corpus("t", rows), windowing(protocol), tokenizer_facts(tokenizer), model="m")
    ids, found = streams.ids[0].tolist(), streams.rows.tolist()
    assert (ids[0], ids[-1]) == (0, 1) if special and protocol == "gptq" else 0 not in ids
    assert len(found) == len(ids) > 50
    by_text = row_by_text(tokenizer, ids)
    assert {row for row in by_text if row is not None} == set(range(10))
    assert all(row in (None, own) for row, own in zip(by_text, found, strict=True))
    # A line break belongs to the row that it ends, a special token to the row beside it.
    before = [0, *found[:-1]]
    assert all(own == last for row, own, last in zip(by_text, found, before, strict=True) if row is None)


@pytest.mark.shared
@pytest.mark.parametrize("name", ["llama2xs-279K-hf", "stories260K-hf"])
@pytest.mark.parametrize("protocol", ["sliding", "gptq"])
def test_real_tokenizers_tell_the_row_of_each_token(name: str, protocol: str, shared_data: Path) -> None:
    tokenizer = transformers.AutoTokenizer.from_pretrained(shared_data / "models" / name)
    text = (shared_data / "text" / "tinystories_150.txt").read_text(encoding="utf-8")
    rows = tuple(each for each in text.split("\n") if each.strip())[:40]
    streams = tokenize(Corpus("t", rows), windowing(protocol), tokenizer_facts(tokenizer), model="m")
    # The tokens of a row, decoded, are its text: nothing of another row.
    for index, row in enumerate(rows):
        mine = streams.ids[0][streams.rows == index].tolist()
        assert tokenizer.decode(mine, skip_special_tokens=True).strip() == row.strip()


@pytest.mark.parametrize("join", ["\n\n", " ", ""])
def test_without_offsets_the_boundaries_of_rows_are_within_a_few_tokens(join: str) -> None:
    facts = tokenizer_facts(fast_tokenizer(special=False))
    slow = TokenizerFacts(facts.encode, facts.bos, facts.eos, facts.adds_bos, facts.decode)
    corpus = Corpus("t", rows_of_letters(), join=join)
    exact, near = (tokenize(corpus, windowing("sliding"), each, model="m").rows for each in (facts, slow))
    assert len(exact) == len(near)
    assert np.abs(np.cumsum(np.bincount(exact)) - np.cumsum(np.bincount(near, minlength=10))).max() <= 3


def test_the_row_of_a_token_by_hand() -> None:
    # "ab|cd||e": rows "ab", "cd", "" and "e"; tokens begin at a, b, |, c, |, e and a special token says 0.
    begins = row_begins([2, 2, 0, 1], "|")
    assert rows_by_starts(np.array([0, 0, 1, 2, 3, 5, 7, 0]), begins).tolist() == [0, 0, 0, 0, 1, 1, 3, 3]


@pytest.mark.parametrize("protocol", ["sliding", "gptq", "llama.cpp"])
def test_targets_of_rows_are_those_that_the_windows_score(protocol: str) -> None:
    rows = np.repeat(np.arange(5), [7, 3, 20, 1, 9])
    plan = plan_windows(windowing(protocol), [40])
    found = row_targets(plan, rows)
    scored = [row for first, end in zip(plan.first, plan.end, strict=True) for row in rows[first:end].tolist()]
    assert found.tolist() == [scored.count(row) for row in range(max(scored) + 1)]
    assert found.sum() == plan.targets.sum()
    assert row_targets(plan, None) is None
