"""Gates on what a model writes: values that another program agrees with, one generation for all, what a failure shows.

The models and what they write are those of `writers`.
"""

import re
from pathlib import Path
from typing import Any

import pytest
import sacrebleu

import pytest_lmgate
from tests.end_to_end.projects import COUNT_MEASUREMENTS, Project, marked
from tests.end_to_end.writers import ROWS, write_rows, written
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

TORCH_FREE = """
    import sys

    def pytest_sessionfinish():
        heavy = {"torch", "transformers", "tokenizers", "datasets", "peft", "accelerate"} & sys.modules.keys()
        assert not heavy, heavy
"""
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
    project.write(test_first=_gates({"exact": 0.1})).run("-W", "error").expect(0, passed=1)
    assert project.measured == ["counter"]
    (project.folder / "test_first.py").unlink()
    values = _values()
    project.write(
        conftest=COUNT_MEASUREMENTS + TORCH_FREE,
        test_pass=_gates({name: value * _HAIR[name.startswith("ter")] for name, value in values.items()}),
        test_fail=_gates({name: value * _HAIR[not name.startswith("ter")] for name, value in values.items()}),
    )
    outcome = project.run("--lmgate-report", "json:report.json", "-W", "error", "-n", "2", torch_free=True)
    outcome.expect(1, passed=len(values), failed=len(values))
    assert outcome.out.count("FAILED test_fail.py::") == len(values)
    assert project.measured == ["counter"], "all of them are metrics of one generation"
    for gate in project.report()["gates"]:
        name = gate["test"].partition("::test_")[2]
        assert gate["value"] == pytest.approx(values[name], abs=1e-9), name
        assert (gate["n"], gate["unit"], gate["model"], gate["dataset"]) == (4, "row", "counter", "several")
        assert "|nrefs:var|" in gate["signature"]
        assert gate["signature"].endswith(f"|max_new_tokens:128|num_beams:1|lmgate:{pytest_lmgate.__version__}")
        assert gate["interval"][0] <= gate["value"] <= gate["interval"][1]


def test_what_is_generated_goes_by_prompts_and_settings_and_the_models_content(project: Project, writers: Path) -> None:
    project.model("changing", writers / "counter")
    write_rows(project, "moved", [{"begin": row["start"], "end": "another"} for row in ROWS])
    project.add("models", changing="path: changing")
    project.add("datasets", moved="path: moved.jsonl, source: begin, references: end")
    project.write(
        test_addresses=f"""
            import shutil

            def texts(score):
                return [row.prediction for row in sorted(score.details["worst"], key=lambda row: row.row)]

            def test_addresses(exact_of, bleu_of):
                first = exact_of("counter", "chains")
                assert first == 1 and not first.cached
                assert bleu_of("counter", "grouped", max_ngram_order=1).fingerprint == first.fingerprint
                assert exact_of("counter", "moved") == 0, "references are not of the generation"
                assert exact_of("changing", "moved").fingerprint == first.fingerprint, "a path is not content"

                def fresh(dataset, model="counter", **settings):
                    score = exact_of(model, dataset, **settings)
                    assert not score.cached and exact_of(model, dataset, **settings).cached, settings
                    return score

                assert texts(fresh("chains", max_new_tokens=3))[:2] == ["two three four", "three four five"]
                stopped = texts(fresh("chains", stop=["five", "힘껏"]))
                assert stopped[:4] == ["two three four ", "three four ", "four ", "공을 "]
                for settings in ({{"num_beams": 3}}, {{"truncate": "left"}}, {{"seed": 1, "top_k": 2}}):
                    assert fresh("chains", **settings) == 1
                assert texts(fresh("chains", "translator")) == ["one two three four five six seven"] * 5
                shutil.copy({str(writers / "backward" / "model.safetensors")!r}, "changing")
                assert fresh("chains", "changing") == 0
        """
    )
    project.run().expect(0, passed=1)


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
