"""Multiple choice: rows to questions with choices, and these to token windows that score each choice. Pure.

Tokens are made as lm-evaluation-harness 0.4.13 makes them (``_encode_pair``): question and choice are encoded
together, the choice is what follows the question's own tokens, and white space at the end of the question belongs to
the choice. An empty question is the BOS token (else EOS). Examples and chats are its ``fewshot_context``, each
example a turn of user and assistant. A row of several questions and one target, as in winogrande, is its
``multiple_input``: a question is a choice, and the target is scored. A row of one question and one target, as in
lambada, is its ``loglikelihood``, with a delimiter before the target, which the harness does not write: ``delimiter:
""`` leaves it out. Two things differ: an EOS that a tokenizer puts behind every text is left out (the harness keeps
it, so that the choice loses its first token and the EOS is scored in its place), and so is a BOS that a chat template
does not write (the harness has the tokenizer put it there).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from operator import itemgetter
from typing import Any

import numpy as np

from pytest_lmgate.data.columns import Prompt, bare, cell, chat_in, fill, require_unseen, shown_after, utf8
from pytest_lmgate.errors import DataError, ModelError
from pytest_lmgate.settings.entries import DatasetSpec
from pytest_lmgate.windows.protocols import WindowPlan
from pytest_lmgate.windows.requests import repeats
from pytest_lmgate.windows.tokens import NO_CHATS, Chats, Framing, Rendered, Streams, TokenizerFacts

Row = Mapping[str, Any]


@dataclass(frozen=True)
class Question:
    """One row."""

    # texts, or chats for the model's template, that the model reads: one before all choices, or one for each
    prompts: tuple[Prompt, ...]
    # the choices, without the delimiter; only the target if the row has no choices
    choices: tuple[str, ...]
    right: tuple[int, ...]  # indexes of the right choices
    # the text behind each prompt, without the delimiter, if each choice has its own prompt
    target: str | None = None

    @property
    def content(self) -> list[Any]:
        """All fields except the right answers, for digests."""
        return [self.prompts[0], self.choices] if self.target is None else [self.prompts, self.choices, self.target]

    @property
    def pairs(self) -> list[tuple[Prompt, str]]:
        """The prompt and the scored text of each choice."""
        if self.target is not None:
            return [(prompt, self.target) for prompt in self.prompts]
        return [(self.prompts[0], choice) for choice in self.choices]


def make_questions(
    rows: Sequence[Row], spec: DatasetSpec, *, name: str, examples: Sequence[Row] = ()
) -> tuple[Question, ...]:
    """Read questions from rows by the dataset's entry, and show examples with their right choice before each.

    An answer is an index from 0 or a text; if a text could be either (CSV has no numbers), the column's other rows
    decide. A list means that each of its choices is right.
    """

    def answered(read: _Read) -> list[tuple[str, str]]:
        """Return the question with each right choice."""
        prompts, offered, right, follows = read
        texts = offered if follows is None else (follows,) * len(offered)
        return [(str(prompts[at if len(prompts) > 1 else 0]), texts[at]) for at in right]

    shown = [answered(read)[0] for read in _read_rows(examples, spec, f"{name} (examples)")]
    shots = [(question, answer if spec.chat else spec.between + answer) for question, answer in shown]
    reads = _read_rows(rows, spec, name)
    require_unseen(shown, [answered(read) for read in reads], name)
    questions = []
    for bare_prompts, offered, right, follows in reads:
        prompts = tuple(
            shown_after(shots, prompt, chat=spec.chat, system=spec.system) if isinstance(prompt, str) else prompt
            for prompt in bare_prompts
        )
        questions.append(Question(prompts, offered, right, follows))
    return tuple(questions)


_Read = tuple[tuple[Prompt, ...], tuple[str, ...], tuple[int, ...], str | None]


def _read_rows(rows: Sequence[Row], spec: DatasetSpec, name: str) -> list[_Read]:
    """Return each row's questions, its choices, the indexes of the right ones, and its target."""
    question, messages, answer, target = spec.question, spec.messages, spec.answer, spec.target
    choices = [spec.choices] if isinstance(spec.choices, str) else spec.choices or ()
    follows = [None if target is None else _text(row, index, name, target, "target") for index, row in enumerate(rows)]
    if blank := [index for index, text in enumerate(follows) if text is not None and not text.strip()]:
        raise DataError(f"dataset {name!r}: row {blank[0]}: target: expected a text, got a blank one")
    prompts: Sequence[tuple[Prompt, ...]]
    offered: list[tuple[str, ...]] = []
    if messages is not None:
        prompts = [(chat_in(row, messages, name, index),) for index, row in enumerate(rows)]
    elif target is not None and answer is not None:
        prompts = offered = [_choices(row, index, name, [str(question)], "question") for index, row in enumerate(rows)]
    else:
        prompts = [(_text(row, index, name, str(question), "question"),) for index, row in enumerate(rows)]
    if answer is None:
        return [(row, (str(text),), (0,), text) for row, text in zip(prompts, follows, strict=True)]
    if choices:
        offered = [_choices(row, index, name, choices, "choices") for index, row in enumerate(rows)]
    for index, (questions, texts) in enumerate(zip(prompts, offered, strict=True)):
        if target is not None and len(questions) != len(texts):
            raise DataError(
                f"dataset {name!r}: row {index}: expected a question for each choice, got {len(questions)} questions "
                f"and {len(texts)} choices"
            )
    given = [cell(row, answer, name, index, what="answer") for index, row in enumerate(rows)]
    return list(zip(prompts, offered, _answers(given, offered, name), follows, strict=True))


def _text(row: Row, index: int, name: str, source: str, what: str) -> str:
    return (fill if "{" in source else bare)(source, row, name, index, what=what)


def _choices(row: Row, index: int, name: str, columns: Sequence[str], what: str) -> tuple[str, ...]:
    where = f"dataset {name!r}: row {index}: {what}"
    if len(columns) == 1:
        choices = cell(row, columns[0], name, index, what=what)
    else:
        choices = [cell(row, column, name, index, what=what) for column in columns]
    if not isinstance(choices, list | tuple) or not all(isinstance(each, str) and each.strip() for each in choices):
        raise DataError(f"{where}: expected a list of texts, got {choices!r:.200}; none may be blank")
    for choice in choices:
        utf8(choice, where)
    if len(choices) < 2:
        raise DataError(f"{where}: expected two or more, got {len(choices)}: no choice could be wrong")
    if len(set(choices)) < len(choices):
        twice = next(choice for choice in choices if choices.count(choice) > 1)
        raise DataError(f"{where}: {twice!r:.200} appears twice: no model could tell them apart")
    return tuple(choices)


def _answers(given: Sequence[Any], offered: Sequence[tuple[str, ...]], name: str) -> list[tuple[int, ...]]:
    """Return the indexes of each row's right choices from the cells of the answer's column."""
    listed = [list(answer) if isinstance(answer, list | tuple) else [answer] for answer in given]
    flat = [(row, right) for row, several in enumerate(listed) for right in several]
    indexes = iter(_indexes(flat, offered, name))
    answers = []
    for row, several in enumerate(listed):
        if not several:
            raise DataError(
                f"dataset {name!r}: row {row}: answer: expected one right choice or more, got an empty list: the row "
                "could never be right; leave it out"
            )
        answers.append(tuple(next(indexes) for _ in several))
    if answers and all(len(set(right)) == len(offered[row]) for row, right in enumerate(answers)):
        raise DataError(f"dataset {name!r}: answer: every choice of every row is right: no model could be wrong")
    return answers


def _indexes(given: Sequence[tuple[int, Any]], offered: Sequence[tuple[str, ...]], name: str) -> list[int]:
    """Return the index of each answer, given with the number of its row."""
    readings = [_readings(right, offered[row]) for row, right in given]
    texts = [reading for (_, right), reading in zip(given, readings, strict=True) if isinstance(right, str)]
    # Rows that can be read in one way only decide for the others.
    kinds = {"text" if index is None else "index" for text, index in texts if (text is None) != (index is None)}
    indexes = []
    for (row, right), (text, index) in zip(given, readings, strict=True):
        where, choices = f"dataset {name!r}: row {row}: answer", offered[row]
        if text is None and index is None:
            raise DataError(
                f"{where}: expected an index from 0 to {len(choices) - 1} or the text of a choice, got {right!r}"
                f"{_letter_hint(right, choices)}"
            )
        if text is not None and index is not None and text != index and len(kinds) != 1:
            others = "other rows are of both kinds" if kinds else "no other row decides"
            raise DataError(
                f"{where}: {right!r} is the text of choice {text} or the index of choice {index}; {others}: "
                "write indexes as numbers, in .jsonl or .parquet"
            )
        by_text = index is None or (text is not None and kinds == {"text"})
        indexes.append(int(text if by_text else index))  # type: ignore[arg-type]
    return indexes


def _letter_hint(right: object, choices: tuple[str, ...]) -> str:
    index = ord(right.upper()) - ord("A") if isinstance(right, str) and len(right) == 1 else -1
    if not 0 <= index < len(choices):
        return ""
    return f"; letters are not allowed: for {right} write {index}, the index from 0, or the text {choices[index]!r}"


def _readings(right: Any, choices: tuple[str, ...]) -> tuple[int | None, int | None]:
    """Return the choice whose text the answer is, and the choice whose index it is."""
    if isinstance(right, bool) or not isinstance(right, str | int):
        return None, None
    text = choices.index(right) if right in choices else None
    index = right if isinstance(right, int) else int(right) if right.isdecimal() and len(right) < 10 else -1
    return text, index if 0 <= index < len(choices) else None


def plan_choices(
    questions: Sequence[Question],
    tokenizer: TokenizerFacts,
    chats: Chats = NO_CHATS,
    *,
    delimiter: str,
    max_length: int | None,
    name: str,
    model: str,
    cut: bool = False,
) -> tuple[Streams, WindowPlan]:
    """Plan one window per choice, in the order of rows and choices.

    A question begins a text, with its special tokens. One that does not fit into `max_length` with its choice is an
    error; with `cut` it loses its beginning, the special tokens first, as in the harness.
    """
    pair = _PairEncoder(tokenizer, Framing.of(tokenizer.encode), model)
    streams, first = [], []
    for index, row in enumerate(questions):
        whole = []
        for prompt, continuations in groupby(row.pairs, key=itemgetter(0)):
            whole += pair.encode(chats.read(prompt), [delimiter + text for _, text in continuations])
        scored = "choice" if row.target is None else "target"
        for (_, continuation), (question_ids, answered) in zip(row.pairs, whole, strict=True):
            if not answered:
                raise DataError(f"dataset {name!r}: row {index}: the {scored} {continuation!r} has no token")
            if max_length is not None and len(answered) > max_length:
                raise DataError(
                    f"dataset {name!r}: row {index}: a {scored} of {len(answered):,} tokens is longer than the context "
                    f"of {model!r}, {max_length:,}"
                )
            # The last token is only a target, so one more than the context fits.
            if max_length is not None and (tokens := len(question_ids) + len(answered)) > max_length + 1 and not cut:
                raise DataError(
                    f"dataset {name!r}: row {index}: question and {scored} have {tokens:,} tokens, but the model "
                    f"{model!r} reads {max_length:,} (max_length, else its context) and predicts one more; shorten the "
                    "question, or use truncate='left'"
                )
            streams.append(np.asarray([*question_ids, *answered], dtype=np.int64))
            first.append(len(question_ids))
        equal = repeats(ids.tobytes() for ids in streams[-len(row.choices) :]).values()
        if same := next((some for some in equal if len(some) > 1), None):
            one, other = (repr(row.choices[choice]) for choice in same[:2])
            raise DataError(
                f"dataset {name!r}: row {index}: the choices {one} and {other} are the same tokens to the model "
                f"{model!r}, which cannot tell them apart"
            )
    ends = np.array([len(ids) for ids in streams], dtype=np.int64)
    begins = np.maximum(0, ends - max_length - 1) if max_length is not None else np.zeros_like(ends)
    firsts = np.array(first, dtype=np.int64)
    plan = WindowPlan(np.arange(len(streams), dtype=np.int64), begins, ends, firsts, np.zeros(len(streams), dtype=bool))
    return Streams(streams, None), plan


@dataclass(frozen=True)
class _PairEncoder:
    """Question and choice to tokens, as lm-evaluation-harness 0.4.13 does."""

    tokenizer: TokenizerFacts
    framing: Framing
    model: str

    def encode(self, prompt: str, choices: Sequence[str]) -> list[tuple[list[int], list[int]]]:
        # A template writes the special tokens itself.
        begun = self._bare if isinstance(prompt, Rendered) else self._begun
        stripped = prompt.rstrip()
        question_ids = begun(stripped) if stripped else []
        pairs = []
        for choice in choices:
            following = prompt[len(stripped) :] + choice
            if question_ids:
                pairs.append((question_ids, begun(stripped + following)[len(question_ids) :]))
            else:
                pairs.append(self._begin(self._bare(following)))
        return pairs

    def _begin(self, answered: list[int]) -> tuple[list[int], list[int]]:
        """Put the token that begins a text before a choice without a question, where the choice lacks it."""
        prefix = self.tokenizer.bos if self.tokenizer.bos is not None else self.tokenizer.eos
        if answered and answered[0] == prefix:
            return answered[:1], answered[1:]
        if prefix is None:
            raise ModelError(
                f"a question is empty, and the tokenizer of {self.model!r} has no BOS or EOS to begin with"
            )
        return [prefix], answered

    def _bare(self, text: str) -> list[int]:
        return list(self.tokenizer.encode(text, False))

    def _begun(self, text: str) -> list[int]:
        """Tokens of a text with the special tokens before it."""
        return self.framing.around(self.framing.own(self.tokenizer.encode(text, True)), suffix=False)
