"""Multiple choice: rows to questions with choices, and these to token windows that score each choice. Pure.

Tokens are made as lm-evaluation-harness 0.4.13 makes them (``_encode_pair``): question and choice are encoded together,
the choice is what follows the question's own tokens, and white space at the end of the question belongs to the choice.
An empty question is the BOS token (else EOS). Examples and chats are its ``fewshot_context``, each example a turn of
user and assistant. Two things differ: an EOS that a tokenizer puts behind every text is left out (the harness keeps it,
so that the choice loses its first token and the EOS is scored in its place), and so is a BOS that a chat template does
not write (the harness has the tokenizer put it there).
"""

from __future__ import annotations

__all__ = ["Question", "make_questions", "plan_choices"]

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from pytest_lmgate.data.corpora.prompts import Prompt, bare, cell, fill, shown_after
from pytest_lmgate.data.requests.repeats import repeats
from pytest_lmgate.data.requests.windows import WindowPlan
from pytest_lmgate.data.tokenization.framing import Framing
from pytest_lmgate.data.tokenization.prompting import rendered_chat
from pytest_lmgate.data.tokenization.tokens import Streams, TokenizerFacts
from pytest_lmgate.errors import DataError, ModelError

Row = Mapping[str, Any]


@dataclass(frozen=True)
class Question:
    """One row.

    Attributes:
        text: What is asked, as the model reads it, or a chat for the model's template.
        choices: Two or more continuations, without the delimiter before them.
        answer: Index of the right one.
    """

    text: Prompt
    choices: tuple[str, ...]
    answer: int


def make_questions(
    rows: Sequence[Row],
    *,
    name: str,
    question: str,
    choices: Sequence[str],
    answer: str,
    examples: Sequence[Row] = (),
    delimiter: str = " ",
    chat: bool = False,
    system: str | None = None,
) -> tuple[Question, ...]:
    """Read questions from rows, and show examples with their right choice before each.

    Args:
        rows: The dataset.
        name: Its name, for messages.
        question: A column, or a template with ``{column}`` fields.
        choices: One column that holds a list, or the columns that hold one choice each.
        answer: Column of the right choice. A number is its index from 0. A text is that of the choice or, as CSV has no
            numbers, its index; where it could be either, it is what the other texts of the column are that could not.

        examples: Rows that are shown: few-shot.
        delimiter: What stands between an example's question and its choice, but in a chat, where each has its turn.
        chat: Make messages for the model's chat template rather than text.
        system: Text of the system message of a chat; otherwise text before the examples.

    Raises:
        DataError: A column is missing, there are fewer than two choices or two equal ones, or the answer is none of
            them, or one of two by how it is read.
    """
    read = partial(_read, question=question, choices=choices, answer=answer)
    shots = [
        (asked, offered[right] if chat else delimiter + offered[right])
        for asked, offered, right in read(examples, f"{name} (examples)")
    ]
    return tuple(
        Question(shown_after(shots, asked, chat=chat, system=system), offered, right)
        for asked, offered, right in read(rows, name)
    )


def _read(
    rows: Sequence[Row], name: str, *, question: str, choices: Sequence[str], answer: str
) -> list[tuple[str, tuple[str, ...], int]]:
    """What each row asks, its choices, and the index of the right one."""
    offered = [_choices(row, index, name, choices) for index, row in enumerate(rows)]
    given = [cell(row, answer, name, index, what="answer") for index, row in enumerate(rows)]
    asked = [_asked(row, index, name, question) for index, row in enumerate(rows)]
    return list(zip(asked, offered, _answers(given, offered, name), strict=True))


def _asked(row: Row, index: int, name: str, question: str) -> str:
    return (fill if "{" in question else bare)(question, row, name, index, what="question")


def _choices(row: Row, index: int, name: str, columns: Sequence[str]) -> tuple[str, ...]:
    where = f"dataset {name!r}: row {index}"
    if len(columns) == 1:
        choices = cell(row, columns[0], name, index, what="choices")
    else:
        choices = [cell(row, column, name, index, what="choices") for column in columns]
    if not isinstance(choices, list | tuple) or not all(isinstance(choice, str) and choice for choice in choices):
        raise DataError(f"{where}: choices: expected a list of texts, got {choices!r}")
    if len(choices) < 2:
        raise DataError(f"{where}: choices: expected two or more, got {len(choices)}: nothing could be chosen wrongly")
    if len(set(choices)) < len(choices):
        twice = next(choice for choice in choices if choices.count(choice) > 1)
        raise DataError(f"{where}: choices: {twice!r} is there twice: no model could tell them apart")
    return tuple(choices)


def _answers(given: Sequence[Any], offered: Sequence[tuple[str, ...]], name: str) -> list[int]:
    """Index of each row's right choice."""
    readings = [_readings(right, choices) for right, choices in zip(given, offered, strict=True)]
    texts = [reading for right, reading in zip(given, readings, strict=True) if isinstance(right, str)]
    # By what those are that can be read in one way only.
    kinds = {"text" if index is None else "index" for text, index in texts if (text is None) != (index is None)}
    found = []
    for row, (right, choices, (text, index)) in enumerate(zip(given, offered, readings, strict=True)):
        where = f"dataset {name!r}: row {row}: answer"
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
        found.append(int(text if by_text else index))  # type: ignore[arg-type]
    return found


def _letter_hint(right: object, choices: tuple[str, ...]) -> str:
    """Say what to write for an answer such as ``B``, a letter that counts the choices."""
    index = ord(right.upper()) - ord("A") if isinstance(right, str) and len(right) == 1 else -1
    if not 0 <= index < len(choices):
        return ""
    return f"; letters are not counted: for {right} write {index}, the index from 0, or the text {choices[index]!r}"


def _readings(right: Any, choices: tuple[str, ...]) -> tuple[int | None, int | None]:
    """The choice whose text an answer is, and the one whose index."""
    if isinstance(right, bool) or not isinstance(right, str | int):
        return None, None
    text = choices.index(right) if right in choices else None
    index = right if isinstance(right, int) else int(right) if right.isdecimal() and len(right) < 10 else -1
    return text, index if 0 <= index < len(choices) else None


def plan_choices(
    questions: Sequence[Question],
    tokenizer: TokenizerFacts,
    *,
    delimiter: str,
    max_length: int | None,
    name: str,
    model: str,
) -> tuple[Streams, WindowPlan]:
    """Plan one window per choice, in the order of rows and choices.

    Args:
        questions: Rows.
        tokenizer: Of the model; its special tokens are kept, as a question begins a text.
        delimiter: What stands between question and choice, or between a chat and the assistant's answer.
        max_length: Tokens that the model can read; the question's beginning is left out where it does not fit.
        name: Name of the dataset, for messages.
        model: Name of the model, for messages.

    Raises:
        DataError: A choice has no token of its own, has the tokens of another, or does not fit by itself.
        ModelError: A question is empty and the tokenizer has no token to begin with, or it is a chat and the tokenizer
            has no template for it.
    """
    pair = _PairEncoder(tokenizer, Framing.of(tokenizer.encode), model)
    streams, first = [], []
    for index, row in enumerate(questions):
        whole = pair.encode(row.text, [delimiter + choice for choice in row.choices])
        for choice, (asked, answered) in zip(row.choices, whole, strict=True):
            if not answered:
                raise DataError(f"dataset {name!r}: row {index}: the choice {choice!r} has no token of its own")
            if max_length is not None and len(answered) > max_length:
                raise DataError(
                    f"dataset {name!r}: row {index}: a choice of {len(answered):,} tokens is longer than the context "
                    f"of {model!r}, {max_length:,}"
                )
            streams.append(np.asarray([*asked, *answered], dtype=np.int64))
            first.append(len(asked))
        equal = repeats(ids.tobytes() for ids in streams[-len(row.choices) :]).values()
        if same := next((some for some in equal if len(some) > 1), None):
            one, other = (repr(row.choices[choice]) for choice in same[:2])
            raise DataError(
                f"dataset {name!r}: row {index}: the choices {one} and {other} are the same tokens to the model "
                f"{model!r}, which cannot tell them apart"
            )
    ends = np.array([len(ids) for ids in streams], dtype=np.int64)
    # The last token is only a target, so one more than the context fits.
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

    def encode(self, prompt: Prompt, choices: Sequence[str]) -> list[tuple[list[int], list[int]]]:
        """Return the tokens of the question and of each choice."""
        if isinstance(prompt, str):
            text, begun = prompt, self._begun
        else:  # the template writes the special tokens itself
            text, begun = rendered_chat(prompt, self.tokenizer, model=self.model), self._bare
        stripped = text.rstrip()
        asked = begun(stripped) if stripped else []
        found = []
        for choice in choices:
            following = text[len(stripped) :] + choice
            if asked:
                found.append((asked, begun(stripped + following)[len(asked) :]))
            else:
                found.append(self._begin(self._bare(following)))
        return found

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
        """Tokens of a text with the special tokens before it, BOS once where the text itself begins with it."""
        own = self.framing.own(self.tokenizer.encode(text, True))
        if self.tokenizer.adds_bos and own[:1] == [self.tokenizer.bos]:
            return own
        return self.framing.around(own, suffix=False)
