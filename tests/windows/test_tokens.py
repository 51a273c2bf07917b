"""From rows to token streams: what each protocol tokenizes together, and what it puts before."""

import itertools
import re
import threading
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest

from pytest_lmgate.data.corpus import Corpus, TextSizes
from pytest_lmgate.errors import DataError, ModelError
from pytest_lmgate.windows.protocols import PROTOCOLS, beginning, tokenize
from pytest_lmgate.windows.requests import Pair, pair_requests
from pytest_lmgate.windows.tokens import Chats, Framing, TokenizerFacts, continued
from tests.windows.documents import windowing

BOS, EOS = 1001, 1002
ROWS = ("ab\nc", "", "  ", "défg hi")
TABLE = Corpus("t", ROWS)


def characters(
    *, bos: int | None = BOS, eos: int | None = EOS, adds_bos: bool = False, adds_eos: bool = False
) -> TokenizerFacts:
    """A tokenizer whose ids are code points, and which shows where it was called anew: id 7 begins each call."""

    def encode(text: str, special: bool) -> Sequence[int]:
        before, after = [bos] if special and adds_bos else [], [eos] if special and adds_eos else []
        return [*before, 7, *map(ord, text), *after]

    return TokenizerFacts(encode, bos, eos, adds_bos, {BOS: "<s>", EOS: "</s>"}.__getitem__)


def ids_of(text: str) -> list[int]:
    return [7, *map(ord, text)]


@pytest.mark.parametrize(
    ("protocol", "text"),
    [
        *dict.fromkeys(["sliding", "disjoint", "llama.cpp"], "ab\nc||  |défg hi").items(),
        ("gptq", "ab\nc\n\n\n\n  \n\ndéfg hi"),  # two newlines, whatever the dataset says
    ],
)
def test_rows_are_joined_and_tokenized_in_one_call_without_special_tokens(protocol: str, text: str) -> None:
    tokenizer = characters(adds_bos=protocol != "gptq")
    streams = tokenize(Corpus("t", ROWS, join="|"), windowing(protocol, 4), tokenizer, model="m")
    assert [ids.tolist() for ids in streams.ids] == [ids_of(text)]
    assert streams.lengths == [len(text) + 1]


@pytest.mark.parametrize("adds_eos", [False, True])
@pytest.mark.parametrize("adds_bos", [False, True])
def test_gptq_keeps_the_special_tokens_that_the_tokenizer_adds_to_the_whole_text(
    adds_bos: bool, adds_eos: bool
) -> None:
    tokenizer = characters(adds_bos=adds_bos, adds_eos=adds_eos)
    streams = tokenize(Corpus("t", ("ab", "cd")), windowing("gptq", 4), tokenizer, model="m")
    assert streams.ids[0].tolist() == [BOS] * adds_bos + ids_of("ab\n\ncd") + [EOS] * adds_eos


@pytest.mark.parametrize(
    ("protocol", "documents"),
    [
        # Row by row, each with a newline.
        ("bos-chunks", [ids_of("ab\nc\n") + ids_of("\n") + ids_of("  \n") + ids_of("défg hi\n")]),
        # Each row that is not blank is a document.
        *((each, [ids_of("ab\nc"), ids_of("défg hi")]) for each in ("document", "lm-eval")),
    ],
)
def test_rows_are_tokenized_one_by_one_where_the_protocol_says_so(protocol: str, documents: list[list[int]]) -> None:
    streams = tokenize(TABLE, windowing(protocol, 4), characters(), model="m")
    assert [ids.tolist() for ids in streams.ids] == documents


def test_words_bytes_and_characters_are_those_of_the_original_text() -> None:
    documents = tokenize(TABLE, windowing("document", 4), characters(), model="m")
    joined = tokenize(Corpus("t", (" déf  gh", "i ")), windowing("sliding", 4), characters(), model="m")
    assert documents.sizes == [TextSizes(words=2, chars=4, utf8_bytes=4), TextSizes(words=2, chars=7, utf8_bytes=8)]
    # As re.split counts them: an empty piece before a leading space and after a trailing one.
    assert joined.sizes == [TextSizes(words=5, chars=12, utf8_bytes=13)]


@pytest.mark.parametrize(
    ("protocol", "tokenizer", "prefix"),
    [
        ("sliding", characters(adds_bos=True), None),
        ("document", characters(adds_bos=True), None),
        ("gptq", characters(adds_bos=True), None),
        ("bos-chunks", characters(), BOS),
        ("lm-eval", characters(), BOS),
        ("lm-eval", characters(bos=None), EOS),
        ("llama.cpp", characters(adds_bos=True), BOS),
        ("llama.cpp", characters(adds_bos=False), None),
    ],
)
def test_the_token_before_a_window_is_the_protocols(
    protocol: str, tokenizer: TokenizerFacts, prefix: int | None
) -> None:
    assert tokenize(Corpus("t", ("abcdefgh",)), windowing(protocol, 4), tokenizer, model="m").prefix == prefix


@pytest.mark.parametrize(
    ("text", "add_bos_token", "expected"),
    [
        ("ab", False, ids_of("ab")),
        ("ab", None, [BOS, *ids_of("ab"), EOS]),  # what the tokenizer adds by itself
        ("ab", True, [BOS, *ids_of("ab")]),
        *(("<s>ab", how, ids_of("<s>ab")) for how in (False, None, True)),  # as it begins with the text of the BOS
    ],
)
def test_lm_eval_adds_special_tokens_as_the_harness_does(
    text: str, add_bos_token: bool | None, expected: list[int]
) -> None:
    how = windowing("lm-eval", 4, add_bos_token=add_bos_token)
    streams = tokenize(Corpus("t", (text,)), how, characters(adds_bos=True, adds_eos=True), model="m")
    assert streams.ids[0].tolist() == expected


@pytest.mark.parametrize(
    ("protocol", "tokenizer"), [("bos-chunks", characters(bos=None)), ("lm-eval", characters(bos=None, eos=None))]
)
def test_a_protocol_that_needs_a_bos_says_which_tokenizer_has_none(protocol: str, tokenizer: TokenizerFacts) -> None:
    with pytest.raises(ModelError, match=f"protocol '{protocol}' needs a BOS token, but the tok.* 'm' has"):
        tokenize(Corpus("t", ("abcdefgh",)), windowing(protocol, 4), tokenizer, model="m")


NEEDED = {"sliding": 2, "disjoint": 2, "document": 2, "lm-eval": 1, "gptq": 4, "bos-chunks": 4, "llama.cpp": 8}


@pytest.mark.parametrize(
    ("protocol", "adds_bos", "needed"),
    [*((each, False, needed) for each, needed in NEEDED.items()), ("llama.cpp", True, 7)],
)
def test_a_text_with_too_few_tokens_is_an_error_that_tells_how_many_are_needed(
    protocol: str, adds_bos: bool, needed: int
) -> None:
    def with_tokens(count: int) -> None:
        facts = TokenizerFacts(lambda text, special: range(count), BOS, EOS, adds_bos, chr)
        tokenize(Corpus("short", ("x",)), windowing(protocol, 4), facts, model="m")

    with_tokens(needed)
    with pytest.raises(DataError, match=f"^dataset 'short': {needed - 1} tokens?, but protocol '{protocol}' needs"):
        with_tokens(needed - 1)


# The beginning of a text.


def words_of(text: str, special: bool) -> list[int]:
    """One token for each word or line break, and a BOS."""
    return [1] * special + [len(word) for word in re.findall(r" ?\w+|\n", text)]


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_tokens_cut_a_text_before_a_protocol_reads_it(protocol: str) -> None:
    text = "one two three four\nfive six seven eight nine ten"
    tokenizer = TokenizerFacts(words_of, 1, adds_bos=True)
    cut, whole = (
        tokenize(Corpus("t", (each,), is_one_text=True, tokens=tokens), windowing(protocol, 4), tokenizer, model="m")
        for each, tokens in ((text, 8), ("one two three four\nfive six seven ", None))
    )
    assert [ids.tolist() for ids in cut.ids] == [ids.tolist() for ids in whole.ids]
    assert cut.sizes == whole.sizes


@pytest.mark.parametrize("tokens", [2, 3, 5, 99, 100])
def test_tokens_take_as_much_of_a_text_as_has_no_more(tokens: int) -> None:
    text = "".join(chr(0x4E00 + number) for number in range(100))  # no white space
    one_each = TokenizerFacts(lambda text, _: [ord(letter) for letter in text])
    found = beginning(Corpus("t", (text,), is_one_text=True, tokens=tokens), one_each)
    assert (found.rows, found.tokens) == ((text[:tokens],), None)


def test_more_tokens_than_a_text_has_are_an_error_that_says_how_many() -> None:
    with pytest.raises(DataError, match=r"^dataset 't': tokens: expected at most 3, as the text has, got 4$"):
        beginning(Corpus("t", ("one two three",), is_one_text=True, tokens=4), TokenizerFacts(words_of))


def test_a_chat_that_ends_with_the_assistant_is_read_up_to_the_end_of_that_turn() -> None:
    kept, stripped, upper = (
        lambda turns, change=change: "".join(f"<{turn['role']}>{change(turn['content'])}<|end|>\n" for turn in turns)
        for change in (str, str.strip, str.upper)
    )
    # A template may write the turn's text elsewhere too, as in the mark that ends each turn.
    for text in ("It is", "It is ", " It is\n", "", "end", "n"):
        chat = [{"role": "user", "content": "2+2?"}, {"role": "assistant", "content": text}]
        assert continued(kept, chat) == f"<user>2+2?<|end|>\n<assistant>{text}"
        assert continued(stripped, chat) == f"<user>2+2?<|end|>\n<assistant>{text.strip()}"
    with pytest.raises(ValueError, match="does not write the assistant's last turn as it is"):
        continued(upper, [{"role": "assistant", "content": "It is"}])


CHATS = ((("user", "one"),), (("user", "two"), ("assistant", "three")))


def chatting(chat: Callable[..., str]) -> TokenizerFacts:
    return TokenizerFacts(words_of, chat=chat)


def test_chats_are_written_by_the_template_with_its_variables_and_texts_are_left_alone() -> None:
    facts = chatting(lambda messages, day: f"{day}: {'; '.join(each['content'] for each in messages)}")
    chats = Chats.of([CHATS[0], "plain", *CHATS], facts, {"day": "Monday"}, model="m")
    assert [chats.read(each) for each in (*CHATS, "plain")] == ["Monday: one", "Monday: two; three", "plain"]
    assert chats.dated is None
    with pytest.raises(ModelError, match=r"model 'm': .* has no chat template"):
        Chats.of(CHATS, TokenizerFacts(words_of), {}, model="m")
    with pytest.raises(ModelError, match=r"model 'm': its chat template refuses a chat of user: KeyError: 'day'"):
        Chats.of(CHATS, chatting(lambda messages: {}["day"]), {}, model="m")


@pytest.mark.parametrize("role", ["system", "developer", "user", "assistant"])
def test_a_template_that_leaves_out_a_turn_is_refused_unless_it_heeds_it(role: str) -> None:
    def some(messages: Any) -> str:
        return "; ".join(each["content"] for each in messages if each["role"] != role)

    def last(messages: Any) -> str:
        return ("" if messages[0]["content"] == "/no_think" else "<think>") + str(messages[-1]["content"])

    for chat in (some, last):
        with pytest.raises(ModelError, match=f"it leaves out what the {role} says"):
            Chats.of([((role, "Be brief."), ("tool", "4"), ("tool", "5"))], chatting(chat), {}, model="m")
    heeded = ((role, "/no_think"), ("tool", "5"))
    assert Chats.of([heeded], chatting(last), {}, model="m").read(heeded) == "5"


def test_a_template_that_writes_one_chat_in_two_ways_is_refused() -> None:
    numbers = itertools.count()
    with pytest.raises(ModelError, match=r"model 'm': .* in two ways .*strftime_now.*chat_template_kwargs"):
        Chats.of(CHATS, chatting(lambda messages: f"{next(numbers)}"), {}, model="m")


def test_a_template_that_calls_for_the_time_is_noticed_and_refused_once_it_writes_another() -> None:
    today = ["Monday"]

    def chat(messages: Any, strftime_now: Any = lambda form: today[0], pinned: str = "") -> str:
        # Only a chat of one turn has the date.
        return f"{pinned or strftime_now('%A')} one" if len(messages) == 1 else "two three"

    assert Chats.of(CHATS, chatting(chat), {"pinned": "Friday"}, model="m").dated is None
    assert Chats.of(CHATS[1:], chatting(chat), {}, model="m").dated is None
    chats = Chats.of(CHATS[::-1], chatting(chat), {}, model="m")
    assert chats.dated == CHATS[0]
    chats.require_same_time()
    today[0] = "Tuesday"
    with pytest.raises(ModelError, match="in two ways"):
        chats.require_same_time()
    assert chats.read(CHATS[0]) == "Monday one", "what is read is what the address has"


def test_pairs_are_called_by_their_rows() -> None:
    pairs = [Pair(np.arange(3), np.arange(2)), Pair(np.arange(1000), np.arange(5))]
    describe = pair_requests(pairs, "d").describe
    assert describe([1]) == "row 1, 1,005 tokens"
    assert describe([0, 1]) == "row 0, 5 tokens, and 1 more"


TEMPLATES = {
    "loops": "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}",
    "lists": "{% for a in l %}" * 4 + "{% endfor %}" * 4,
}


@pytest.mark.parametrize("template", TEMPLATES)
def test_a_chat_template_without_end_is_an_error_and_its_thread_ends(
    monkeypatch: pytest.MonkeyPatch, template: str
) -> None:
    import jinja2.sandbox

    monkeypatch.setattr("pytest_lmgate.windows.tokens.RENDERING_SECONDS", 0.1)
    chat = jinja2.sandbox.ImmutableSandboxedEnvironment().from_string(TEMPLATES[template])
    tokenizer = TokenizerFacts(lambda text, _: [1], chat=lambda messages: chat.render(l=list(range(999))))
    before = threading.active_count()
    with pytest.raises(ModelError, match=r"model 'm': its chat template .* not done after 0.1 s"):
        Chats.of([(("user", "x"),)], tokenizer, {}, model="m")
    for thread in threading.enumerate()[before:]:
        thread.join(10)
    assert threading.active_count() == before


# Special tokens around a text are found from what a tokenizer does, whatever it is.


def framing_tokenizer(
    prefix: Sequence[int], suffix: Sequence[int], own: Callable[[str], list[int]] = lambda text: [*map(ord, text)]
) -> Callable[[str, bool], list[int]]:
    return lambda text, special: [*prefix, *own(text), *suffix] if special else own(text)


@pytest.mark.parametrize("prefix", [(), (1,), (1, 7)])
@pytest.mark.parametrize("suffix", [(), (2,), (2, 8)])
def test_what_stands_before_and_behind_every_text_is_found(prefix: tuple[int, ...], suffix: tuple[int, ...]) -> None:
    framing = Framing.of(framing_tokenizer(prefix, suffix))
    assert framing == Framing(prefix, suffix)
    assert framing.own([*prefix, 50, 51, *suffix]) == [50, 51]
    assert framing.own([*prefix, *suffix]) == []
    assert framing.around([50, 51]) == [*prefix, 50, 51, *suffix]
    assert framing.around([50, 51], suffix=False) == [*prefix, 50, 51]


def test_a_text_that_begins_with_the_bos_itself_has_it_once() -> None:
    framing = Framing((1, 7), (2,))
    assert framing.around(framing.own([1, 7, 1, 50, 2])) == [1, 7, 50, 2]
    assert framing.around(framing.own([1, 7, 1, 7, 50, 2])) == [1, 7, 50, 2], "as [gMASK]<sop>"
    assert framing.around(framing.once([50, 1])) == [1, 7, 50, 1, 2]
    assert Framing().once([1, 50]) == [1, 50], "the tokenizer adds none"


def test_a_tokenizer_that_changes_a_texts_own_tokens_has_no_frame() -> None:
    assert Framing.of(lambda text, special: [1, 9, 2] if special else [8]) == Framing()
