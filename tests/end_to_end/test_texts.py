"""Gates on what a model writes: values that another program agrees with, one generation for all, what a failure shows.

The models and what they write are those of `writers`.
"""

from __future__ import annotations

import re
import unicodedata
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
import sacrebleu
from rouge_score.rouge_scorer import RougeScorer

import pytest_lmgate
from tests.end_to_end.projects import COUNT_MEASUREMENTS, Project
from tests.end_to_end.writers import ROWS, write_rows, writing_project, written

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
    "bleu": 'bleu_min("counter", "several", {limit})',
    "bleu_options": 'bleu_min("counter", "several", {limit}, tokenize="zh", max_ngram_order=2, smooth_method="floor")',
    "chrf": 'chrf_min("counter", "several", {limit})',
    "chrf_options": 'chrf_min("counter", "several", {limit}, word_order=2, beta=3)',
    "ter": 'ter_max("counter", "several", {limit})',
    "ter_options": 'ter_max("counter", "several", {limit}, normalized=True, asian_support=True)',
    "rouge": 'rouge_min("counter", "several", {limit})',
    "rouge_variant": 'rouge_min("counter", "several", {limit}, "rouge1")',
    "rouge_stems": 'rouge_min("counter", "several", {limit}, stemmer=True, tokenizer="rouge-score", variant="rouge2")',
    "rouge_average": 'rouge_min("counter", "several", {limit}, "rouge1", multi_reference="average")',
    "rouge_program": 'rouge_min("counter", "several", {limit}, "rouge1", convention="rouge-1.5.5")',
    "exact": 'exact_min("counter", "several", {limit}, ignore_case=True, ignore_punctuation=True)',
}


@pytest.fixture
def project(tmp_path: Path, tmp_path_factory: pytest.TempPathFactory) -> Project:
    made = writing_project(tmp_path, tmp_path_factory.getbasetemp())
    text = (made.folder / "lmgate.yaml").read_text()
    made.write(
        lmgate_yaml=text
        + '  several: {path: several.jsonl, prompt: "{start}", references: [texts, more]}\n'
        + "  grouped: {path: chains.jsonl, source: start, references: rest, cluster: group}\n",
        conftest=COUNT_MEASUREMENTS,
    )
    write_rows(made, "several", SEVERAL)
    return made


def test_every_marker_judges_by_the_value_that_another_program_gives(project: Project) -> None:
    values = _values()
    project.write(
        test_pass=_gates({name: (_worse(name, value)) for name, value in values.items()}),
        test_fail=_gates({name: (_better(name, value)) for name, value in values.items()}),
    )
    outcome = project.run("--lmgate-report", "json:report.json", "-W", "error")
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

    again = project.run("-n", "2", "--lmgate-report", "json:again.json", "--lmgate-explain-cache")
    again.expect(1, passed=len(values), failed=len(values))
    assert project.measured == ["counter"], "nothing changed, nothing runs"
    assert again.out.count(": hit\n") == 2 * len(values)
    timeless = [
        [{**gate, "seconds": 0, "cached": True} for gate in project.report(name)["gates"]]
        for name in ("report.json", "again.json")
    ]
    assert timeless[0] == timeless[1]


def test_gates_of_different_tests_and_workers_share_one_generation(project: Project) -> None:
    project.write(
        test_gates="""
            import pytest

            @pytest.mark.bleu_min("counter", "chains", 100)
            def test_bleu(): pass

            @pytest.mark.rouge_min("counter", "chains", 1)
            def test_rouge(): pass

            @pytest.mark.chrf_min("counter", "grouped", 100)
            @pytest.mark.ter_max("counter", "grouped", 0)
            def test_chrf_and_ter(): pass

            def test_fixture(exact_of):
                score = exact_of("counter", "grouped")
                assert score == 1 and score.details["clusters"] == 3
        """
    )
    outcome = project.run("-n", "2", "--lmgate-report", "json:report.json").expect(0, passed=4)
    outcome.says("bleu_min[counter-chains]", "rouge_min[counter-chains]", "ter_max[counter-grouped]")
    assert project.measured == ["counter"]
    assert len({gate["fingerprint"] for gate in project.report()["gates"]}) == 1


UNRULY = {
    "很" * 400: "很" * 30 + "...",
    "a\x1b[31mred\x1b[0m\x07\n\tline": r"a\x1b[31mred\x1b[0m\x07\n\tline",
    "half \ud800 pair, \u202eright to left": r"half \ud800 pair, \u202eright to left",
    "류현진이 " * 60: "류현진이 류현진이 류현진이 류현진이 류현진이 류현진이...",
    "": "(empty)",
}


@pytest.mark.parametrize(
    ("columns", "options"), [(80, ()), (80, ("-n", "2")), (200, ("-n", "2")), (200, ("-W", "error"))]
)
def test_a_failure_shows_the_five_worst_rows_cut_to_the_terminal(
    project: Project, columns: int, options: tuple[str, ...]
) -> None:
    rows = [{"source": "", "references": ["first reference " * 20, "第二"]} for _ in UNRULY]
    project.write(
        conftest=f"""
            import pytest

            TEXTS = {list(UNRULY)!r}

            @pytest.fixture
            def rows():
                return {rows!r} + [{{"source": "", "references": ["as good as it gets"]}}] * 2

            @pytest.fixture
            def system():
                return lambda prompts: TEXTS + ["as good as it gets"] * 2
        """,
        test_gate="""
            import pytest
            import pytest_lmgate as lmgate

            @pytest.mark.chrf_min(lmgate.fixture("system"), lmgate.fixture("rows"), 90)
            def test_gate(): pass
        """,
    )
    outcome = project.run(*options, "--junitxml", "junit.xml", env={"COLUMNS": str(columns)}).expect(1, failed=1)
    lines = outcome.out.splitlines()
    begin = next(at for at, line in enumerate(lines) if line.startswith("  worst rows"))
    shown = lines[begin + 1 : begin + 11]
    assert lines[begin + 11].startswith("  reproduce"), "the five worst rows, and no more"
    assert sorted(int(line.split()[0]) for line in shown[::2]) == list(range(5))
    texts = {int(above.split()[0]): below.strip() for above, below in zip(shown[::2], shown[1::2], strict=True)}
    for row, (text, cut) in enumerate(UNRULY.items()):
        if columns == 80:
            assert texts[row] == cut
        assert texts[row].endswith("...") == (len(text) > 200)
    widths = [sum(1 + (unicodedata.east_asian_width(c) in "WF") for c in line) for line in shown]
    assert columns - 14 < max(widths) <= columns
    assert all(" first reference first" in line and line.endswith("...") for line in shown[::2])
    ElementTree.parse(project.folder / "junit.xml")


def test_what_is_generated_goes_by_prompts_and_settings_and_nothing_else(project: Project) -> None:
    counter = _model_folder(project, "counter")
    for name, template in {
        "chat": "{% for m in messages %}{{ m.content }} {% endfor %}",
        "terse": "{{ messages[-1].content }}",
    }.items():
        (project.model(name, counter) / "chat_template.jinja").write_text(template)
    project.model("changing", counter)
    write_rows(project, "shots", [{"start": "five", "rest": "six seven", "more": ""}])
    write_rows(project, "moved", [{"begin": row["start"], "end": "another"} for row in ROWS])
    yaml = (project.folder / "lmgate.yaml").read_text()
    same = {
        "moved": "{path: moved.jsonl, source: begin, references: end}",
        "grouped": "",
    }
    other = {
        "template": '{path: chains.jsonl, prompt: "one {start}", references: rest}',
        "shown": '{path: chains.jsonl, prompt: "{start} ", references: rest, examples: shots.jsonl}',
        "system": '{path: chains.jsonl, prompt: "{start}", references: rest, system: "today"}',
        "fewer": '{path: chains.jsonl, prompt: "{start}", references: rest, limit: 8}',
        "chatted": '{path: chains.jsonl, prompt: "{start}", references: rest, chat: true, system: "one"}',
    }
    entries = "".join(f"  {name}: {entry}\n" for name, entry in (same | other).items() if entry)
    models = "".join(f"  {name}: {{path: {name}}}\n" for name in ("chat", "terse", "changing"))
    project.write(
        lmgate_yaml=yaml.replace("models:\n", "models:\n" + models) + entries,
        test_addresses=f"""
            import shutil

            def texts(score):
                worst = sorted(score.details["worst"], key=lambda row: row.row)
                return [row.prediction for row in worst]

            def test_addresses(exact_of, bleu_of, rouge_of):
                first = exact_of("counter", "chains")
                assert first == 1 and not first.cached
                for score in (
                    *(exact_of("counter", name) for name in {list(same)!r}),
                    bleu_of("counter", "chains", max_ngram_order=1), rouge_of("counter", "moved", "rouge2"),
                    exact_of("counter", "chains", max_new_tokens=128, num_beams=1, stop=[]),
                ):
                    assert score.fingerprint == first.fingerprint and score.cached
                assert exact_of("counter", "moved") == 0, "references are not of the generation"

                addresses = [first.fingerprint]
                def fresh(dataset, model="counter", **settings):
                    score = exact_of(model, dataset, **settings)
                    assert not score.cached and score.fingerprint not in addresses, (dataset, settings)
                    addresses.append(score.fingerprint)
                    again = exact_of(model, dataset, **settings)
                    assert again.cached and again.fingerprint == score.fingerprint and again == score
                    assert texts(again) == texts(score)
                    return score

                for dataset in ("template", "shown"):
                    assert fresh(dataset) == 1
                assert fresh("system") == 1 and fresh("fewer").n == 8
                assert fresh("chatted", "chat") == 1
                assert fresh("chatted", "terse") == 1
                assert texts(fresh("chains", max_new_tokens=3))[:2] == ["two three four", "three four five"]
                stopped = texts(fresh("chains", stop=["five", "힘껏"]))
                assert stopped[:4] == ["two three four ", "three four ", "four ", "공을 "]
                assert fresh("chains", num_beams=3) == 1
                assert fresh("chains", truncate="left") == 1
                assert fresh("chains", seed=1, temperature=0.5) == 1
                assert fresh("chains", seed=2, temperature=0.5) == 1
                assert fresh("chains", seed=2, top_k=2) == 1
                assert texts(fresh("chains", "translator")) == ["one two three four five six seven"] * 5

                copied = exact_of("changing", "chains")
                assert copied.cached and copied.fingerprint == first.fingerprint, "a path is not content"
                shutil.copy({str(_model_folder(project, "backward") / "model.safetensors")!r}, "changing")
                assert fresh("chains", "changing") == 0
        """,
    )
    project.run().expect(0, passed=1)


def test_a_prompt_is_the_template_the_examples_and_the_system_text_and_nothing_more(project: Project) -> None:
    write_rows(
        project,
        "asked",
        [{"q": " {x} 몇 시? ", "n": 3, "f": 0.5, "a": ["refs"]}, {"q": "", "n": -1, "f": 1e-9, "a": "refs"}],
    )
    write_rows(
        project, "shots", [{"q": "Q1", "n": 1, "f": 1.5, "a": ["A1", "B1"]}, {"q": "Q2", "n": 2, "f": 2.5, "a": "A2"}]
    )
    entries = {
        "plain": 'prompt: "{{ {q} }} n={n} f={f}"',
        "source": "source: q",
        "shots": 'prompt: "{q}: ", examples: shots.jsonl, system: Say.',
        "chat": 'prompt: "{q}", examples: shots.jsonl, system: Say., chat: true',
        "one": 'prompt: "{q}", limit: 1',
    }
    yaml = (project.folder / "lmgate.yaml").read_text()
    project.write(
        lmgate_yaml=yaml
        + "".join(f"  {name}: {{path: asked.jsonl, references: a, {entry}}}\n" for name, entry in entries.items()),
        test_prompts="""
            def test_prompts(exact_of):
                seen = []
                def system(prompts):
                    seen.extend(prompts)
                    return ["refs"] * len(prompts)

                def prompts(dataset):
                    seen.clear()
                    assert exact_of(system, dataset) == 1
                    return list(seen)

                assert prompts("plain") == ["{  {x} 몇 시?  } n=3 f=0.5", "{  } n=-1 f=1e-09"]
                assert prompts("source") == [" {x} 몇 시? ", ""]
                assert prompts("one") == [" {x} 몇 시? "]
                assert prompts("shots")[1] == "Say.\\n\\nQ1: A1\\n\\nQ2: A2\\n\\n: "
                assert prompts("chat")[0] == [
                    {"role": "system", "content": "Say."},
                    {"role": "user", "content": "Q1"}, {"role": "assistant", "content": "A1"},
                    {"role": "user", "content": "Q2"}, {"role": "assistant", "content": "A2"},
                    {"role": "user", "content": " {x} 몇 시? "},
                ]
        """,
    )
    project.run().expect(0, passed=1)
    assert not project.cache.joinpath("texts").exists(), "nothing is kept of a function"


def _model_folder(project: Project, name: str) -> Path:
    text = (project.folder / "lmgate.yaml").read_text()
    found = re.search(rf"^  {name}: {{path: (\S+)}}", text, re.MULTILINE)
    assert found is not None
    return Path(found[1])


def _values() -> dict[str, float]:
    """The value of each of EVERY_MARKER, by sacrebleu's own functions, by Google's rouge-score, or by hand."""
    width = max(map(len, REFERENCES))
    streams: Any = [[texts[i] if i < len(texts) else None for texts in REFERENCES] for i in range(width)]
    found = {
        "bleu": sacrebleu.corpus_bleu(WRITTEN, streams),
        "bleu_options": sacrebleu.BLEU(tokenize="zh", max_ngram_order=2, smooth_method="floor").corpus_score(
            WRITTEN, streams
        ),
        "chrf": sacrebleu.corpus_chrf(WRITTEN, streams),
        "chrf_options": sacrebleu.CHRF(word_order=2, beta=3).corpus_score(WRITTEN, streams),
        "ter": sacrebleu.corpus_ter(WRITTEN, streams),
        "ter_options": sacrebleu.TER(normalized=True, asian_support=True).corpus_score(WRITTEN, streams),
    }
    return {
        **{name: result.score for name, result in found.items()},
        "rouge": _rouge("rougeL", tokenizer=_Words()),
        "rouge_variant": _rouge("rouge1", tokenizer=_Words()),
        "rouge_stems": _rouge("rouge2", use_stemmer=True),
        # Pooled: 5 + 3 + 2 words of 3 * 6 and 5 + 3 + 3; 4 + 3 of 2 * 4 and 4 + 3; 3 of 3 and 3; 3 + 4 of 2 * 4 and 8.
        "rouge_average": sum(2 * m / (c + r) for m, c, r in ((10, 18, 11), (7, 8, 7), (3, 3, 3), (7, 8, 8))) / 4,
        # F from five digits of 5/6 and 5/5, the first of the references with the best recall; it reads ASCII only.
        "rouge_program": sum((0.90909, 1, 0, 0)) / 4,
        "exact": 0.25,
    }


class _Words:
    """A tokenizer for rouge-score: runs of Latin or Hangul letters, Han characters one by one."""

    def tokenize(self, text: str) -> list[str]:
        return re.findall(r"[a-z]+|[가-힣]+|[一-龥]", text.lower())


def _rouge(variant: str, **options: Any) -> float:
    scorer = RougeScorer([variant], **options)
    best = [
        scorer.score_multi(references, text)[variant].fmeasure
        for text, references in zip(WRITTEN, REFERENCES, strict=True)
    ]
    return sum(best) / len(best)


def _gates(limits: dict[str, float]) -> str:
    tests = [
        f"@pytest.mark.{EVERY_MARKER[name].format(limit=repr(limit))}\ndef test_{name}(): pass"
        for name, limit in limits.items()
    ]
    return "\n\n".join(["import pytest", *tests])


def _worse(name: str, value: float) -> float:
    """A limit that the value keeps to by a hair."""
    return value * (1 + 1e-9) if name.startswith("ter") else value * (1 - 1e-9)


def _better(name: str, value: float) -> float:
    """A limit that the value misses by a hair."""
    return value * (1 - 1e-9) if name.startswith("ter") else value * (1 + 1e-9)
