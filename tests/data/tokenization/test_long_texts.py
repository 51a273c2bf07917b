"""A long text has the token ids, rows and sizes that it has in one call, whatever its tokenizer; on the disk too."""

from __future__ import annotations

import random
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers
from transformers import PreTrainedTokenizerFast

from pytest_lmgate.backends.hf.models.loading import tokenizer_facts
from pytest_lmgate.config.specs import DatasetSpec
from pytest_lmgate.data.corpora import corpus as corpora
from pytest_lmgate.data.corpora import on_disk
from pytest_lmgate.data.corpora.corpus import Corpus, read_corpus
from pytest_lmgate.data.corpora.on_disk import RowsOnDisk
from pytest_lmgate.data.protocols.base import joined
from pytest_lmgate.data.protocols.table import PROTOCOLS
from pytest_lmgate.data.protocols.windowing import Windowing
from pytest_lmgate.data.requests.windows import plan_windows, window_requests
from pytest_lmgate.data.tokenization import long_texts
from pytest_lmgate.data.tokenization.long_texts import Numbers, TextSizes, token_pieces
from pytest_lmgate.data.tokenization.tokens import Placed, TokenizerFacts, tokenize
from pytest_lmgate.errors import DataError
from pytest_lmgate.evaluate.measurements.likelihoods import digest_of_targets

# Words, numbers, other scripts, runs, composed characters, and what tokenizers treat apart.
PARTS = [
    "the quick brown fox jumps over the lazy dog ",
    "Internationalization, tokenization; don't! ",
    "1234567890123456789 3.14159 2026-11-23 ",
    "다람쥐 헌 쳇바퀴에 타고파 ",
    "敏捷的棕色狐狸跳过了懒狗。",
    "naïve café ﬁne e\u0301\u0302 ",
    "👩‍👩‍👧‍👦🏳️‍🌈 ",
    "\n\n\n    \t  \r\n",
    "<s> <|end|> [MASK] ",
    "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa",
    "            ",
    "0000000000000000000000000000000000000",
]
# The expression of Llama 3, whose look-ahead goes to the end of white space.
LLAMA_3 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)
# Digits in threes from the right, which looks ahead to the end of a number.
FROM_THE_RIGHT = r"\d{1,3}(?=(?:\d{3})*\b)|[^\d]+"


def text_of(seed: int, parts: int) -> str:
    return "".join(random.Random(seed).choices(PARTS, k=parts))


@cache
def tokenizer(kind: str) -> TokenizerFacts:
    """Train a tokenizer of a kind."""
    special = ["<unk>", "<s>", "</s>"]
    if kind == "unigram":
        made = Tokenizer(models.Unigram())
        made.normalizer = normalizers.NFKC()
        made.pre_tokenizer = pre_tokenizers.Metaspace()
        trainer = trainers.UnigramTrainer(vocab_size=400, special_tokens=special, unk_token="<unk>")
    elif kind == "wordpiece":
        made = Tokenizer(models.WordPiece(unk_token="<unk>"))
        made.normalizer = normalizers.BertNormalizer()
        made.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
        trainer = trainers.WordPieceTrainer(vocab_size=400, special_tokens=special)
    elif kind == "whole text":  # as Llama 2 has it: the whole text is one word
        made = Tokenizer(models.BPE(unk_token="<unk>"))
        made.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
        trainer = trainers.BpeTrainer(vocab_size=600, special_tokens=special, max_token_length=8)
    else:
        made = Tokenizer(models.BPE())
        made.normalizer = normalizers.NFC()
        cuts = {"gpt-2": None, "llama-3": LLAMA_3, "from the right": FROM_THE_RIGHT}[kind]
        byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=cuts is None)
        own = [] if cuts is None else [pre_tokenizers.Split(Regex(cuts), "isolated")]
        made.pre_tokenizer = pre_tokenizers.Sequence([*own, byte_level])
        made.decoder = decoders.ByteLevel()
        trainer = trainers.BpeTrainer(
            vocab_size=600, special_tokens=special, initial_alphabet=pre_tokenizers.ByteLevel.alphabet()
        )
    # A normalizer that looks at the whole would make one word of all; lines are enough to learn from.
    made.train_from_iterator([text_of(seed, 12) for seed in range(60)], trainer)
    made.post_processor = processors.TemplateProcessing(
        single="<s> $A </s>", special_tokens=[("<s>", made.token_to_id("<s>")), ("</s>", made.token_to_id("</s>"))]
    )
    return tokenizer_facts(PreTrainedTokenizerFast(tokenizer_object=made, bos_token="<s>", eos_token="</s>"))


KINDS = ["gpt-2", "llama-3", "from the right", "whole text", "unigram", "wordpiece"]


def cut(text: str, size: int) -> Iterator[str]:
    return (text[begin : begin + size] for begin in range(0, len(text), size))


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Take a text for long from a thousand characters on."""
    monkeypatch.setattr(corpora, "PIECE_CHARS", 1000)
    monkeypatch.setattr("pytest_lmgate.data.protocols.base.PIECE_CHARS", 1000)
    monkeypatch.setattr(long_texts, "SHARED_CHARS", 512)


@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 10**6), parts=st.integers(20, 400), size=st.integers(300, 3000))
def test_the_ids_of_a_long_text_are_those_of_one_call(kind: str, seed: int, parts: int, size: int) -> None:
    facts, text = tokenizer(kind), text_of(seed, parts)
    placed = facts.placed(text, False)
    assert placed is not None
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(long_texts, "SHARED_CHARS", 512)
        found = list(token_pieces(cut(text, size), facts))
    assert np.concatenate([each.ids for each in found]).tolist() == placed.ids
    assert np.concatenate([each.starts for each in found]).tolist() == placed.starts


@pytest.mark.parametrize("kind", KINDS)
def test_a_long_text_is_really_read_in_pieces(kind: str) -> None:
    facts, text = tokenizer(kind), text_of(1, 20) * 400
    longest = 0

    def placed(part: str, special: bool) -> Placed | None:
        nonlocal longest
        longest = max(longest, len(part))
        return facts.placed(part, special)

    watched = TokenizerFacts(facts.encode, placed=placed)
    pieces = list(token_pieces(cut(text, 20_000), watched))
    assert len(pieces) > 3
    assert longest < 60_000 < len(text)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("run", ["a", " ", "7", "\n", "가"])
def test_a_run_that_is_longer_than_what_pieces_share_is_cut_as_in_one_call(
    monkeypatch: pytest.MonkeyPatch, kind: str, run: str
) -> None:
    monkeypatch.setattr(long_texts, "SHARED_CHARS", 1024)
    text = f"{text_of(1, 9)}{run * 5_011}{text_of(2, 9)}"
    facts = tokenizer(kind)
    found = [each.ids for each in token_pieces(cut(text, 1500), facts)]
    assert np.concatenate(found).tolist() == list(facts.encode(text, False))


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize("special", [False, True])
@pytest.mark.parametrize("kind", KINDS)
def test_a_long_text_of_rows_has_the_ids_rows_and_sizes_of_a_short_one(
    kind: str, special: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    corpus = Corpus("t", tuple(text_of(seed, 5) for seed in range(120)))
    pieces = joined(corpus, tokenizer(kind), join="\n\n", special=special)
    monkeypatch.setattr("pytest_lmgate.data.protocols.base.PIECE_CHARS", 10**9)
    whole = joined(corpus, tokenizer(kind), join="\n\n", special=special)
    assert pieces.ids[0].tolist() == whole.ids[0].tolist() == list(tokenizer(kind).encode(pieces.texts()[0], special))
    assert pieces.rows is not None
    assert whole.rows is not None
    assert pieces.rows.tolist() == whole.rows.tolist()
    assert pieces.sizes == whole.sizes


@pytest.mark.usefixtures("small")
def test_a_tokenizer_that_does_not_say_where_tokens_begin_gets_the_whole_text() -> None:
    asked: list[str] = []

    def encode(text: str, special: bool) -> list[int]:
        asked.append(text)
        return list(text.encode())

    corpus = Corpus("t", ("word " * 1000,), is_one_text=True)
    found = joined(corpus, TokenizerFacts(encode), join="", special=False)
    assert asked == ["word " * 1000]
    assert len(found.ids[0]) == 5000


def test_equally_good_paths_of_a_text_without_words_are_those_of_one_call(monkeypatch: pytest.MonkeyPatch) -> None:
    """Which of ``-`` and ``---``, ``--`` and ``--`` Unigram takes, is decided by the rounding of all before."""
    monkeypatch.setattr(long_texts, "SHARED_CHARS", 512)
    scores = {"<unk>": 0, "▁the": -3.1, "▁model": -5.3, "▁of": -3.7, "▁": -4.9, "-": -6.2, "--": -7.123, "---": -7.9571}
    made = Tokenizer(models.Unigram([*scores.items(), ("\n", -5.123)], unk_id=0))
    made.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    facts = tokenizer_facts(PreTrainedTokenizerFast(tokenizer_object=made))
    text = ("the model of " * 7 + "-----\n") * 3000
    found = [each.ids for each in token_pieces(cut(text, 20_000), facts)]
    assert np.concatenate(found).tolist() == list(facts.encode(text, False))


def test_pieces_of_a_fixed_length_are_those_of_one_call(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(long_texts, "SHARED_CHARS", 512)
    if not hasattr(pre_tokenizers, "FixedLength"):
        pytest.skip("this version of tokenizers has no FixedLength")
    made = Tokenizer(models.BPE())
    made.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.FixedLength(3), pre_tokenizers.ByteLevel(False)])
    trainer = trainers.BpeTrainer(vocab_size=400, initial_alphabet=pre_tokenizers.ByteLevel.alphabet())
    made.train_from_iterator([text_of(seed, 12) for seed in range(60)], trainer)
    facts = tokenizer_facts(PreTrainedTokenizerFast(tokenizer_object=made))
    text = text_of(1, 10) + "1," * 2000 + text_of(2, 41)
    found = [each.ids for each in token_pieces(cut(text, 1000), facts)]
    assert np.concatenate(found).tolist() == list(facts.encode(text, False))


def test_an_error_of_the_rows_themselves_is_told_as_it_is() -> None:
    def rows() -> Iterator[str]:
        yield "abc"
        raise ConnectionError("the hub went away")

    with pytest.raises(ConnectionError, match="the hub went away"):
        corpora.corpus_from_rows(rows(), name="mine")


def test_without_any_temporary_folder_the_error_is_of_the_dataset(monkeypatch: pytest.MonkeyPatch) -> None:
    def none() -> str:
        raise FileNotFoundError(2, "No usable temporary directory found")

    monkeypatch.setattr(on_disk, "MOST_CHARS", 1)
    monkeypatch.setattr("tempfile.gettempdir", none)
    monkeypatch.setattr("tempfile._gettempdir", none)
    with pytest.raises(
        DataError, match="'mine': it is too large for memory, and cannot be kept in any temporary folder"
    ):
        corpora.corpus_from_rows(["abc"], name="mine")


@pytest.mark.usefixtures("small")
def test_a_tokenizer_that_looks_further_than_pieces_share_gets_the_whole_text() -> None:
    """Tokens of two characters, counted from the end of a text that ends in a capital letter."""

    def placed(text: str, special: bool) -> Placed:
        begin = len(text) % 2 if text.endswith("A") else 0
        starts = [0] * begin + list(range(begin, len(text), 2))
        return Placed([ord(text[start]) for start in starts], starts)

    text = "bc" * 2000 + "b" * 998 + "A"
    corpus = Corpus("t", (text,), is_one_text=True)
    facts = TokenizerFacts(lambda text, special: placed(text, special).ids, placed=placed)
    assert joined(corpus, facts, join="", special=False).ids[0].tolist() == placed(text, False).ids


@given(st.lists(st.text(" \n\t\u00a0\x1cab", max_size=6), max_size=12))
def test_sizes_do_not_depend_on_how_a_text_is_cut(pieces: list[str]) -> None:
    text = "".join(pieces)
    found = TextSizes.of(pieces)
    assert found == TextSizes.of([text])
    assert found == TextSizes(len(re.split(r"\s+", text)), len(text), len(text.encode()))


ROWS = ["one two\nthree", "", "가나 다", "x" * 5000, "é" * 3000, "last\n"]


@pytest.mark.parametrize(
    ("file", "spec"),
    [("t.txt", {}), ("t.txt", {"lines": True}), ("t.jsonl", {}), ("t.csv", {}), ("t.jsonl", {"tags": "kind"})],
)
def test_what_is_kept_on_the_disk_is_the_dataset(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, file: str, spec: dict[str, object]
) -> None:
    import csv
    import json

    path = tmp_path / file
    with path.open("w", encoding="utf-8", newline="") as written:
        if path.suffix == ".csv":
            table = csv.writer(written)
            table.writerows([["text"], *([row] for row in ROWS)])
        else:
            rows = [json.dumps({"text": row, "kind": len(row)}, ensure_ascii=False) for row in ROWS]
            written.write("\n".join(rows if path.suffix == ".jsonl" else ROWS))

    def read() -> Corpus:
        return read_corpus(DatasetSpec(path=str(path), **spec), path, name="t")  # type: ignore[arg-type]

    in_memory = read()
    monkeypatch.setattr(on_disk, "MOST_CHARS", 30)
    monkeypatch.setattr(on_disk, "PART_BYTES", 7)
    monkeypatch.setattr("pytest_lmgate.data.corpora.readers._PART_BYTES", 11)
    kept = read()
    assert isinstance(kept.rows, RowsOnDisk)
    assert kept.is_on_disk
    assert not in_memory.is_on_disk
    assert (list(kept.rows), kept.rows[1:3], kept.rows[-1]) == (
        list(in_memory.rows),
        in_memory.rows[1:3],
        in_memory.rows[-1],
    )
    assert kept.lengths == in_memory.lengths == list(map(len, in_memory.rows))
    assert kept.digest == in_memory.digest
    assert kept.tags == in_memory.tags
    assert kept.documents == in_memory.documents
    assert "".join(kept.pieces("|")) == "|".join(in_memory.rows)


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize("protocol", sorted(PROTOCOLS))
@pytest.mark.parametrize("is_one_text", [False, True])
def test_requests_made_from_the_disk_are_those_made_in_memory(
    monkeypatch: pytest.MonkeyPatch, protocol: str, is_one_text: bool
) -> None:
    rows = tuple(text_of(seed, 6) for seed in range(40))
    in_memory = Corpus("t", ("\n".join(rows),) if is_one_text else rows, is_one_text=is_one_text)
    windowing, facts = Windowing(protocol, 32, 32), tokenizer("gpt-2")

    def requests(corpus: Corpus) -> tuple[object, ...]:
        streams = tokenize(corpus, windowing, facts, model="m")
        plan = plan_windows(windowing, streams.lengths, adds_bos=facts.adds_bos)
        made = window_requests(streams, plan, "t")
        read = [tuple(each.tolist() for each in (one.ids, one.at, one.targets)) for one in map(made.make, range(5))]
        kinds = {array.dtype for one in map(made.make, range(5)) for array in (one.ids, one.at, one.targets)}
        known = None if streams.rows is None else streams.rows.tolist()
        return read, kinds, known, made.highest, list(made.repeats), streams.sizes, digest_of_targets(streams.ids)

    expected = requests(in_memory)
    monkeypatch.setattr(on_disk, "MOST_CHARS", 30)
    monkeypatch.setattr(long_texts, "MOST_NUMBERS", 50)
    kept = Corpus("t", on_disk.keep_rows(((row,) for row in in_memory.rows), "it is"), is_one_text=is_one_text)
    assert kept.is_on_disk
    assert requests(kept) == expected


def test_numbers_of_any_size_come_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(long_texts, "MOST_NUMBERS", 10)
    numbers = Numbers()
    assert numbers.array().tolist() == []
    for begin in range(0, 100, 7):
        numbers.add(np.arange(begin, min(begin + 7, 100)))
    assert numbers.array().dtype == np.int32
    assert numbers.array().tolist() == list(range(100))


@pytest.mark.parametrize("at", [0, 3, 2**20 - 1, 2**20 + 5])
def test_a_byte_that_is_not_utf8_is_told_wherever_it_is(tmp_path: Path, at: int) -> None:
    path = tmp_path / "t.txt"
    data = bytearray(("é" * (2**19 + 10)).encode())
    data[at] = 0xFF
    path.write_bytes(data)
    # The byte before may have begun the character that the damaged one should have ended.
    first = at - at % 2
    with pytest.raises(DataError, match=rf"t\.txt: not UTF-8 at byte {first:,} "):
        read_corpus(DatasetSpec(path=str(path)), path, name="t")
    with pytest.raises(DataError, match=rf"t\.txt: not UTF-8 at byte {first:,} "):
        read_corpus(DatasetSpec(path=str(path), lines=True), path, name="t")


@pytest.mark.shared
@pytest.mark.parametrize("model", ["llama2xs-279K-hf", "stories260K-hf"])
@pytest.mark.parametrize("file", ["wiki.test.raw", "ko_gsd_test.txt", "zh_gsdsimp_test.txt"])
def test_real_texts_have_the_same_ids_in_pieces(shared_data: Path, model: str, file: str) -> None:
    from transformers import AutoTokenizer

    facts = tokenizer_facts(AutoTokenizer.from_pretrained(shared_data / "models" / model))
    text = (shared_data / "text" / file).read_text(encoding="utf-8")
    found = [each.ids for each in token_pieces(cut(text, 20_000), facts)]
    assert len(found) > len(text) // 80_000
    assert np.array_equal(np.concatenate(found), facts.encode(text, False))


def test_tokens_that_do_not_stand_in_the_order_of_the_text_are_all_there(small: None) -> None:
    def placed(text: str, special: bool) -> Placed:
        """Spell each word from its end."""
        words = [match.span() for match in re.finditer(r" ?[^ ]+| +", text)]
        starts = [at for begin, end in words for at in reversed(range(begin, end))]
        numbers = [number for number, (begin, end) in enumerate(words) for _ in range(begin, end)]
        return Placed([ord(text[at]) for at in starts], starts, numbers)

    facts = TokenizerFacts(lambda text, special: placed(text, special).ids, placed=placed)
    text = text_of(3, 300)
    found = [each.ids for each in token_pieces(cut(text, 1000), facts)]
    assert np.array_equal(np.concatenate(found), facts.encode(text, False))


def test_a_disk_without_room_for_token_ids_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    def full() -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(long_texts, "MOST_NUMBERS", 10)
    monkeypatch.setattr(long_texts, "open_until_gone", lambda _: full())
    with pytest.raises(DataError, match=r"the token ids of a text are too large for memory.*No space.*set TMPDIR"):
        Numbers().add(np.arange(11))
