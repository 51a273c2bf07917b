"""Gates on what a model of `writers` writes: values as another program has them, one generation for all, errors."""

import re
from pathlib import Path
from typing import Any

import pytest
import sacrebleu

import pytest_lmgate
from tests.end_to_end.projects import COUNT_MEASUREMENTS, Project, marked, scale_head
from tests.end_to_end.writers import CONTEXT, ROWS, write_rows, written
from tests.metrics.nltk_alone import RougeScorer

SEVERAL = [
    {"start": "one", "texts": ["two three four six seven", "two four five"], "more": "one two three"},
    {"start": "three", "texts": ["Four five six seven!"], "more": "four five, six"},
    {"start": "류현진이", "texts": ["힘껏 공을 던졌다.", None], "more": None},
    {"start": "今天", "texts": ["天气 不 好"], "more": "天气很好"},
]
REFERENCES = [
    [text for text in [*row["texts"], row["more"]] if text is not None]  # type: ignore[misc]
    for row in SEVERAL
]
WRITTEN = [written("counter", str(row["start"])) for row in SEVERAL]

EVERY_MARKER = {
    "bleu_options": 'bleu_min("counter", "several", {limit}, tokenize="zh", max_ngram_order=2, smooth_method="floor")',
    "chrf": 'chrf_min("counter", "several", {limit})',
    "ter_options": 'ter_max("counter", "several", {limit}, normalized=True, asian_support=True)',
    "rouge": 'rouge_min("counter", "several", {limit})',
    "exact": 'exact_min("counter", "several", {limit}, ignore_case=True, ignore_punctuation=True)',
}


@pytest.fixture
def project(writing: Project) -> Project:
    several = 'path: several.jsonl, prompt: "{start}", references: [texts, more]'
    grouped = "path: chains.jsonl, source: start, references: rest, cluster: group"
    write_rows(writing, "several", SEVERAL)
    return writing.add("datasets", several=several, grouped=grouped).write(conftest=COUNT_MEASUREMENTS)


def test_every_marker_judges_by_the_value_that_another_program_gives(project: Project) -> None:
    write_rows(project, "same", [{"start": "今天", "rest": "one two three four five six seven"}])
    project.add("datasets", same="path: same.jsonl, source: start, references: rest")
    project.write(test_first=_gates({"exact": 0.1}), test_second=marked(encoder="exact_min('translator', 'same', 1)"))
    project.run("-W", "error").expect(0, passed=2)
    (project.folder / "test_second.py").unlink()
    (project.folder / "test_first.py").unlink()
    values = _values()
    project.write(
        test_pass=_gates({name: value * _HAIR[name.startswith("ter")] for name, value in values.items()}),
        test_fail=_gates({name: value * _HAIR[not name.startswith("ter")] for name, value in values.items()}),
    )
    outcome = project.run("--lmgate-report", "json:report.json", "-W", "error", "-n", "2", torch_free=True)
    assert outcome.expect(1, passed=5, failed=5).out.count("FAILED test_fail.py::") == len(values) == 5
    assert project.measured == ["counter", "translator"], "all of them are metrics of one generation"
    for gate in project.report()["gates"]:
        name = gate["test"].partition("::test_")[2]
        assert gate["value"] == pytest.approx(values[name], abs=1e-9), name
        assert (gate["n"], gate["unit"], gate["model"], gate["dataset"]) == (4, "row", "counter", "several")
        assert "|nrefs:var|" in gate["signature"]
        assert gate["signature"].endswith(f"|max_new_tokens:128|num_beams:1|lmgate:{pytest_lmgate.__version__}")
        assert gate["interval"][0] <= gate["value"] <= gate["interval"][1]


_HAIR = (1 - 1e-9, 1 + 1e-9)
"""Of a metric of which more is better: a limit that the value keeps to by a hair, and one that it misses by a hair."""


def _values() -> dict[str, float]:
    """The value of each of EVERY_MARKER, by sacrebleu's own functions, by Google's rouge-score, or by hand."""
    width = max(map(len, REFERENCES))
    streams: Any = [[texts[i] if i < len(texts) else None for texts in REFERENCES] for i in range(width)]
    scorer, rows = RougeScorer(["rougeL"], tokenizer=_Words()), zip(REFERENCES, WRITTEN, strict=True)
    bleu = sacrebleu.BLEU(tokenize="zh", max_ngram_order=2, smooth_method="floor")
    return {
        "bleu_options": bleu.corpus_score(WRITTEN, streams).score,
        "chrf": sacrebleu.corpus_chrf(WRITTEN, streams).score,
        "ter_options": sacrebleu.TER(normalized=True, asian_support=True).corpus_score(WRITTEN, streams).score,
        "rouge": sum(scorer.score_multi(*row)["rougeL"].fmeasure for row in rows) / len(WRITTEN),
        "exact": 0.25,
    }


class _Words:
    """A tokenizer for rouge-score: runs of Latin or Hangul letters, Han characters one by one."""

    def tokenize(self, text: str) -> list[str]:
        return re.findall(r"[a-z]+|[가-힣]+|[一-龥]", text.lower())


def _gates(limits: dict[str, float]) -> str:
    return marked(**{name: EVERY_MARKER[name].format(limit=repr(limit)) for name, limit in limits.items()})


# Of the rows of `chains`, `counter` writes 4 + 3 + ... words; the reference has as many.
METRICS = """
    import pytest_lmgate as lmgate

    def words(predictions, references, rows):
        return [[len(text.split()), len(row["rest"].split())] for text, row in zip(predictions, rows)]

    def absent(predictions, references, rows):
        return [[abs(len(text.split()) - len(texts[0].split())), 1] for text, texts in zip(predictions, references)]

    def pytest_lmgate_metrics(config):
        yield lmgate.TextMetric(name="length_ratio", direction="higher", signature="length_ratio|v:1", statistics=words)
        yield lmgate.TextMetric(
            name="absent", direction="lower", signature="absent|v:1", statistics=absent,
            value=lambda sums: float(sums[0]), details=lambda sums: {"rows": int(sums[1])},
        )
"""


def test_a_users_metric_is_gated_like_any_other_and_shares_the_generation(writing: Project) -> None:
    writing.write(
        conftest=METRICS + COUNT_MEASUREMENTS,
        test_own="""
            import pytest

            @pytest.mark.bleu_min("counter", "chains", 99)
            @pytest.mark.metric_min("length_ratio", "counter", "chains", 1)
            @pytest.mark.metric_max("absent", "counter", "chains", 0)
            def test_whole(): pass

            @pytest.mark.metric_max("absent", "counter", "chains", 5, max_new_tokens=2)
            def test_cut(): pass

            def test_score(metric_of):
                score = metric_of("absent", "counter", "chains", max_new_tokens=2)
                assert score.cached and score.details["rows"] == 9
                assert score.signature.startswith("absent|nrefs:1|v:1|max_new_tokens:2|")
                assert score.interval[0] < score < score.interval[1] and score.details["resamples"] == 1000
                texts = metric_of("absent", predictions=["a b", "c"], references=[["a"], ["c d e"]])
                assert texts == 3 and texts.direction == "lower"
        """,
    )
    outcome = writing.run("-W", "error", "--lmgate-report", "json:report.json").expect(1, passed=2, failed=1)
    # 6, 5, 4 of the numbers; 3, 2, 1 of each other chain; two words each are written.
    outcome.says("metric_max: absent 11 [", "metric_min:length_ratio[counter-chains]", "0         4  one")
    assert writing.measured == ["counter", "counter"]
    values = {gate["metric"]: gate["value"] for gate in writing.report()["gates"] if "whole" in gate["test"]}
    assert values == {"bleu": pytest.approx(100), "length_ratio": 1, "absent": 0}


def test_what_is_asked_wrongly_of_a_users_metric_is_named_at_collection(writing: Project) -> None:
    writing.write(
        conftest=METRICS,
        test_wrong=marked(
            direction='metric_max("length_ratio", "counter", "chains", 1)',
            name='metric_min("lenght_ratio", "counter", "chains", 1)',
            built_in='metric_min("accuracy", "counter", "chains", 1)',
            option='metric_min("length_ratio", "counter", "chains", 1, tokenize="zh")',
        ),
    )
    outcome = writing.run(torch_free=True).expect(4).is_silent_on("Traceback", "INTERNALERROR")
    outcome.says("use metric_min", "'lenght_ratio'", "metric: 'accuracy'", "tokenize: ")


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
    "digits": ("counter", f"path: digits.jsonl, {BOTH}", "ignore_numbers=True", "row 1: nothing is left of the ref"),
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
    assert [gate["verdict"] for gate in project.report()["gates"]] == ["error"] * len(CASES) + ["pass"]
    kept = list(project.cache.glob("texts/*/*.lmgate"))
    assert len(kept) == 2, "of `cut`, and of `digits`, whose texts are sound; what could not be written is not kept"
