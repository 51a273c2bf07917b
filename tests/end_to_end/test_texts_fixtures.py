"""Fixtures ``bleu_of`` and its kin: texts in place of a model, systems that are only a function, rows in memory."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.end_to_end.projects import Project
from tests.end_to_end.writers import write_rows, writing_project

HEAVY = ("torch", "transformers", "datasets", "tokenizers", "pyarrow", "scipy.optimize")


@pytest.fixture
def project(tmp_path: Path, tmp_path_factory: pytest.TempPathFactory) -> Project:
    return writing_project(tmp_path, tmp_path_factory.getbasetemp(), with_models=False)


def test_texts_are_scored_without_a_model_and_without_importing_what_runs_one(project: Project) -> None:
    project.write(
        test_texts=f"""
            import sys
            import pytest

            ENGLISH = {{"predictions": ["the the the the the the the"], "references": [["the cat is on the mat"]]}}
            PAIR = {{"predictions": ["류현진이 공을 던졌다."], "references": [["던졌다 공을, 류현진이."]]}}

            def test_papineni(bleu_of):
                # Papineni et al. 2002: 2/7 by clipping, at no brevity penalty.
                score = bleu_of(**ENGLISH, max_ngram_order=1)
                assert score == pytest.approx(100 * 2 / 7)
                assert score.details["precisions"] == pytest.approx([100 * 2 / 7]) and score.details["bp"] == 1
                assert score.signature.startswith("BLEU|nrefs:1|case:mixed|eff:no|tok:13a|smooth:exp|version:")
                assert (score.n, score.unit, score.model, score.dataset, score.cached) == (1, "row", "", "", False)
                assert score.interval is None, "one row says nothing of noise"

            def test_identical_texts_of_any_script_are_perfect(bleu_of, chrf_of, ter_of, rouge_of, exact_of):
                texts = ["오늘 날씨가 아주 좋습니다.", "今天天气很好我们去公园", "the weather is fine today"]
                same = {{"predictions": texts, "references": [[text] for text in texts]}}
                assert bleu_of(**same, tokenize="char") == pytest.approx(100) and chrf_of(**same) == pytest.approx(100)
                assert ter_of(**same) == 0 and exact_of(**same) == 1
                for variant in ("rouge1", "rouge2", "rougeL", "rougeLsum", "rougeW", "rougeS", "rougeSU4"):
                    assert rouge_of(**same, variant=variant) == pytest.approx(1), variant

            def test_order_of_words(rouge_of):
                assert rouge_of(**PAIR, variant="rougeS") == 0
                score = rouge_of(**PAIR, variant="rougeSU")
                assert score == pytest.approx(0.5), "3 unigrams of 3 and 3 skip-bigrams"
                assert (score.details["f"], score.details["precision"], score.details["recall"]) == (0.5, 0.5, 0.5)

            def test_several_references_of_differing_counts(rouge_of, exact_of):
                texts = {{"predictions": ["a b", "c"], "references": [["x", "a b", None], ("c d",)]}}
                assert exact_of(**texts) == 0.5
                assert rouge_of(**texts, variant="rouge1") == pytest.approx((1 + 2 / 3) / 2)
                assert "|nrefs:var|" in exact_of(**texts).signature

            def test_a_function_from_text_to_tokens(rouge_of):
                texts = {{"predictions": ["a-b"], "references": [["b-a"]], "variant": "rouge1"}}
                score = rouge_of(**texts, tokenizer=lambda text: text.split())
                assert (score, rouge_of(**texts)) == (0, 1) and "|tokenizer:test_texts." in score.signature

            def test_iterators(bleu_of, rouge_of):
                for measure in (bleu_of, rouge_of):
                    texts = ["one two three four five", "six seven eight nine"]
                    streams = [texts, ["x"] * 2]
                    assert measure(predictions=iter(texts), references=zip(*streams)) == pytest.approx(measure(
                        predictions=texts, references=[list(row) for row in zip(*streams)]))

            def test_empty_predictions(bleu_of, chrf_of, ter_of, rouge_of, exact_of):
                texts = {{"predictions": ["", " "], "references": [["a b"], ["c"]]}}
                assert [float(metric(**texts)) for metric in (bleu_of, chrf_of, rouge_of, exact_of)] == [0, 0, 0, 0]
                assert ter_of(**texts) == 100

            def test_worst_rows(rouge_of):
                score = rouge_of(predictions=["a b", "x", "a"], references=[["a b"]] * 3)
                assert [row.row for row in score.details["worst"]] == [1, 2, 0]

            def test_nothing_heavy_came():
                assert not [name for name in {HEAVY!r} if name in sys.modules]
        """
    )
    project.run("-p", "no:xdist", "-W", "error", fresh=True).expect(0, passed=9)
    assert not project.cache.exists()
    assert {path.name for path in project.folder.iterdir()} >= {"test_texts.py", "chains.jsonl"}


def test_a_failed_assertion_shows_the_score_and_a_wrong_text_is_one_sentence(project: Project) -> None:
    project.write(
        test_texts="""
            import pytest

            TEXTS = {"predictions": ["오늘 비", "b"], "references": [["오늘 눈"], ["b"]]}
            RIGHT = {"predictions": ["a", "b"], "references": [["a"], ["b", "c"]]}
            WRONG = {
                "none": ({"references": None}, "expected references, got None"),
                "counts": ({"references": [["a"], ["b"], ["c"]]}, "got 3 rows of references and 2 predictions"),
                "empty": ({"predictions": [], "references": []}, "expected at least one prediction, got none"),
                "row": ({"references": [["a"], []]}, "row 1: expected at least one reference, got none"),
                "flat": ({"references": ["a", "b"]}, "row 0: expected a list of references, got str 'a'"),
                "streams": ({"references": [["a", "b"]]}, "got 1 lists of 2, one per stream as sacrebleu takes them"),
                "null": ({"predictions": ["a", None]}, "row 1: expected the prediction to be a string, got NoneType"),
                "text": ({"predictions": "ab"}, "expected predictions to be a list of strings, one per row, got str"),
                "both": ({"model": "counter"}, "predictions: give texts, or a model and a dataset, not both"),
                "settings": ({"max_new_tokens": 9}, "max_new_tokens: for a model that generates"),
                "option": ({"tokenise": "zh"}, "(did you mean 'tokenize'?)"),
                "tokenizer": ({"tokenize": "inlt"}, "(did you mean 'intl'?)"),
            }

            @pytest.mark.parametrize("case", WRONG)
            def test_wrong(bleu_of, case):
                change, sentence = WRONG[case]
                with pytest.raises(Exception) as raised:
                    bleu_of(**{**RIGHT, **change})
                assert sentence in str(raised.value)
                assert type(raised.value).__module__ == "pytest_lmgate.errors"

            def test_unheard(bleu_of):
                with pytest.raises(Exception, match="references: only for predictions"):
                    bleu_of("counter", "chains", references=[["a"]])

            def test_of_the_user(rouge_of):
                assert rouge_of(**TEXTS) > 0.9

            def test_alone(exact_of):
                exact_of(predictions=["a"])
        """
    )
    outcome = project.run("-n", "2").expect(1, passed=13, failed=2)
    outcome.says(
        "assert rougeL 0.75 [", "(2 rows, rougeL|nrefs:1|", "> 0.9", "= rouge_of(", "expected references, got None"
    )
    outcome.is_silent_on("/pytest_lmgate/", "INTERNALERROR")
    project.run("--no-lmgate").expect(0, skipped=15)


def test_a_system_that_is_only_a_function_is_gated_by_a_fixture(project: Project) -> None:
    write_rows(
        project,
        "news",
        [
            {"q": "오늘 날씨?", "a": ["오늘은 맑다", "맑음"]},
            {"q": "今天天气?", "a": ["今天天气很好"]},
            {"q": "today?", "a": "fine"},
        ],
    )
    yaml = (project.folder / "lmgate.yaml").read_text()
    project.write(
        lmgate_yaml=yaml + "  news: {path: news.jsonl, source: q, references: a}\n",
        conftest="""
            import pathlib
            import pytest

            ANSWERS = {"오늘 날씨?": "맑음", "今天天气?": "今天天气很好", "today?": "rain"}

            class System:
                def __init__(self, request):
                    self.answer = getattr(request, "param", None)

                def __call__(self, prompts):
                    with pathlib.Path(__file__).with_name("calls.txt").open("a") as file:
                        file.write(f"{len(prompts)} ")
                    return [ANSWERS[prompt] for prompt in prompts]

            @pytest.fixture
            def system(request):
                return System(request)

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
                assert exact_of(system, rows) == 1
                assert exact_of(system, iter(rows)) == 1
                assert exact_of(lambda prompts: iter(["fine"] * len(prompts)), "news") == pytest.approx(1 / 3)
        """,
    )
    outcome = project.run("--lmgate-report", "json:report.json", "--lmgate-explain-cache").expect(1, passed=3, failed=1)
    outcome.says(
        "exact match 0.666667",
        "measured   now, in",
        "nothing is kept of a function",
        "    2         0  today?\n                 fine\n                 rain\n",
        "    0         1  오늘 날씨?\n                 오늘은 맑다 | 맑음\n                 맑음\n",
        "cache test_system.py::test_fails::exact_min[system-news]: not looked up: a function has no content to hash",
    )
    calls = (project.folder / "calls.txt").read_text()
    assert calls.split() == ["3", "3", "2", "2", "2"], "the three gates of one test judge the same texts"
    for gate in project.report()["gates"]:
        assert (gate["model"], gate["fingerprint"], gate["cached"]) == ("system", "", False)
        assert "|function|" in gate["signature"]
        assert "max_new_tokens" not in gate["signature"]
    project.run("-n", "2").expect(1, passed=3, failed=1)
    assert len((project.folder / "calls.txt").read_text().split()) == 10, "a function is asked again in every run"
    assert not list(project.cache.glob("texts/*")), "nothing is kept of a function"


BAD_FUNCTIONS = {
    "fewer": ("lambda prompts: prompts[:-1]", "expected a text for each of 9 prompts, got 8"),
    "more": ("lambda prompts: prompts + ['']", "expected a text for each of 9 prompts, got 10"),
    "none": ("lambda prompts: None", "expected a list of texts, one per prompt, got NoneType"),
    "one_text": ("lambda prompts: 'a' * len(prompts)", "expected a list of texts, one per prompt, got str"),
    "mapping": ("lambda prompts: dict.fromkeys(prompts, '')", "expected a list of texts, one per prompt, got dict"),
    "unordered": ("lambda prompts: set(prompts)", "expected a list of texts, one per prompt, got set"),
    "null": ("lambda prompts: prompts[:3] + [None] + prompts[4:]", "row 3: expected a text, got NoneType None"),
    "bytes": ("lambda prompts: [b'a'] * len(prompts)", "row 0: expected a text, got bytes b'a'"),
    "number": (
        "3",
        "expected a name of lmgate.yaml, a path, a hub id, a (model, tokenizer) pair or a pipeline, got int",
    ),
}


def test_a_function_that_does_not_answer_each_prompt_with_a_text_is_an_error(project: Project) -> None:
    fixtures = "\n\n".join(
        f"@pytest.fixture\ndef {name}(): return {function}" for name, (function, _) in BAD_FUNCTIONS.items()
    )
    gates = "\n\n".join(
        f"@pytest.mark.exact_min(lmgate.fixture({name!r}), 'chains', 0.1)\ndef test_{name}(): pass"
        for name in BAD_FUNCTIONS
    )
    project.write(
        conftest=f"import pytest\n\n{fixtures}\n",
        test_bad=f"import pytest\nimport pytest_lmgate as lmgate\n\n{gates}\n",
        test_worse="""
            import pytest
            import pytest_lmgate as lmgate

            @pytest.fixture
            def crashing():
                def answer(prompts):
                    raise ConnectionError("the service is down")
                return answer

            @pytest.fixture
            def echo():
                return lambda prompts: prompts

            @pytest.mark.exact_min(lmgate.fixture("crashing"), "chains", 0.1)
            def test_crashing(): pass

            @pytest.mark.exact_min(lmgate.fixture("echo"), "chains", 0.1, max_new_tokens=7)
            def test_settings(): pass
        """,
    )
    for options in ((), ("-n", "2")):
        outcome = project.run(*options, "--lmgate-report", "json:report.json").expect(1, error=len(BAD_FUNCTIONS) + 2)
        assert {gate["verdict"] for gate in project.report()["gates"]} == {"error"}
        outcome.is_silent_on("INTERNALERROR")
        sections = dict(part.split(" ", 1) for part in outcome.out.split("ERROR at setup of test_")[1:])
        for name, (_, sentence) in BAD_FUNCTIONS.items():
            assert sentence in sections[name], f"{name}: expected {sentence!r} in\n{sections[name]}"
            assert "Traceback" not in sections[name]
            assert ".py:" not in sections[name]
        assert "ConnectionError: the service is down" in sections["crashing"]
        assert 'raise ConnectionError("the service is down")' in sections["crashing"], "the user's own line"
        assert "max_new_tokens:7" in sections["settings"]
