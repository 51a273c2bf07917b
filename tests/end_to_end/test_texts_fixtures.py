"""Fixtures ``bleu_of`` and its kin: texts in place of a model, systems that are only a function, rows in memory."""

from pathlib import Path

import pytest

from tests.end_to_end.projects import Project, marked
from tests.end_to_end.writers import write_rows, writing_project

HEAVY = ("torch", "transformers", "datasets", "tokenizers", "pyarrow", "scipy.optimize")


@pytest.fixture
def project(tmp_path: Path, tmp_path_factory: pytest.TempPathFactory) -> Project:
    made = writing_project(tmp_path, tmp_path_factory.getbasetemp(), with_models=False)
    return Project(made.folder, "pytest")


def test_texts_are_scored_without_a_model_and_without_importing_what_runs_one(project: Project) -> None:
    project.write(
        test_texts=f"""
            import sys
            import pytest

            ENGLISH = {{"predictions": ["the the the the the the the"], "references": [["the cat is on the mat"]]}}

            def test_papineni(bleu_of):
                # Papineni et al. 2002: 2/7 by clipping, at no brevity penalty.
                score = bleu_of(**ENGLISH, max_ngram_order=1)
                assert score == pytest.approx(100 * 2 / 7)
                assert score.details["precisions"] == pytest.approx([100 * 2 / 7]) and score.details["bp"] == 1
                assert score.signature.startswith("BLEU|nrefs:1|case:mixed|eff:no|tok:13a|smooth:exp|version:")
                assert score.interval is None, "one row says nothing of noise"

            def test_nothing_heavy_came():
                assert not [name for name in {HEAVY!r} if name in sys.modules]
        """
    )
    project.run("-p", "no:xdist", "-W", "error").expect(0, passed=2)
    assert not project.cache.exists()


def test_a_system_that_is_only_a_function_is_gated_by_a_fixture(project: Project) -> None:
    korean, chinese = {"q": "오늘 날씨?", "a": ["오늘은 맑다", "맑음"]}, {"q": "今天天气?", "a": ["今天天气很好"]}
    write_rows(project, "news", [korean, chinese, {"q": "today?", "a": "fine"}])
    project.add("datasets", news="path: news.jsonl, source: q, references: a").write(
        conftest="""
            import pathlib
            import pytest

            ANSWERS = {"오늘 날씨?": "맑음", "今天天气?": "今天天气很好", "today?": "rain"}

            def answer(prompts):
                with pathlib.Path(__file__).with_name("calls.txt").open("a") as file:
                    file.write(f"{len(prompts)} ")
                return [ANSWERS[prompt] for prompt in prompts]

            @pytest.fixture
            def system(): return answer

            @pytest.fixture
            def rows():
                today = {"source": "today?", "references": ["rain"], "other": 3}
                return [today, {"source": "오늘 날씨?", "references": "맑음"}]
        """,
        test_system="""
            import pytest
            import pytest_lmgate as lmgate

            @pytest.mark.exact_min(lmgate.fixture("system"), "news", 0.66)
            @pytest.mark.bleu_min(lmgate.fixture("system"), "news", 1, tokenize="char", max_ngram_order=1)
            @pytest.mark.rouge_min(lmgate.fixture("system"), "news", 0.66, "rouge1")
            def test_passes(): pass

            @pytest.mark.exact_min(lmgate.fixture("system"), "news", 0.67)
            def test_fails(): pass

            @pytest.mark.exact_min(lmgate.fixture("system"), lmgate.fixture("rows"), 1)
            def test_rows(): pass

            def test_fixture(exact_of, system, rows):
                assert exact_of(system, iter(rows)) == 1
                assert exact_of(lambda prompts: iter(["fine"] * len(prompts)), "news") == pytest.approx(1 / 3)
        """,
    )
    outcome = project.run("--lmgate-report", "json:report.json", "--lmgate-explain-cache").expect(1, passed=3, failed=1)
    outcome.says("    2         0  today?\n                 fine\n                 rain\n")
    outcome.says("cache test_system.py::test_fails::exact_min[system-news]: not looked up: ")
    calls = (project.folder / "calls.txt").read_text()
    assert calls.split() == ["3", "3", "2", "2"], "the three gates of one test judge the same texts"
    for gate in project.report()["gates"]:
        assert (gate["model"], gate["fingerprint"], gate["cached"]) == ("system", "", False)
        assert "|function|" in gate["signature"]
        assert "max_new_tokens" not in gate["signature"]
    assert not list(project.cache.glob("texts/*")), "nothing is kept of a function"


BAD_FUNCTIONS = {
    "fewer": ("lambda prompts: prompts[:-1]", "9 prompts, got 8"),
    "none": ("lambda prompts: None", "got NoneType"),
    "null": ("lambda prompts: prompts[:3] + [None] + prompts[4:]", "row 3: "),
    "number": ("3", "got int"),
    "crashing": ("lambda prompts: 1 / 0", "ZeroDivisionError: division by zero"),
    "echo": ("lambda prompts: prompts", "max_new_tokens:7"),
}


def test_a_function_that_does_not_answer_each_prompt_with_a_text_is_an_error(project: Project) -> None:
    fixtures = "".join(f"@pytest.fixture\ndef {name}(): return {each}\n" for name, (each, _) in BAD_FUNCTIONS.items())
    gates = {name: f"exact_min(lmgate.fixture({name!r}), 'chains', 0.1)" for name in BAD_FUNCTIONS}
    gates["echo"] = gates["echo"].replace("0.1", "0.1, max_new_tokens=7")
    test = f"import pytest_lmgate as lmgate\n{marked(**gates)}"
    project.write(conftest=f"import pytest\n\n{fixtures}", test_bad=test)
    outcome = project.run().expect(1, error=len(BAD_FUNCTIONS))
    sections = dict(part.split(" ", 1) for part in outcome.out.split("ERROR at setup of test_")[1:])
    for name, (_, sentence) in BAD_FUNCTIONS.items():
        assert sentence in sections[name], f"{name}: expected {sentence!r} in\n{sections[name]}"
        # Of the user's own error the line is shown, of all others a sentence.
        assert ("conftest.py:" in sections[name]) == (name == "crashing")
