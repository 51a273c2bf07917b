"""Answers cut out of generated texts: variants of one generation, texts without an answer, and what a failure shows."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

import pytest

from tests.end_to_end.projects import Project
from tests.end_to_end.writers import write_rows

# A model is a file that says what it writes, by the question: the prompt's last line.
CONFTEST = """
    import json, pathlib
    from pytest_lmgate.engines.base import SAMPLING, Backend, Model, Runner
    from pytest_lmgate.windows.tokens import TokenizerFacts

    HERE = pathlib.Path(__file__).parent

    def chat(messages, **variables):
        turns = "".join(f"<{each['role']}>{each['content']}\\n" for each in messages)
        begin = "" if messages[-1]["role"] == "assistant" else "<assistant>"
        return "".join(f"[{key}={value}]" for key, value in variables.items()) + turns.rstrip("\\n") + begin

    class Writer(Runner):
        tokenizer = TokenizerFacts(lambda text, _: list(map(ord, text)), chat=chat)
        is_tried = True

        def __init__(self, texts, says_ends):
            self.texts, self.says_ends = texts, says_ends

        def score(self, requests):  # an earlier letter is the likelier
            return [each.targets / 10.0 for each in requests]

        def generate(self, prompts, settings):
            with (HERE / "generated.txt").open("a") as file:
                file.write(f"{settings.signature}\\n")
            with (HERE / "read.jsonl").open("a") as file:
                file.writelines(json.dumps("".join(map(chr, each.ids))) + "\\n" for each in prompts)
            last = [str(each.prompt if isinstance(each.prompt, str) else each.prompt[-1][1]) for each in prompts]
            written = [self.texts[each.splitlines()[-1]] for each in last]
            found = [(text[:settings.max_new_tokens], min(len(text) + 1, settings.max_new_tokens)) for text in written]
            if not self.says_ends:
                return found
            return [(*each, len(text) < settings.max_new_tokens) for each, text in zip(found, written)]

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
    entry: ClassVar[Mapping[str, Any]] = {}

    def gates(self, *gates: Mapping[str, Any], rows: Sequence[Mapping[str, Any]] = ROWS, **dataset: Any) -> None:
        """Write gates on the dataset ``math``, with these keys, of the models there are."""
        write_rows(self, "rows", rows)
        self.write_gates(*gates, datasets={"math": DATASET | dataset})

    def write_gates(self, *gates: Mapping[str, Any], datasets: Mapping[str, Mapping[str, Any]]) -> None:
        """Write gates of the models there are; None takes a key of a dataset away."""
        models = {file.stem: {"path": file.name, **self.entry} for file in self.folder.glob("*.writer")}
        entries = {
            name: {key: value for key, value in entry.items() if value is not None} for name, entry in datasets.items()
        }
        lmgate = {"models": models, "datasets": entries} | ({"gates": gates} if gates else {})
        (self.folder / "lmgate.yaml").write_text(json.dumps(lmgate, indent=1))

    def model(self, name: str, texts: Mapping[str, str], **facts: Any) -> None:
        (self.folder / f"{name}.writer").write_text(json.dumps({"texts": texts, **facts}))

    @property
    def generated(self) -> set[str]:
        """The settings that texts were generated with."""
        return set((self.folder / "generated.txt").read_text().splitlines())


@pytest.fixture
def project(tmp_path: Path) -> AnswersProject:
    made = AnswersProject(tmp_path, "pytest")
    made.write(conftest=CONFTEST, pytest_ini="[pytest]\n")
    # Of eight rows, five are right by both variants; row 5 has no mark, row 6 no number, and row 7 is cut.
    made.model("m", RIGHT | {"q5": "I think 5", "q6": "no idea", "q7": "7" * 50})
    return made


def gate(marker: str, **arguments: Any) -> dict[str, Any]:
    return {marker: {"model": "m", "dataset": "math"} | arguments}


def test_one_generation_serves_all_variants_and_a_gate_that_repeats_the_datasets_settings(
    project: AnswersProject,
) -> None:
    project.gates(
        gate("exact_min", limit=0.6),
        gate("exact_min", limit=0.7, variant="flexible"),
        gate("exact_min", limit=0.6, variant="strict", max_new_tokens=40, stop=["Q:"], numeric=True),
        gate("invalid_max", limit=0.4),
        gate("invalid_max", limit=0.2, variant="flexible"),
        gate("ter_max", limit=40),  # of the answers by the first variant
        {"no_regression": {"metric": "exact", "tolerance": 0.1, **ITSELF, **gate("", variant="flexible")[""]}},
    )
    ran = project.run("--lmgate-report", "json:report.json")
    assert ran.code == 0, ran.text
    values = [each["value"] for each in project.report()["gates"]]
    assert values == [5 / 8, 6 / 8, 5 / 8, 3 / 8, 1 / 8, 37.5, 6 / 8]
    assert project.generated == {"max_new_tokens:40|num_beams:1|stop:['Q:']"}
    assert len({each["fingerprint"] for each in project.report()["gates"]}) == 1
    assert "3 of 8 rows without an answer (37.5%), 1 of 8 texts cut at max_new_tokens (12.5%)" in ran.text
    assert [each["answers"] for each in project.report()["gates"]][:2] == [
        {"rows": 8, "without": 3, "cut": 1}, {"rows": 8, "without": 1, "cut": 1},
    ]  # fmt: skip


def test_a_failure_shows_the_question_the_text_and_what_was_extracted(project: AnswersProject) -> None:
    project.gates(gate("exact_min", limit=0.9), gate("invalid_max", limit=0.1))
    ran = project.run("--lmgate-report", "json:report.json", "--lmgate-report", "html:page.html")
    assert ran.code == 1
    exact, invalid = project.report()["gates"]
    assert exact["worst"][0] == {
        "row": 5, "score": 0.0, "prompt": "Question\nq5", "reference": "5", "output": "I think 5",
        "answer": "[invalid]",
    }  # fmt: skip
    assert [each["row"] for each in invalid["worst"]][:3] == [5, 6, 7]
    page = (project.folder / "page.html").read_text()
    for said in (ran.text, page):
        assert "3 of 8 rows without an answer (37.5%), 1 of 8 texts cut at max_new_tokens (12.5%)" in said
        assert "[invalid]" in said
    assert "row (from 0), score, end of the prompt, reference, output, answer" in ran.text
    assert '<th scope="col">answer</th>' in page


def test_no_answer_in_any_row_is_an_error_but_for_the_gate_of_that_share(project: AnswersProject) -> None:
    project.model("m", dict.fromkeys(RIGHT, "I do not know"))
    project.gates(
        gate("exact_min", limit=0.0001),
        gate("bleu_min", limit=0.0001),
        gate("invalid_max", limit=0.5),
        {"no_regression": {"metric": "invalid", "tolerance": 0.01, **ITSELF, **gate("")[""]}},
    )
    ran = project.run("--lmgate-report", "json:report.json")
    assert ran.code == 1
    assert [each["verdict"] for each in project.report()["gates"]] == ["error", "error", "fail", "pass"]
    assert project.report()["gates"][2]["value"] == 1.0
    assert (
        "dataset 'math': extract: expected an answer in some text, got none in 8; the first text is 'I do not know'"
        in (" ".join(ran.text.split()))
    )


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
    ran = project.run("--lmgate-report", "json:report.json")
    assert ran.code == 1
    passed, failed, longer, mute, compared = project.report()["gates"]
    assert [each["value"] for each in (passed, failed, longer)] == [0.125, 0.125, 0.0]
    assert [each["verdict"] for each in (passed, failed, longer, mute)] == ["pass", "fail", "pass", "error"]
    assert "'math': cut: whether a text was cut at max_new_tokens is not known: some engines" in mute["message"]
    assert (compared["value"], compared["comparison"]["degradation"]) == (0.5, 0.375)
    worst = failed["worst"][0]
    assert (worst["row"], worst["output"], worst["answer"]) == (7, "7" * 40, "cut at max_new_tokens")
    assert "1 of 8 texts cut at max_new_tokens (12.5%)" in ran.text


def test_an_update_of_extract_leaves_the_baseline_of_cut_as_it_is(project: AnswersProject) -> None:
    by_baseline = {"no_regression": {"metric": "cut", "model": "m", "dataset": "math", "tolerance": 0.1}}
    project.gates(by_baseline)
    project.run("--lmgate-update").expect(0)
    project.gates(by_baseline, extract=None)
    project.run().expect(0, passed=1)
    project.model("m", RIGHT | dict.fromkeys(("q0", "q1", "q2", "q3"), "9" * 50))
    project.run().expect(1, failed=1).says("share of cut texts 0.5 of 'm'")


def test_given_texts_and_functions_do_not_say_whether_they_were_cut(project: AnswersProject) -> None:
    project.gates(max_new_tokens=None, stop=None, extract=None)
    project.write(
        test_cut="""
        import pytest, pytest_lmgate as lmgate

        def test_fixture(cut_of):
            assert cut_of("m", "math", max_new_tokens=40) == 1 / 8

        def test_given(cut_of):
            cut_of(predictions=["a"], references=[["a"]])

        @pytest.fixture
        def function():
            return lambda prompts: ["a" for _ in prompts]

        @pytest.mark.cut_max(lmgate.fixture("function"), "math", 0.5)
        def test_function():
            pass
        """
    )
    ran = project.run().expect(1, failed=1, error=1, passed=1)
    ran.says(
        "only a model's own texts say whether they were cut", "is not known: some engines do not say, and a function"
    )


def test_what_cannot_be_asked_of_answers_is_told_when_the_gates_are_collected(project: AnswersProject) -> None:
    wrong = {
        "variant: expected an extraction of the dataset, got 'strict'": ("exact_min", "boxed", {"variant": "strict"}),
        "got 'strickt' (did you mean 'strict'?); it has strict,": ("exact_min", "math", {"variant": "strickt"}),
        "seed: only sampling needs one": ("exact_min", "math", {"seed": 3}),
        "ignore: expected a regular expression of Python, got '('": ("exact_min", "math", {"ignore": ["("]}),
        "dataset 'raw': invalid needs extract:": ("invalid_max", "raw", {}),
    }
    gates = [gate(marker, limit=0.5, dataset=data, **given) for marker, data, given in wrong.values()]
    datasets = {"math": DATASET, "boxed": DATASET | {"extract": "boxed"}, "raw": DATASET | {"extract": None}}
    project.write_gates(*gates, datasets=datasets)
    project.run("--collect-only").expect(4).says(*wrong)


# Datasets of whole chats, which the model's own template makes into text.
CHAT = [{"role": "system", "content": "Add."}, {"role": "user", "content": "q0"}]
BEGUN = [*CHAT, {"role": "assistant", "content": "#### "}]
MESSAGES = {"prompt": None, "messages": "turns"}


def test_messages_are_read_by_the_models_template_and_an_assistants_turn_is_continued(project: AnswersProject) -> None:
    project.model("m", {"q0": "#### 0", "#### ": "0"})
    rows = [{"turns": CHAT, "a": "0"}, {"turns": BEGUN, "a": "0"}]
    project.gates(gate("exact_min", limit=0.1), rows=rows, **MESSAGES | {"extract": None})
    ran = project.run("--lmgate-report", "json:report.json")
    assert ran.code == 0, ran.text
    assert project.report()["gates"][0]["value"] == 0.5  # one begins with the mark, which the other was given
    read = [json.loads(line) for line in (project.folder / "read.jsonl").read_text().splitlines()]
    assert sorted(read) == ["<system>Add.\n<user>q0\n<assistant>#### ", "<system>Add.\n<user>q0<assistant>"]


def test_messages_that_cannot_be_are_refused(project: AnswersProject) -> None:
    wrong: dict[str, tuple[Any, str]] = {
        "row 0: messages: column 'turns': expected a list of turns, got []": ([], "turns"),
        "expected a list of turns, got 'hi'": ("hi", "turns"),
        "expected turns of role and content, both texts, got {'role': 'user'}": ([{"role": "user"}], "turns"),
        "both texts, got {'role': 'user', 'content': 3}": ([{"role": "user", "content": 3}], "turns"),
        "no column 'turn' (did you mean 'turns'?)": (CHAT, "turn"),
    }
    datasets = {}
    for number, (turns, column) in enumerate(wrong.values()):
        write_rows(project, f"d{number}", [{"turns": turns, "a": "0"}])
        datasets[f"d{number}"] = DATASET | MESSAGES | {"path": f"d{number}.jsonl", "messages": column}
    project.write_gates(*(gate("exact_min", limit=0.5, dataset=name) for name in datasets), datasets=datasets)
    project.run().expect(1, error=len(wrong)).says(*wrong)
