"""Which characters real tokenizers' tokens stand for, and which of them are lost."""

from typing import Any

import numpy as np
import pytest
import tokenizers
import transformers

from pytest_lmgate.data.corpus import TextSizes
from pytest_lmgate.engines.tokenizers import tokenizer_facts
from pytest_lmgate.windows.protocols import WindowPlan
from pytest_lmgate.windows.requests import lost_characters, scored_sizes
from pytest_lmgate.windows.tokens import Streams, TokenizerFacts
from tests.windows.documents import trained_bpe


def cut(tokenizer: Any, text: str) -> tuple[TokenizerFacts, Streams]:
    facts = tokenizer_facts(tokenizer)
    ids, spans = facts.cut(text)
    return facts, Streams([ids], sizes=[TextSizes.of(text)], texts=[[text]], spans=[spans])


def scored_bytes(streams: Streams) -> float:
    """Bytes that all tokens but the first cover."""
    ends = np.array(streams.lengths)
    plan = WindowPlan(np.zeros_like(ends), ends - ends, ends, ends - ends + 1, ends < 0)
    return float(scored_sizes(streams, plan)[0, 2])


def sentencepiece() -> Any:
    """Make a tokenizer as Llama 2's: a space is put before a text, and unknown characters become bytes."""
    pieces = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), "▁", "a", "b", "▁a", "▁b"]
    vocabulary, merges = {piece: at for at, piece in enumerate(pieces)}, [("▁", "a"), ("▁", "b")]
    model = tokenizers.models.BPE(vocabulary, merges, unk_token="<unk>", byte_fallback=True, fuse_unk=True)
    inner, d, n = tokenizers.Tokenizer(model), tokenizers.decoders, tokenizers.normalizers
    inner.normalizer = n.Sequence([n.Prepend("▁"), n.Replace(" ", "▁")])
    inner.decoder = d.Sequence([d.Replace("▁", " "), d.ByteFallback(), d.Fuse(), d.Strip(" ", 1, 0)])
    return transformers.PreTrainedTokenizerFast(tokenizer_object=inner, bos_token="<s>", unk_token="<unk>")


def byte_level(*, trim: bool) -> Any:
    tokenizer = trained_bpe(["ab ab ab b b b"] * 9, 262)
    tokenizer.backend_tokenizer.post_processor = tokenizers.processors.ByteLevel(trim_offsets=trim)
    return tokenizer


@pytest.mark.parametrize(
    ("tokenizer", "text", "first", "scored"),
    [
        # The space that is put before "한" is a token without a character; the three bytes that follow are scored.
        (sentencepiece(), "한 a", "▁", 5),
        (sentencepiece(), " a한", "▁", 5),
        (sentencepiece(), "a 한", "▁a", 4),
        (byte_level(trim=True), "ab 한", "ab", 4),
        (byte_level(trim=False), "ab 한", "ab", 4),
        (byte_level(trim=True), "한ab", "í", 4),
    ],
)
def test_bytes_after_the_first_token_by_real_tokenizers(tokenizer: Any, text: str, first: str, scored: int) -> None:
    facts, streams = cut(tokenizer, text)
    assert tokenizer.convert_ids_to_tokens(int(streams.ids[0][0])) == first
    assert scored_bytes(streams) == pytest.approx(scored, abs=1e-6)
    assert lost_characters(streams, facts).tolist() == [0]


def normalized(*steps: Any) -> Any:
    tokenizer = sentencepiece()
    inner = tokenizer.backend_tokenizer
    inner.normalizer = tokenizers.normalizers.Sequence([*steps, inner.normalizer])
    return tokenizer


@pytest.mark.parametrize(
    ("tokenizer", "text", "lost"),
    [
        (sentencepiece(), "a한 b", 0),
        (sentencepiece(), "", 0),
        (normalized(tokenizers.normalizers.Lowercase()), "AaB", 2),
        (normalized(tokenizers.normalizers.NFKC()), "aﬁ", 1),
        (normalized(tokenizers.normalizers.Strip()), " a ", 2),
        # Nothing is lost, but a space is put in.
        (normalized(tokenizers.normalizers.Replace("b", " b")), "ab", 1),
    ],
)
def test_characters_that_the_tokens_do_not_give_back_are_counted(tokenizer: Any, text: str, lost: int) -> None:
    facts, streams = cut(tokenizer, text)
    assert lost_characters(streams, facts).tolist() == [lost]
    # Lines that are tokenized one by one, and special tokens, are no loss.
    lines = Streams([np.append(1, np.tile(streams.ids[0], 2))], texts=[[text, text]])
    assert lost_characters(lines, facts).tolist() == [2 * lost]


@pytest.mark.parametrize(
    ("step", "lost"),
    [
        (tokenizers.normalizers.Lowercase(), 0),
        (tokenizers.normalizers.Strip(), 0),
        (tokenizers.normalizers.Replace("b", "a"), 1),
    ],
)
def test_of_texts_that_are_alike_but_for_case_and_spaces_only_letters_are_lost(step: Any, lost: int) -> None:
    facts, text = tokenizer_facts(normalized(step)), " Ab "
    streams = Streams([facts.ids(text, special=False)], texts=[[text]])
    found = lost_characters(streams, facts, str.casefold)
    assert found is not None
    assert found.tolist() == [lost]
