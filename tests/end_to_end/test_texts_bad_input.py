"""What cannot be generated or scored is an error that fails the build."""

from pathlib import Path

from tests.end_to_end.projects import Project, marked
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
    "damaged": ("./damaged", f"{PATH}, {BOTH}", "", "NaN or infinite"),
    "masked": ("masked", f"{PATH}, {BOTH}", "", "masked model 'masked'"),
}


def test_every_bad_input_is_one_clear_error_and_fails_the_build(writing: Project, writers: Path) -> None:
    project, counter = writing, writers / "counter"
    template = "{% if messages[0].role == 'system' %}{{ raise_exception('no system message, please') }}{% endif %}"
    (project.model("refusing", counter) / "chat_template.jinja").write_text(template)
    (project.model("endless", counter) / "chat_template.jinja").write_text("{{ 'so ' * 9000000 }}")
    _damage(project.model("damaged", counter) / "model.safetensors")
    first = ROWS[0]
    for name, rows in {
        "unprompted": [first, {"rest": "two"}],
        "no_rows": [],
        "no_tokens": [first, {"start": "", "rest": "two"}],
        "long": [first, {**first, "start": "one " * 32}, {**first, "start": "one " * CONTEXT}],
    }.items():
        write_rows(project, name, rows)
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
    assert len(list(project.cache.glob("texts/*/*.lmgate"))) == 1, "what could not be generated must not be kept"


def test_a_reference_that_makes_a_wrong_text_right_is_an_error_that_names_its_row(writing: Project) -> None:
    rows = [{"start": "one", "rest": "two"}, {"start": "one", "rest": "7"}, {"start": "one", "rest": ["two", ""]}]
    for name, row in {"digits": 1, "beside": 2}.items():
        write_rows(writing, name, [rows[0], rows[row]])
    writing.write(blank_csv="start,rest,more\none,,two three four five six seven\none,two,\none,,\n")
    entries = {name: f"path: {name}.jsonl, {BOTH}" for name in ("digits", "beside")}
    cells = 'path: blank.csv, prompt: "{start}", references: [rest, more]'
    writing.add("datasets", **entries, blank=cells, some=f"{cells}, limit: 2").write(
        test_references=marked(
            digits='exact_min("counter", "digits", 0.1, ignore_numbers=True)',
            beside='bleu_min("counter", "beside", 5)',
            blank='ter_max("counter", "blank", 90)',
            some='exact_min("silent", "some", 0.1)',
        )
    )
    done = writing.run().expect(1, error=3, failed=1)  # silence is no reference
    done.says(
        "exact: row 1: nothing is left of the reference '7'",
        "row 1: one of its 2 references is empty",
        "dataset 'blank': row 2: expected at least one reference, got none in rest, more",
    )


def _damage(weights: Path) -> None:
    from safetensors.numpy import load_file, save_file

    tensors = load_file(weights)
    tensors["lm_head.weight"] = tensors["lm_head.weight"] * float("nan")
    save_file(tensors, weights, metadata={"format": "pt"})
