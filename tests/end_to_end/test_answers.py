"""Answers cut out of generated texts: variants of one generation, texts without an answer, and what a failure shows."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.end_to_end.projects import Outcome, Project, marked
from tests.end_to_end.writers import write_rows

# A model is a file that says what it writes, by the question: the prompt's last line.
CONFTEST = """
    import json, pathlib
    from pytest_lmgate.engines.base import SAMPLING, Backend, Model, Runner
    from pytest_lmgate.windows.tokens import TokenizerFacts

    HERE = pathlib.Path(__file__).parent

    def chat(messages, **variables):
        turns = "".join(f"<{each['role']}>{each['content']}\\n" for each in messages)
        begin = "" if messages[-1]["role"] == "assistant" else "<assistant>" + "<think>" * ("thinks" in variables)
        return "".join(f"[{key}={value}]" for key, value in variables.items()) + turns.rstrip("\\n") + begin

    class Writer(Runner):
        tokenizer = TokenizerFacts(lambda text, _: list(map(ord, text)), chat=chat)
        is_tried = True

        def __init__(self, texts, says_ends):
            self.texts, self.says_ends = texts, says_ends

        def score(self, requests):  # an earlier letter is the likelier
            return [each.targets / 10.0 for each in requests]

        def generate(self, prompts, settings):
            with (HERE / "read.jsonl").open("a") as file:
                file.writelines(json.dumps("".join(map(chr, each.ids))) + "\\n" for each in prompts)
            last = [str(each.prompt if isinstance(each.prompt, str) else each.prompt[-1][1]) for each in prompts]
            written = [self.texts[each.splitlines()[-1]] for each in last]
            found = [(text[:settings.max_new_tokens], min(len(text) + 1, settings.max_new_tokens)) for text in written]
            ends = [(len(text) < settings.max_new_tokens,) if self.says_ends else () for text in written]
            return [(*each, *end) for each, end in zip(found, ends)]

    class Writers(Backend):
        name, suffixes = "writer", (".writer",)

        def describe(self, entry):
            file = entry.path(entry.spec.path)
            facts = json.loads(file.read_text())
            return Model(
                entry.name, lambda: Writer(facts["texts"], facts.get("says_ends", True)),
                content={"file": entry.digest(file)}, runtime={}, offers=frozenset({"generate", "score"}),
                honours=SAMPLING,
            )

    def pytest_lmgate_backends():
        return [Writers()]
"""
ROWS = [{"q": f"q{row}", "a": str(row)} for row in range(8)]
ITSELF = {"against": "m", "same": True}
RIGHT = {f"q{row}": f"so 9, no.\n#### {row}\nQ: more" for row in range(8)}
DATASET = {
    "path": "rows.jsonl", "prompt": "Question\n{q}", "references": "a", "max_new_tokens": 40, "stop": "Q:",
    "extract": {"strict": "gsm8k-strict", "flexible": "gsm8k-flexible"},
}  # fmt: skip


class AnswersProject(Project):
    def gates(self, *gates: Mapping[str, Any], rows: Any = ROWS, datasets: Any = None, **dataset: Any) -> None:
        """Write gates on ``math`` with these keys, or on other datasets; None takes a key of one away."""
        write_rows(self, "rows", rows)
        models = {file.stem: {"path": file.name} for file in self.folder.glob("*.writer")}
        entries = {
            name: {key: value for key, value in entry.items() if value is not None}
            for name, entry in (datasets or {"math": DATASET | dataset}).items()
        }
        lmgate = {"models": models, "datasets": entries} | ({"gates": gates} if gates else {})
        (self.folder / "lmgate.yaml").write_text(json.dumps(lmgate, indent=1))

    def model(self, name: str, texts: Mapping[str, str], **facts: Any) -> None:  # type: ignore[override]
        (self.folder / f"{name}.writer").write_text(json.dumps({"texts": texts, **facts}))

    def judged(self, code: int) -> tuple[Outcome, list[dict[str, Any]]]:
        return self.run("--lmgate-report", "json:report.json").expect(code), self.report()["gates"]


@pytest.fixture
def project(tmp_path: Path) -> AnswersProject:
    made = AnswersProject(tmp_path, "pytest")
    made.write(conftest=CONFTEST, pytest_ini="[pytest]\n")
    # Of eight rows, five are right by both variants; row 5 has no mark, row 6 no number, and row 7 is cut.
    made.model("m", RIGHT | {"q5": "I think 5", "q6": "no idea", "q7": "7" * 50})
    return made


def gate(marker: str, **arguments: Any) -> dict[str, Any]:
    return {marker: {"model": "m", "dataset": "math"} | arguments}


def test_one_generation_serves_all_variants_and_a_failure_shows_what_was_extracted(project: AnswersProject) -> None:
    project.gates(
        gate("exact_min", limit=0.6),
        gate("exact_min", limit=0.7, variant="flexible"),
        gate("exact_min", limit=0.6, variant="strict", max_new_tokens=40, stop=["Q:"], numeric=True),
        gate("invalid_max", limit=0.4),
        gate("invalid_max", limit=0.2, variant="flexible"),
        gate("ter_max", limit=40),  # of the answers by the first variant
        {"no_regression": {"metric": "exact", "tolerance": 0.1, **ITSELF, **gate("", variant="flexible")[""]}},
    )
    ran, gates = project.judged(0)
    assert [each["value"] for each in gates] == [5 / 8, 6 / 8, 5 / 8, 3 / 8, 1 / 8, 37.5, 6 / 8]
    assert len({each["fingerprint"] for each in gates}) == 1
    ran.says("3 of 8 texts without an answer (37.5%), 1 of 8 texts cut at max_new_tokens (12.5%)")
    assert [tuple(each["answers"].values()) for each in gates[:2]] == [(8, 3, 1), (8, 1, 1)]
    project.gates(gate("exact_min", limit=0.9))
    ran, (exact,) = project.judged(1)
    worst = {"row": 5, "score": 0.0, "prompt": "Question\nq5", "reference": "5", "output": "I think 5"}
    assert exact["worst"][0] == {**worst, "answer": "[invalid]"}
    ran.says("row (from 0), score, end of the prompt, reference, output, answer", "[invalid]")


def test_no_answer_in_any_row_is_an_error_but_for_the_gate_of_that_share(project: AnswersProject) -> None:
    project.model("m", dict.fromkeys(RIGHT, "I do not know"))
    project.gates(
        gate("exact_min", limit=0.0001),
        gate("bleu_min", limit=0.0001),
        gate("invalid_max", limit=0.5),
        {"no_regression": {"metric": "invalid", "tolerance": 0.01, **ITSELF, **gate("")[""]}},
    )
    ran, gates = project.judged(1)
    assert [each["verdict"] for each in gates] == ["error", "error", "fail", "pass"]
    assert gates[2]["value"] == 1.0
    ran.says("extract: expected an answer in some text, got none in 8")


def test_a_number_in_thoughts_that_do_not_end_is_no_answer(project: AnswersProject) -> None:
    texts = {f"q{row}": f"Not 9.</think>\nIt is {row}." for row in range(6)}
    # One text is cut within its thoughts, the other ends at a stop string there.
    texts |= {"q6": "Is it 6? No: 9. I think. I think, I think.", "q7": "Is it 7? Q: more</think>It is 7."}
    project.model("opens", {key: f"<think>{text}" for key, text in texts.items()})
    project.model("m", texts)  # its chat template opens the thoughts, or an assistant's turn has begun them
    project.model("plain", {f"{key}<think>": text for key, text in texts.items()})
    data = DATASET | {"extract": "last-number", "max_new_tokens": 34, "prompt": None}
    asked, begun = {"role": "user", "content": "?"}, "Once.</think><think>\n"
    rows = [row | {"turns": [asked, {"role": "assistant", "content": begun + row["q"]}]} for row in ROWS]
    cases = (("opens", "d"), ("m", "opened"), ("m", "begun"), ("plain", "rendered"))
    chat = data | {"chat": True, "prompt": "{q}"}
    project.gates(
        *({name: {"model": model, "dataset": data, "limit": limit}} for model, data in cases
          for name, limit in (("exact_min", 0.75), ("invalid_max", 0.25), ("invalid_max", 0.24))),
        rows=rows,
        datasets={"d": chat, "opened": chat | {"chat_template_kwargs": {"thinks": True}},
                  "begun": data | {"messages": "turns"}, "rendered": data | {"prompt": "{q}<think>"}},
    )  # fmt: skip
    _, found = project.judged(1)
    assert [(each["value"], each["verdict"]) for each in found] == 4 * [(0.75, "pass"), (0.25, "pass"), (0.25, "fail")]


def test_the_share_of_texts_cut_at_max_new_tokens_is_gated_whatever_is_extracted(project: AnswersProject) -> None:
    project.model("longer", RIGHT | dict.fromkeys(("q0", "q1", "q2", "q3"), "9" * 50))
    project.model("mute", RIGHT | {"q0": "9" * 50}, says_ends=False)
    against = {"no_regression": {"metric": "cut", "model": "longer", "dataset": "math", "against": "m", "within": 0.1}}
    project.gates(
        gate("cut_max", limit=0.125),
        gate("cut_max", limit=0.12),
        gate("cut_max", limit=0, max_new_tokens=60),
        gate("cut_max", limit=0.9, model="mute"),
        against,
    )
    ran, (passed, failed, longer, mute, compared) = project.judged(1)
    shown = [(each["value"], each["verdict"]) for each in (passed, failed, longer, mute)]
    assert shown == [(0.125, "pass"), (0.125, "fail"), (0.0, "pass"), (None, "error")]
    assert "'math': cut: whether a text was cut at max_new_tokens is not known: some engines" in mute["message"]
    assert (compared["value"], compared["comparison"]["degradation"]) == (0.5, 0.375)
    worst = failed["worst"][0]
    assert (worst["row"], worst["output"], worst["answer"]) == (7, "7" * 40, "cut at max_new_tokens")
    ran.says("1 of 8 texts cut at max_new_tokens (12.5%)")


def test_given_texts_and_functions_do_not_say_whether_they_were_cut(project: AnswersProject) -> None:
    project.gates(max_new_tokens=None, stop=None, extract=None)
    function = "def function(prompts): return ['a' for _ in prompts]\n\n"
    given = "\ndef test_given(cut_of): cut_of(predictions=['a'], references=[['a']])\n"
    project.write(test_cut=function + marked(function="cut_max(function, 'math', 0.5)") + given)
    ran = project.run().expect(1, failed=1, error=1).says("only a model's own texts say whether they were cut")
    ran.says("is not known: some engines do not say, and a function")


# Datasets of whole chats, which the model's own template makes into text.
CHAT = [{"role": "system", "content": "Add."}, {"role": "user", "content": "q0"}]
BEGUN = [*CHAT, {"role": "assistant", "content": "#### "}]
MESSAGES = {"prompt": None, "messages": "turns"}


def test_messages_are_read_by_the_models_template_and_an_assistants_turn_is_continued(project: AnswersProject) -> None:
    project.model("m", {"q0": "#### 0", "#### ": "0"})
    rows = [{"turns": CHAT, "a": "0"}, {"turns": BEGUN, "a": "0"}]
    project.gates(gate("exact_min", limit=0.1), rows=rows, **MESSAGES | {"extract": None})
    _, (judged,) = project.judged(0)
    assert judged["value"] == 0.5  # one begins with the mark, which the other was given
    read = [json.loads(line) for line in (project.folder / "read.jsonl").read_text().splitlines()]
    assert sorted(read) == ["<system>Add.\n<user>q0\n<assistant>#### ", "<system>Add.\n<user>q0<assistant>"]


def test_messages_that_cannot_be_are_refused(project: AnswersProject) -> None:
    wrong: dict[str, tuple[Any, str]] = {
        "row 0: messages: column 'turns': expected a list of turns, got []": ([], "turns"),
        "expected a list of turns, got 'hi'": ("hi", "turns"),
        "both texts, got {'role': 'user'}": ([{"role": "user"}], "turns"),
        "both texts, got {'role': 'user', 'content': 3}": ([{"role": "user", "content": 3}], "turns"),
        "no column 'turn' (did you mean 'turns'?)": (CHAT, "turn"),
    }
    datasets = {}
    for number, (turns, column) in enumerate(wrong.values()):
        write_rows(project, f"d{number}", [{"turns": turns, "a": "0"}])
        datasets[f"d{number}"] = DATASET | MESSAGES | {"path": f"d{number}.jsonl", "messages": column}
    project.gates(*(gate("exact_min", limit=0.5, dataset=name) for name in datasets), datasets=datasets)
    project.run().expect(1, error=len(wrong)).says(*wrong)
