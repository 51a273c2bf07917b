"""What cannot be generated or scored is an error that fails the build."""

from pathlib import Path

from tests.end_to_end.projects import Project, marked, scale_head
from tests.end_to_end.writers import CONTEXT, ROWS, write_rows

PATH = "path: chains.jsonl"
BOTH = 'prompt: "{start}", references: rest'

# Test by test: the model, the dataset's entry in lmgate.yaml, more arguments of the gate, what its error must say.
CASES = {
    "unprompted": ("counter", f"path: unprompted.jsonl, {BOTH}", "", "row 1: prompt: no column 'start'"),
    "no_rows": ("counter", f"path: no_rows.jsonl, {BOTH}", "", "expected rows, got none"),
    "cluster": ("counter", f"{PATH}, {BOTH}, cluster: grp", "", "row 0: cluster: no column 'grp'"),
    "no_tokens": ("counter", f"path: no_tokens.jsonl, {BOTH}", "", "row 1: "),
    "long": ("counter", f"path: long.jsonl, {BOTH}", "", f"row 2: the prompt has {CONTEXT} tokens"),
    "context": ("counter", f"{PATH}, {BOTH}", f"max_new_tokens={CONTEXT}", f"can write {CONTEXT - 1} at most"),
    "refusing": ("./refusing", f"{PATH}, {BOTH}, chat: true, system: Be brief.", "", "no system message, please"),
    "endless": ("./endless", f"{PATH}, {BOTH}, chat: true", "", "expected at most 1,0"),
    "ignored": ("./ignoring", f"{PATH}, {BOTH}, chat: true, system: Be brief.", "", "leaves out what the system says"),
    "damaged": ("./damaged", f"{PATH}, {BOTH}", "", "NaN or infinite"),
    "digits": (
        "counter",
        f"path: digits.jsonl, {BOTH}",
        "ignore_numbers=True",
        "row 1: nothing is left of the reference",
    ),
    "beside": ("counter", f"path: beside.jsonl, {BOTH}", "", "row 1: one of its 2 references is empty"),
    "masked": ("masked", f"{PATH}, {BOTH}", "", "masked model 'masked'"),
}


def test_every_bad_input_is_one_clear_error_and_fails_the_build(writing: Project, writers: Path) -> None:
    project, counter = writing, writers / "counter"
    template = "{% if messages[0].role == 'system' %}{{ raise_exception('no system message, please') }}{% endif %}"
    (project.model("refusing", counter) / "chat_template.jinja").write_text(template)
    ignoring = "{% for turn in messages if turn.role != 'system' %}{{ turn.content }}{% endfor %}"
    (project.model("ignoring", counter) / "chat_template.jinja").write_text(ignoring)
    (project.model("endless", counter) / "chat_template.jinja").write_text("{{ 'so ' * 9000000 }}")
    scale_head(project.model("damaged", counter), float("nan"))
    first = ROWS[0]
    write_rows(project, "unprompted", [first, {"rest": "two"}])
    write_rows(project, "no_rows", [])
    write_rows(project, "digits", [first, {"start": "one", "rest": "7"}])
    write_rows(project, "beside", [first, {"start": "one", "rest": ["two", ""]}])
    write_rows(project, "no_tokens", [first, {"start": "", "rest": "two"}])
    write_rows(project, "long", [first, {**first, "start": "one " * 32}, {**first, "start": "one " * CONTEXT}])
    gates = {name: f"exact_min({model!r}, {name!r}, 0.1, {more})" for name, (model, _, more, _) in CASES.items()}
    project.add("datasets", **{name: entry for name, (_, entry, _, _) in CASES.items()})
    project.write(test_bad=marked(**gates, cut='exact_min("counter", "long", 1, truncate="left")'))
    outcome = project.run("--lmgate-report", "json:report.json", "-W", "error").expect(1, error=len(CASES), passed=1)
    outcome.is_silent_on("Traceback", "INTERNALERROR", "/pytest_lmgate/")
    sections = dict(part.split(" ", 1) for part in outcome.out.split("ERROR at setup of test_")[1:])
    for name, (_, _, _, sentence) in CASES.items():
        assert sentence in sections[name], f"{name}: expected {sentence!r} in\n{sections[name]}"
    verdicts = {gate["test"].partition("test_bad.py::test_")[2]: gate["verdict"] for gate in project.report()["gates"]}
    assert verdicts == {**dict.fromkeys(CASES, "error"), "cut": "pass"}
    kept = list(project.cache.glob("texts/*/*.lmgate"))
    assert len(kept) == 2, (
        "of `cut`, and of `digits`, whose texts are sound; what could not be generated must not be kept"
    )
