"""What cannot be generated or scored is an error that fails the build; what is merely bad scores 0 and fails."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.end_to_end.projects import Project
from tests.end_to_end.writers import CONTEXT, ROWS, models_that_write, write_rows, writing_project

PATH = "path: chains.jsonl"
BOTH = 'prompt: "{start}", references: rest'

# Test by test: the model, the dataset's entry in lmgate.yaml, more arguments of the gate, what its error must say.
CASES = {
    "no_references": ("counter", PATH, "", "'no_references': say references: COLUMN"),
    "reference_column": (
        "counter",
        f"{PATH}, source: start, references: [rest, rst]",
        "",
        "row 0: references: no column 'rst' (did you mean 'rest'?); it has start, rest, group",
    ),
    "lacking": (
        "counter",
        "path: lacking.jsonl, source: start, references: rest",
        "",
        "row 1: references: no column 'rest'; it has start",
    ),
    "unreferenced": ("counter", f"path: unreferenced.jsonl, {BOTH}", "", "row 1: expected at least one reference"),
    "number": ("counter", f"path: number.jsonl, {BOTH}", "", "column 'rest': expected text or a list of texts, got 3"),
    "unprompted": ("counter", f"path: unprompted.jsonl, {BOTH}", "", "row 1: prompt: no column 'start'; it has rest"),
    "nulls": ("counter", f"path: nulls.jsonl, {BOTH}", "", "row 0: prompt: column 'start' is null"),
    "listed": ("counter", f"path: listed.jsonl, {BOTH}", "", "column 'start': expected text or a number, got list"),
    "field": (
        "counter",
        f'{PATH}, prompt: "say {{strat}}", references: rest',
        "",
        "row 0: prompt: no column 'strat' (did you mean 'start'?)",
    ),
    "brace": ("counter", f'{PATH}, prompt: "{{start", references: rest', "", "write {{ and }} for braces in '{start'"),
    "empty_field": ("counter", f'{PATH}, prompt: "{{}}", references: rest', "", "row 0: prompt: no column ''"),
    "format": ("counter", f'{PATH}, prompt: "{{start!r}}", references: rest', "", "expected {column}, got a format"),
    "row": ("counter", f"path: row.jsonl, {BOTH}", "", "row 1: expected a mapping, got list"),
    "no_rows": ("counter", f"path: no_rows.jsonl, {BOTH}", "", "expected rows, got none"),
    "cluster": (
        "counter",
        f"{PATH}, {BOTH}, cluster: grp",
        "",
        "row 0: cluster: no column 'grp' (did you mean 'group'?)",
    ),
    "examples": (
        "counter",
        f"{PATH}, {BOTH}, examples: no_such.jsonl",
        "",
        "no_such.jsonl; check datasets.examples.examples\n",
    ),
    "example": (
        "counter",
        f"{PATH}, {BOTH}, examples: unprompted.jsonl",
        "",
        "'example (examples)': row 1: prompt: no col",
    ),
    "no_tokens": (
        "counter",
        f"path: no_tokens.jsonl, {BOTH}",
        "",
        "row 1: expected a prompt, got one without a token: ''",
    ),
    "long": (
        "counter",
        f"path: long.jsonl, {BOTH}",
        "",
        f"row 2: the prompt has {CONTEXT} tokens, but the model 'counter' has room for 32 (context {CONTEXT}, "
        "max_new_tokens 128); shorten it, lower max_new_tokens, or say truncate='left'",
    ),
    "context": ("counter", f"{PATH}, {BOTH}", f"max_new_tokens={CONTEXT}", f"can write {CONTEXT - 1} at most, got"),
    "chat": (
        "counter",
        f"{PATH}, {BOTH}, chat: true",
        "",
        "model 'counter': chat: true, but its tokenizer has no chat template; add chat_template.jinja to its folder",
    ),
    "refusing": (
        "./refusing",
        f"{PATH}, {BOTH}, chat: true, system: Be brief.",
        "",
        "its chat template refuses a chat of system, user: TemplateError: no system message, please",
    ),
    "damaged": ("./damaged", f"{PATH}, {BOTH}", "", "NaN or infinite logits while generating"),
    "masked": ("masked", f"{PATH}, {BOTH}", "", "generating texts is undefined for the masked model 'masked'"),
}


@pytest.fixture
def project(tmp_path: Path, tmp_path_factory: pytest.TempPathFactory) -> Project:
    return writing_project(tmp_path, tmp_path_factory.getbasetemp())


def test_every_bad_input_is_one_clear_error_and_fails_the_build(
    project: Project, tmp_path_factory: pytest.TempPathFactory
) -> None:
    counter = models_that_write(tmp_path_factory.getbasetemp()) / "counter"
    template = "{% if messages[0].role == 'system' %}{{ raise_exception('no system message, please') }}{% endif %}"
    (project.model("refusing", counter) / "chat_template.jinja").write_text(template)
    _damage(project.model("damaged", counter) / "model.safetensors")
    first = ROWS[0]
    for name, rows in {
        "lacking": [first, {"start": "one"}],
        "unreferenced": [first, {"start": "one", "rest": [None]}],
        "number": [{"start": "one", "rest": 3}],
        "unprompted": [first, {"rest": "two"}],
        "nulls": [{"start": None, "rest": "two"}],
        "listed": [{"start": ["one"], "rest": "two"}],
        "row": [first, ["one", "two"]],
        "no_rows": [],
        "no_tokens": [first, {"start": "", "rest": "two"}],
        "long": [first, {**first, "start": "one " * 32}, {**first, "start": "one " * CONTEXT}],
    }.items():
        write_rows(project, name, rows)
    yaml = (project.folder / "lmgate.yaml").read_text()
    gates = [
        f"@pytest.mark.exact_min({model!r}, {name!r}, 0.1, {more})\ndef test_{name}(): pass"
        for name, (model, _, more, _) in CASES.items()
    ]
    cut = '@pytest.mark.exact_min("counter", "long", 1, truncate="left")\ndef test_cut(): pass'
    project.write(
        lmgate_yaml=yaml + "".join(f"  {name}: {{{entry}}}\n" for name, (_, entry, _, _) in CASES.items()),
        test_bad="\n\n".join(["import pytest", *gates, cut]),
    )
    outcome = project.run("--lmgate-report", "json:report.json", "-W", "error").expect(1, error=len(CASES), passed=1)
    outcome.is_silent_on("Traceback", "INTERNALERROR", "/pytest_lmgate/")
    sections = dict(part.split(" ", 1) for part in outcome.out.split("ERROR at setup of test_")[1:])
    for name, (_, _, _, sentence) in CASES.items():
        said = sections[name]
        assert sentence in said, f"{name}: expected {sentence!r} in\n{said}"
        assert "could not be measured" in said
    verdicts = {gate["test"].partition("test_bad.py::test_")[2]: gate["verdict"] for gate in project.report()["gates"]}
    assert verdicts == {**dict.fromkeys(CASES, "error"), "cut": "pass"}
    assert len(list(project.cache.glob("texts/*/*.lmgate"))) == 1, "what could not be generated must not be kept"


def test_an_empty_output_everywhere_scores_0_and_fails_its_gate(project: Project) -> None:
    project.write(
        test_silent="""
            import pytest

            @pytest.mark.bleu_min("silent", "chains", 1e-300)
            @pytest.mark.chrf_min("silent", "chains", 1e-300)
            @pytest.mark.rouge_min("silent", "chains", 1e-300)
            @pytest.mark.rouge_min("silent", "chains", 1e-300, "rougeSU4", convention="rouge-1.5.5")
            @pytest.mark.exact_min("silent", "chains", 1e-300)
            @pytest.mark.ter_max("silent", "chains", 99.9)
            def test_worse(): pass

            @pytest.mark.bleu_min("backward", "chains", 20)
            @pytest.mark.ter_max("backward", "chains", 80)
            def test_wrong_way_round(): pass
        """
    )
    outcome = project.run("--lmgate-report", "json:report.json", "-W", "error").expect(1, failed=2)
    gates = project.report()["gates"]
    assert [gate["verdict"] for gate in gates] == ["fail"] * 8
    assert {gate["metric"]: gate["value"] for gate in gates[:6]} == {
        "bleu": 0, "chrf": 0, "rouge": 0, "exact": 0, "ter": 100
    }  # fmt: skip
    assert outcome.out.count("(empty)") >= 5 * 6


WRONG_MARKS = {
    "option": (
        'bleu_min("counter", "chains", 20, tokenise="zh")',
        "tokenise: unknown argument (did you mean 'tokenize'?)",
    ),
    "generation": ('ter_max("counter", "chains", 20, max_new_token=3)', "(did you mean 'max_new_tokens'?)"),
    "tokenizer": ('bleu_min("counter", "chains", 20, tokenize="13b")', "got '13b' (did you mean '13a'?)"),
    "smoothing": ('bleu_min("counter", "chains", 20, smooth_method="flor")', "got 'flor' (did you mean 'floor'?)"),
    "order": ('bleu_min("counter", "chains", 20, max_ngram_order=0)', "max_ngram_order to be a whole number from 1"),
    "flag": ('ter_max("counter", "chains", 20, normalized="no")', "expected normalized to be true or false, got 'no'"),
    "variant": (
        'rouge_min("counter", "chains", 0.2, "rogueL")',
        "unknown ROUGE variant 'rogueL' (did you mean 'rougeL'?)",
    ),
    "convention": ('rouge_min("counter", "chains", 0.2, convention="lin2005")', "'lin2005' (did you mean 'lin2004'?)"),
    "pooling": ('rouge_min("counter", "chains", 0.2, multi_reference="mean")', "expected 'best' or 'average'"),
    "words": ('rouge_min("counter", "chains", 0.2, tokenizer="unicod")', "'unicod' (did you mean 'unicode'?)"),
    "scale_1": (
        'rouge_min("counter", "chains", 20)',
        "rouge_min is on a scale from 0 to 1, got 20: nothing could reach",
    ),
    "share": ('bleu_min("counter", "chains", 0.35)', "on a scale from 0 to 100, got 0.35: write 35 if that is meant"),
    "scale_100": ('chrf_min("counter", "chains", 100.5)', "chrf_min is on a scale from 0 to 100, got 100.5"),
    "zero": ('bleu_min("counter", "chains", 0)', "limit: expected a positive finite number, got 0"),
    "percent": ('exact_min("counter", "chains", 95)', "exact_min is on a scale from 0 to 1, got 95"),
    "model": ('bleu_min("countr", "chains", 20)', "model 'countr' is not known (did you mean 'counter'?)"),
    "dataset": ('bleu_min("counter", "chain", 20)', "dataset 'chain' is not known (did you mean 'chains'?)"),
    "seedless": ('bleu_min("counter", "chains", 20, temperature=0.7)', "temperature: sampling needs a seed"),
    "seed": ('bleu_min("counter", "chains", 20, seed=3)', "seed: only sampling needs one"),
    "beams": ('bleu_min("counter", "chains", 20, num_beams=2, seed=3, top_k=2)', "beam search does not sample"),
    "stop": ('bleu_min("counter", "chains", 20, stop=[""])', "stop: expected strings that are not empty"),
    "truncate": ('bleu_min("counter", "chains", 20, truncate="right")', "truncate: expected 'left' or nothing"),
    "direction": ('bleu_max("counter", "chains", 20)', "'bleu_max' not found in `markers` configuration option"),
    "texts": ('bleu_min(20, predictions=["a"], references=[["a"]])', "predictions: unknown argument"),
}


def test_every_wrong_argument_is_named_at_collection(project: Project) -> None:
    right = WRONG_MARKS.copy()
    unknown, sentence = right.pop("direction")
    tests = [f"@pytest.mark.{mark}\ndef test_{name}(): pass" for name, (mark, _) in right.items()]
    outcome = project.write(test_wrong="\n\n".join(["import pytest", *tests])).run().expect(4)
    for name, (_, said) in right.items():
        line = next((line for line in outcome.err.splitlines() if f"test_wrong.py::test_{name}: @pytest" in line), "")
        assert said in line, f"{name}: expected {said!r} in {line!r}\n{outcome.text}"
    outcome.is_silent_on("Traceback", "INTERNALERROR")
    assert not project.cache.exists()
    # A marker that does not exist is pytest's to refuse, as it does where markers are strict.
    project.write(test_wrong=f"import pytest\n\n@pytest.mark.{unknown}\ndef test_direction(): pass\n")
    project.run("--strict-markers").says(sentence)


def _damage(weights: Path) -> None:
    from safetensors.numpy import load_file, save_file

    tensors = load_file(weights)
    tensors["lm_head.weight"] = tensors["lm_head.weight"] * float("nan")
    save_file(tensors, weights, metadata={"format": "pt"})
