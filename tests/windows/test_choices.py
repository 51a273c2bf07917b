"""Questions with choices become token windows as lm-evaluation-harness makes them."""

import math
import re
from typing import Any

import pytest

from pytest_lmgate.data.columns import Prompt
from pytest_lmgate.errors import DataError, ModelError
from pytest_lmgate.settings.entries import DatasetSpec
from pytest_lmgate.windows.choices import Question, make_questions, plan_choices
from pytest_lmgate.windows.tokens import Chats, TokenizerFacts

BOS, EOS = 1, 2


def words(prefix: tuple[int, ...] = (), suffix: tuple[int, ...] = (), **facts: Any) -> TokenizerFacts:
    """A tokenizer of blanks and letters, one token each, but "ab" together is one; <s> is the BOS token."""

    def encode(text: str, special: bool) -> list[int]:
        ids = []
        while text:
            piece = next((each for each in ("<s>", "ab") if text.startswith(each)), text[0])
            ids.append({"<s>": BOS, "ab": 500}.get(piece, ord(piece[0])))
            text = text[len(piece) :]
        return [*prefix, *ids, *suffix] if special else ids

    adds_bos = prefix[:1] == (BOS,)
    return TokenizerFacts(encode, **{"bos": BOS, "eos": EOS, "adds_bos": adds_bos, "decode": chr, **facts})


def planned(
    text: Prompt,
    *choices: str,
    tokenizer: TokenizerFacts | None = None,
    max_length: int | None = 99,
    delimiter: str = " ",
    cut: bool = False,
) -> list[tuple[list[int], list[int]]]:
    """What is read before each choice's own tokens, and these."""
    question, tokenizer = Question((text,), choices, (0,)), tokenizer or words()
    streams, plan = plan_choices(
        [question], tokenizer, Chats.of([text], tokenizer, {}, model="m"), delimiter=delimiter, max_length=max_length,
        name="quiz", model="m", cut=cut,
    )  # fmt: skip
    assert not plan.prefix.any()
    assert streams.prefix is None
    found = []
    for window, ids in enumerate(streams.ids):
        begin, first, end = (int(edge[window]) for edge in (plan.begin, plan.first, plan.end))
        assert (plan.document[window], end) == (window, len(ids))
        found.append((ids[begin:first].tolist(), ids[first:end].tolist()))
    return found


def of(text: str) -> list[int]:
    return list(map(ord, text))


@pytest.mark.parametrize(
    ("question", "choice", "how", "read", "scored"),
    [
        ("q?", "yz", {}, of("q?"), of(" yz")),
        # "ab" is one token: behind the one token of the question alone nothing is left but "c".
        ("a", "bc", {"delimiter": ""}, of("a"), of("c")),
        ("q", "x", {"delimiter": "\n--"}, of("q"), of("\n--x")),
        *[(f"q?{space}", "x", {}, of("q?"), of(f"{space} x")) for space in (" ", "  ", "\n", " \t\n")],
        # Special tokens before a text are read, and an end behind every text is neither read nor scored.
        ("q", "x", {"tokenizer": words((BOS, 7))}, [BOS, 7, *of("q")], of(" x")),
        ("q", "xy", {"tokenizer": words((), (EOS,))}, of("q"), of(" xy")),
        ("q", "xy", {"tokenizer": words((BOS,), (EOS,))}, [BOS, *of("q")], of(" xy")),
        # A question that begins with BOS has it once, an empty one is BOS, unless the choice begins with it.
        ("<s>q", "x", {"tokenizer": words((BOS,))}, [BOS, *of("q")], of(" x")),
        ("<s>q", "x", {}, [BOS, *of("q")], of(" x")),
        *[(text, "x", {}, [BOS], of(f"{text} x")) for text in ("", " ", "\n")],
        *[(text, "x", {"tokenizer": words((BOS,))}, [BOS], of(f"{text} x")) for text in ("", " ", "\n")],
        ("", "<s>x", {"delimiter": ""}, [BOS], of("x")),
    ],
)
def test_a_choice_is_what_follows_the_questions_own_tokens(
    question: str, choice: str, how: dict[str, Any], read: list[int], scored: list[int]
) -> None:
    assert planned(question, choice, **how) == [(read, scored)]


def test_without_a_bos_token_an_empty_question_is_the_eos_token() -> None:
    assert planned("", "x", tokenizer=words(bos=None)) == [([EOS], of(" x"))]
    with pytest.raises(ModelError, match="a question is empty, and the tokenizer of 'm' has no BOS or EOS"):
        planned("", "x", tokenizer=words(bos=None, eos=None))


@pytest.mark.parametrize(("length", "read"), [(99, "abcdefgh"), (10, "abcdefgh"), (9, "bcdefgh"), (3, "h"), (2, "")])
def test_a_question_that_does_not_fit_is_an_error_or_loses_its_left_where_that_is_said(length: int, read: str) -> None:
    # The last token is only a target: so many tokens are read, one more is there.
    tokenizer = TokenizerFacts(lambda text, _: of(text), BOS, EOS, False, chr)

    def plan(cut: bool) -> Any:
        return planned("abcdefgh", "xy", tokenizer=tokenizer, max_length=length, cut=cut)

    if read:
        assert plan(True) == [(of(read), of(" xy"))]
    else:
        with pytest.raises(DataError, match="row 0: a choice of 3 tokens is longer than the context of 'm', 2"):
            plan(True)
    if read == "abcdefgh":
        assert plan(False) == plan(True)
    elif read:
        with pytest.raises(DataError, match=f"row 0: question and choice have 11 tokens, but .* 'm' reads {length} "):
            plan(False)


@pytest.mark.parametrize("delimiter", ["", " "])
def test_a_choice_is_the_assistants_answer_behind_what_the_chat_template_writes(delimiter: str) -> None:
    def chat(messages: Any) -> str:
        return "".join(f"{each['role'][0]}{each['content']}" for each in messages) + "a\n"

    # The template writes what special tokens there are, whatever the tokenizer puts before other texts.
    asked = (("system", "S"), ("user", "Q"), ("assistant", "A"), ("user", "q"))
    found = planned(asked, "x", "y", tokenizer=words((BOS,), chat=chat), delimiter=delimiter)
    assert found == [(of("sSuQaAuqa"), of(f"\n{delimiter}{choice}")) for choice in "xy"]
    with pytest.raises(ModelError, match=r"model 'm': .*its tokenizer has no chat template"):
        planned(asked, "x", "y")


def test_choices_without_a_token_of_their_own_or_of_the_same_tokens_are_an_error() -> None:
    with pytest.raises(DataError, match="dataset 'quiz': row 0: the choice 'b' has no token"):
        planned("a", "b", delimiter="")
    lower = TokenizerFacts(lambda text, _: of(text.lower()), BOS, EOS, False, chr)
    with pytest.raises(DataError, match="row 0: the choices 'X' and 'x' are the same tokens to the model 'm', which"):
        planned("q", "X", "y", "x", tokenizer=lower)


def questions(
    rows: Any, question: str = "q", choices: Any = ("c",), answer: str = "a", **shown: Any
) -> tuple[Question, ...]:
    examples = shown.pop("examples", ())
    spec = DatasetSpec(path="quiz.jsonl", question=question, choices=list(choices), answer=answer, **shown)
    return make_questions(rows, spec, name="quiz", examples=examples)


def test_examples_are_shown_with_their_right_choice() -> None:
    row, shots = {"q": "?", "c": ["x", "y"], "a": 1}, [{"q": "1?", "c": ["v", "w"], "a": "w"}, {**NUMBERS, "a": 0}]
    shown = {"examples": shots, "system": "Say.", "delimiter": ": "}
    assert questions([row], **shown)[0].prompts[0] == "Say.\n\n1?: w\n\n?: 1\n\n?"
    turns = (("user", "1?"), ("assistant", "w"), ("user", "?"), ("assistant", "1"), ("user", "?"))
    assert questions([row], **shown, chat=True)[0].prompts[0] == (("system", "Say."), *turns)
    with pytest.raises(DataError, match=r"dataset 'quiz \(examples\)': row 0: answer: expected an index .* got 2"):
        questions([row], examples=[{**row, "a": 2}])


@pytest.mark.parametrize(("answer", "index"), [(0, 0), (2, 2), ("z", 2), ("1", 1), ("10", 0), ("x", 1)])
def test_an_answer_is_an_index_or_the_text_of_a_choice(answer: object, index: int) -> None:
    # A text that is a choice is that choice, even where it looks like a number.
    assert questions([{"q": "?", "c": ["10", "x", "z"], "a": answer}])[0].right == (index,)


NUMBERS = {"q": "?", "c": ["1", "2", "3"]}
MANY = {"q": "?", "c": ["70", "80", "90"]}


def test_a_text_that_could_be_either_is_what_the_others_of_its_column_are() -> None:
    texts = questions([{**NUMBERS, "a": "1"}, {**MANY, "a": "90"}, {**NUMBERS, "a": "2"}])
    assert [each.right[0] for each in texts] == [0, 2, 1]
    indexes = questions([{**NUMBERS, "a": "1"}, {**MANY, "a": "2"}, {**NUMBERS, "a": "0"}])
    assert [each.right[0] for each in indexes] == [1, 2, 0]


@pytest.mark.parametrize(
    ("answers", "message"),
    [
        (["1", "2"], "row 0: answer: '1' is the text of choice 0 or the index of choice 1; no other row decides"),
        (["0", "3", "2"], "row 2: answer: '2' is the text of choice 1 or .* choice 2; other rows are of both"),
    ],
)
def test_a_text_that_stays_ambiguous_is_refused(answers: list[str], message: str) -> None:
    with pytest.raises(DataError, match=f"dataset 'quiz': {message}"):
        questions([{**NUMBERS, "a": answer} for answer in answers])


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ({"c": ["x", "y"], "a": 0}, "row 0: question: no column 'q'; it has c, a"),
        ({"q": "?", "a": 0}, "row 0: choices: no column 'c'"),
        ({"q": "?", "c": ["x", "y"]}, "row 0: answer: no column 'a'"),
        ({"q": "?", "c": "xy", "a": 0}, "row 0: choices: expected a list of texts, got 'xy'"),
        ({"q": "?", "c": ["x", ""], "a": 0}, r"row 0: choices: expected a list of texts, got \['x', ''\]"),
        ({"q": "?", "c": ["x", " "], "a": 0}, r"row 0: choices: expected a list of texts, .*; none may be blank"),
        ({"q": "?", "c": [1, 2], "a": 0}, r"row 0: choices: expected a list of texts, got \[1, 2\]"),
        ({"q": "?", "c": ["x"], "a": 0}, "row 0: choices: expected two or more, got 1: no choice could be wrong"),
        ({"q": "?", "c": ["x", "y", "x"], "a": 0}, "row 0: choices: 'x' appears twice: no model could tell them"),
        ({"q": "?", "c": ["x", "y"], "a": 2}, "row 0: answer: expected an index from 0 to 1 or the text .* got 2"),
        ({"q": "?", "c": ["x", "y"], "a": -1}, "row 0: answer: expected an index from 0 to 1 or the text .* got -1"),
        ({"q": "?", "c": ["x", "y"], "a": True}, "row 0: answer: expected an index .* got True"),
        ({"q": "?", "c": ["x", "y"], "a": "B"}, "row 0: answer: .* got 'B'; letters are not allowed: for B write 1"),
        ({"q": "?", "c": ["x", "y"], "a": "2"}, "row 0: answer: expected an index .* got '2'"),
        ({"q": "?", "c": ["x", "y"], "a": None}, "row 0: answer: column 'a' is null"),
        ({"q": math.nan, "c": ["x", "y"], "a": 0}, "row 0: question: column 'q': expected text or a number, got NaN"),
        ({"q": "?", "c": ["x", "y\ud83d"], "a": 0}, "row 0: choices: .* at character 1 is half of a surrogate pair"),
    ],
)
def test_rows_that_are_no_questions_are_errors(row: dict[str, Any], message: str) -> None:
    with pytest.raises(DataError, match=f"dataset 'quiz': {message}"):
        questions([row])


SEVERAL = {"q": ["Ann sat", "Bob sat"], "t": "down", "a": 1}


def test_several_questions_have_one_target_and_are_the_choices() -> None:
    (row,) = questions([SEVERAL], choices=(), target="t")
    assert row == Question(("Ann sat", "Bob sat"), ("Ann sat", "Bob sat"), (1,), "down")
    assert row.pairs == [("Ann sat", "down"), ("Bob sat", "down")]
    (row,) = questions([{**SEVERAL, "c": ["Ann", "Bob"], "a": "Bob"}], target="t")
    assert (row.choices, row.right) == (("Ann", "Bob"), (1,))
    streams, plan = plan_choices([row], words(), delimiter=" ", max_length=None, name="quiz", model="m")
    assert [ids.tolist() for ids in streams.ids] == [of("Ann sat down"), of("Bob sat down")]
    assert plan.first.tolist() == [7, 7]


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ({"a": []}, "row 0: answer: expected one right choice or more, got an empty list"),
        ({"a": [0, 2]}, "row 0: answer: expected an index from 0 to 1 or the text of a choice, got 2"),
        ({"a": [0, None]}, "row 0: answer: expected an index from 0 to 1 or the text of a choice, got None"),
        ({"a": [0, 1]}, "answer: every choice of every row is right: no model could be wrong"),
        ({"q": ["Ann sat"]}, "row 0: question: expected two or more, got 1: no choice could be wrong"),
        ({"q": "Ann sat"}, "row 0: question: expected a list of texts, got 'Ann sat'"),
        ({"q": ["Ann sat"] * 2}, "row 0: question: 'Ann sat' appears twice: no model could tell them apart"),
        ({"t": ""}, "row 0: target: expected a text, got a blank one"),
        ({"t": " "}, "row 0: target: expected a text, got a blank one"),
        ({"t": ["down"]}, "row 0: target: column 't': expected text or a number, got list"),
        ({"c": ["Ann", "Bob", "Cy"]}, "row 0: expected a question for each choice, got 2 questions and 3 choices"),
    ],
)
def test_a_row_whose_questions_target_or_answers_cannot_be_used_is_refused(row: dict[str, Any], message: str) -> None:
    with pytest.raises(DataError, match=re.escape(f"dataset 'quiz': {message}")):
        questions([{**SEVERAL, **row}], choices=("c",) if "c" in row else (), target="t")
