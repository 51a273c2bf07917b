"""Tokens: the planner's view of a tokenizer, token streams, special tokens, chats, prompts to token ids."""

from __future__ import annotations

import ctypes
import functools
import re
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from pytest_lmgate.arrays import Ints
from pytest_lmgate.data.columns import Chat, Prompt
from pytest_lmgate.data.corpus import TextSizes
from pytest_lmgate.errors import DataError, ModelError

RENDERING_SECONDS = 10.0  # a chat template that takes longer has no end
_MOST_OWN, _MOST_COPIES = 1_000_000, 10  # characters that a template adds, and times that it repeats a chat


class Placed(NamedTuple):
    """A text's token ids, and where the characters of each token begin and end; both 0 for a special token."""

    ids: Sequence[int]
    begins: Sequence[int] | Ints
    ends: Sequence[int] | Ints


@dataclass(frozen=True)
class TokenSpans:
    """A text with where the characters of each token begin and end, shape ``[tokens]`` each.

    Tokens that make up one character together have the same span. A token without a character ends where it begins.
    """

    text: str
    begins: Ints
    ends: Ints

    @classmethod
    def joined(cls, parts: Sequence[TokenSpans | None]) -> TokenSpans | None:
        """Return the spans of texts that follow each other; None if those of one are unknown."""
        spans = [part for part in parts if part is not None]
        if len(spans) < len(parts):
            return None
        ends = np.cumsum([len(part.text) for part in spans], dtype=np.int64)
        shifts = np.repeat(np.append(0, ends)[:-1], [len(part.begins) for part in spans])
        begins, lasts = (
            np.concatenate(arrays) for arrays in zip(*((part.begins, part.ends) for part in spans), strict=True)
        )
        return cls("".join(part.text for part in spans), begins + shifts, lasts + shifts)


@dataclass(frozen=True)
class TokenizerFacts:
    """What the planning needs to know of a tokenizer; only `encode` must be there."""

    encode: Callable[[str, bool], Sequence[int]]  # text and whether to add special tokens, to token ids
    bos: int | None = None  # id of the token that begins a text, if there is one
    eos: int | None = None  # id of the token that ends a text, if there is one
    adds_bos: bool = False  # whether `encode` with special tokens begins with `bos`
    decode: Callable[[int], str] = str  # a token id to its text
    # text and whether to add special tokens, to token ids and their offsets; None where the tokenizer does not say
    # which characters its tokens are made of
    placed: Callable[[str, bool], Placed | None] = lambda _, __: None
    # token ids, special ones too, to the text that they stand for together; None where the tokenizer does not say
    text: Callable[[Sequence[int]], str | None] = lambda _: None
    mask: int | None = None  # id of the token that replaces a masked one, if there is one
    special: frozenset[int] = frozenset()  # ids of the tokens around or between texts, and of the mask
    # the text that a decoder has to write, to token ids; None where that is `encode` with special tokens
    target: Callable[[str], Sequence[int]] | None = None
    # Messages with ``role`` and ``content``, to the text that the model goes on from: behind an assistant's turn at the
    # end, else where one begins. Variables of the template come by name. None without a template.
    chat: Callable[..., str] | None = None
    # returns the id of each token; None where the tokenizer does not say
    vocabulary: Callable[[], Mapping[str, int]] | None = None

    def encode_target(self, text: str) -> Sequence[int]:
        """Return the token ids of a text that a decoder has to write."""
        return self.encode(text, True) if self.target is None else self.target(text)

    def ids(self, text: str, *, special: bool) -> Ints:
        """Return a text's token ids, shape ``[tokens]``, with the special tokens that the tokenizer adds or without."""
        return np.asarray(self.encode(text, special), dtype=np.int64)

    def cut(self, text: str, *, special: bool = False) -> tuple[Ints, TokenSpans | None]:
        """Return a text's token ids and the characters of each; None where these cannot be known.

        Without offsets, tokens that spell the text one by one are as good.
        """
        if (placed := self.placed(text, special)) is None:
            ids = self.ids(text, special=special)
            return ids, self.spelled(text, ids)
        ids, begins, ends = (np.array(part, dtype=np.int64) for part in placed)
        if len(ids) and not self.decode(int(ids[0])):
            # A space that the tokenizer puts before every text; its offsets are those of the first character.
            begins[0] = ends[0] = 0
        return ids, TokenSpans(text, begins, ends)

    def spelled(self, text: str, ids: Ints) -> TokenSpans | None:
        """Return the characters of tokens that spell a text one by one; None if they do not."""
        try:
            spans = self.spelled_alone(ids)
        except Exception:  # of a tokenizer of the user's, which need not decode
            return None
        return spans if spans.text == text else None

    def spelled_alone(self, ids: Ints) -> TokenSpans:
        """Return the text of tokens that are decoded one by one."""
        pieces = {token: self.decode(token) for token in np.unique(ids).tolist()}
        parts = [pieces[token] for token in ids.tolist()]
        ends = np.cumsum([len(part) for part in parts], dtype=np.int64)
        return TokenSpans("".join(parts), np.append(0, ends)[:-1], ends)


@dataclass(frozen=True)
class Streams:
    """Token streams, one per document, and the size of the original text behind each."""

    ids: Sequence[Ints]  # token ids of each document, shape ``[tokens]``
    prefix: int | None = None  # id of the prefix token of windows that have one
    sizes: Sequence[TextSizes] = ()  # words, code points and bytes of each document; none where nothing counts them
    texts: Sequence[Sequence[str]] = ()  # of each document the texts that the tokenizer was called with
    spans: Sequence[TokenSpans | None] = ()  # the characters of each document's tokens; None where they are unknown
    # row of each token where the rows were joined to one text, shape ``[tokens]``; None where rows are documents, or
    # the text has no rows
    rows: Ints | None = None

    @property
    def lengths(self) -> list[int]:
        """Tokens in each document."""
        return [len(ids) for ids in self.ids]


_PROBES = ("a", "1", "的")


@dataclass(frozen=True)
class Framing:
    """The special tokens around a text."""

    prefix: tuple[int, ...] = ()  # as BOS or [CLS]
    suffix: tuple[int, ...] = ()  # as EOS or [SEP]

    @classmethod
    def of(cls, encode: Callable[[str, bool], Sequence[int]]) -> Framing:
        """Find it out from texts with and without special tokens."""
        for probe in _PROBES:
            framed, plain = tuple(encode(probe, True)), tuple(encode(probe, False))
            for begin in range(len(framed) - len(plain) + 1 if plain else 0):
                end = begin + len(plain)
                if framed[begin:end] == plain:
                    return cls(framed[:begin], framed[end:])
        return cls()

    def own(self, ids: Sequence[int]) -> list[int]:
        """Return the text's own tokens of `ids`, which the tokenizer gave with special tokens; see `once`."""
        return self.once(ids[len(self.prefix) : len(ids) - len(self.suffix)])

    def once(self, ids: Sequence[int]) -> list[int]:
        """Leave out the special tokens that a text itself begins with, or the first: `around` puts them there."""
        size = next((size for size in (len(self.prefix), 1) if tuple(ids[:size]) == self.prefix[:size]), 0)
        return list(ids[size:])

    def around(self, ids: Sequence[int], *, suffix: bool = True) -> list[int]:
        """Put the special tokens around a text's own, those behind it where `suffix` says so."""
        return [*self.prefix, *ids, *(self.suffix if suffix else ())]


@dataclass(frozen=True)
class PromptIds:
    """A prompt that a model is to go on from."""

    row: int  # its number, which a sample depends on
    prompt: Prompt
    ids: tuple[int, ...]
    rows: int = 0  # of the dataset, each of which is written once or several times
    variables: Mapping[str, Any] = field(default_factory=dict)  # of the chat template

    @property
    def place(self) -> str:
        """Which row of the dataset it is, for messages."""
        text, row = divmod(self.row, self.rows or self.row + 1)
        return f"row {row}, text {text}" if text else f"row {row}"


@dataclass(frozen=True)
class PromptEncoder:
    """Encodes the prompts of one dataset for one model.

    A causal model goes on where the prompt ends, so that what a tokenizer puts behind every text (an EOS, a ``[SEP]``)
    is left out: behind it the model would begin another text. An encoder reads it, as it did in training.
    """

    tokenizer: TokenizerFacts
    model: str
    dataset: str
    room: int | None = None  # tokens that a prompt may have; None for no limit
    limit: str = ""  # why no more, for messages
    remedy: str = ""  # what to do about it, for messages
    cut: bool = False  # leave out the beginning of a prompt that does not fit; special tokens before it are kept
    encodes_whole: bool = False  # whether an encoder reads the prompt

    def encode(self, prompt: str, row: int) -> list[int]:
        """Return the token ids of one prompt; a chat is `Rendered`."""
        framing, text_ids = self._plain(prompt)
        ids = framing.around(text_ids)
        where = f"dataset {self.dataset!r}: row {row}"
        if not ids:
            raise DataError(f"{where}: expected a prompt, got one without a token: {prompt!r:.60}")
        if self.room is None or len(ids) <= self.room:
            return ids
        kept = self.room - (len(ids) - len(text_ids))
        if not self.cut or kept < 1:
            raise DataError(
                f"{where}: the prompt has {len(ids):,} tokens, but the model {self.model!r} has room for "
                f"{max(0, self.room):,} ({self.limit}){self.remedy}"
            )
        return framing.around(text_ids[-kept:])

    def _plain(self, text: str) -> tuple[Framing, list[int]]:
        if isinstance(text, Rendered):
            return Framing(), list(self.tokenizer.encode(text, False))
        text_ids = self._framing.own(self.tokenizer.encode(text, True))
        return (self._framing if self.encodes_whole else Framing(self._framing.prefix)), text_ids

    @functools.cached_property
    def _framing(self) -> Framing:
        return Framing.of(self.tokenizer.encode)


class Rendered(str):
    """A chat as a template writes it, with its special tokens, up to where the assistant answers."""


@dataclass(frozen=True)
class Chats:
    """Chats as a model's template writes them."""

    texts: Mapping[Prompt, Rendered] = field(default_factory=dict)
    dated: Chat | None = None  # the first into which the template writes the time; None if it writes none
    write: Callable[[Chat], Rendered] = Rendered  # writes one again
    model: str = ""

    @classmethod
    def of(
        cls, prompts: Iterable[Prompt], tokenizer: TokenizerFacts, variables: Mapping[str, Any], *, model: str
    ) -> Chats:
        """Write the chats among the prompts, twice: a chat that changes each time cannot be measured."""
        chats = [prompt for prompt in dict.fromkeys(prompts) if not isinstance(prompt, str)]
        write = functools.partial(_rendered, tokenizer=tokenizer, variables=variables, model=model)
        texts, again = ([write(chat) for chat in chats] for _ in range(2))
        if texts != again:
            raise _varying(model)
        dated = next((chat for chat in chats if _has_time(chat, tokenizer, variables)), None)
        return cls(dict(zip(chats, texts, strict=True)), dated, write, model)

    def read(self, prompt: Prompt) -> str:
        """Return a prompt's text as the model reads it."""
        return prompt if isinstance(prompt, str) else self.texts[prompt]

    def require_same_time(self) -> None:
        """Refuse a template that writes another time now than before."""
        if self.dated is not None and self.write(self.dated) != self.texts[self.dated]:
            raise _varying(self.model)


NO_CHATS = Chats()


class DatedChats:
    """The chats into which templates wrote the time in a session; it has to be one time, or its numbers are of two."""

    def __init__(self) -> None:
        self._found: dict[tuple[str, Chat], Chats] = {}  # by the model and one of the chats

    def add(self, chats: Chats) -> None:
        """Note chats that were measured; refuse what the session measured if a template wrote two times into it."""
        if chats.dated is not None:
            self._found.setdefault((chats.model, chats.dated), chats)
        for found in self._found.values():
            found.require_same_time()


def _rendered(turns: Chat, tokenizer: TokenizerFacts, variables: Mapping[str, Any], model: str) -> Rendered:
    if tokenizer.chat is None:
        raise ModelError(
            f"model {model!r}: chat: true (or messages:), but its tokenizer has no chat template; add "
            "chat_template.jinja to its folder, or leave out chat:"
        )

    def write(*turns: tuple[str, str]) -> str:
        assert tokenizer.chat is not None
        render = functools.partial(tokenizer.chat, _messages(turns), **variables)
        return _in_time(render, sum(len(content) for _, content in turns))

    try:
        text = write(*turns)
        for at, (role, said) in enumerate(turns):
            # A text that is not there as it is may still be heeded, as /no_think.
            if said.strip() not in text and write(*turns[:at], (role, f"{said} {_HERE}"), *turns[at + 1 :]) == text:
                raise ValueError(
                    f"it leaves out what the {role} says, so the model would not read it; say it in a turn of a role "
                    "that the template writes, or in the prompt"
                )
        return Rendered(text)
    except Exception as error:  # anything a template raises, for example because it knows no system message
        roles = ", ".join(role for role, _ in turns)
        raise ModelError(
            f"model {model!r}: its chat template refuses a chat of {roles}: {type(error).__name__}: {error}"
        ) from error


def _in_time(render: Callable[[], str], size: int) -> str:
    """Return a template's text of a chat with `size` characters; an endless template is stopped.

    It runs in a thread of its own, in which an exception can be raised from here.
    """
    done: list[tuple[str, BaseException | None]] = []

    def run() -> None:
        try:
            done.append((render(), None))
        except BaseException as error:
            done.append(("", error))

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(RENDERING_SECONDS)
    if not done:
        ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread.ident or 0), ctypes.py_object(SystemExit))
        raise TimeoutError(f"not done after {RENDERING_SECONDS:g} s; does it have a loop without end?")
    ((text, error),) = done
    if error is not None:
        raise error
    if len(text) > (most := _MOST_OWN + _MOST_COPIES * size):
        raise ValueError(f"expected at most {most:,} characters of a chat with {size:,}, got {len(text):,}")
    return text


def _has_time(turns: Chat, tokenizer: TokenizerFacts, variables: Mapping[str, Any]) -> bool:
    """Return whether the template calls ``strftime_now``: the call fails if the variable is a text."""
    assert tokenizer.chat is not None
    try:
        tokenizer.chat(_messages(turns), **{**variables, "strftime_now": "now"})
    except TypeError as error:
        return "not callable" in str(error)
    except Exception:  # a template that does not name the variable refuses it
        return False
    return False


def _messages(turns: Chat) -> list[dict[str, str]]:
    return [{"role": role, "content": content} for role, content in turns]


PIN = "set its variable for that in chat_template_kwargs, as Llama's {date_string: 26 Jul 2024}, or edit the template"
"""How to have a chat template write the same each time."""


def _varying(model: str) -> ModelError:
    return ModelError(
        f"model {model!r}: its chat template writes the same chat in two ways in one session: it may write the time "
        f"(strftime_now) or draw at random; {PIN}"
    )


def require_variables(template: str, variables: Iterable[str]) -> None:
    """Refuse variables that a template does not name, because it would ignore them."""
    if unknown := [name for name in variables if not re.search(rf"\b{re.escape(name)}\b", template)]:
        raise ValueError(f"chat_template_kwargs: the template has no variable {unknown[0]!r}")


_HERE = "THE-TURN-GOES-ON-HERE "


def continued(render: Callable[[list[dict[str, str]]], str], messages: Sequence[Mapping[str, str]]) -> str:
    """Return a chat as a template renders it, up to the end of its last turn's text, as transformers does.

    A space behind that text stays where the template keeps it.
    """
    last = messages[-1]["content"]
    text = render([*map(dict, messages[:-1]), {**messages[-1], "content": last + _HERE}])
    at = text.rfind(_HERE.strip())
    if at < 0 or last.strip() not in text:
        raise ValueError("the template does not write the assistant's last turn as it is, so it cannot be continued")
    return text[:at] if text.startswith(_HERE, at) else text[:at].rstrip()
