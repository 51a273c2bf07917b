"""Pseudo-perplexity of a masked model, and the refusal to take one kind of model for another."""

import pytest

from tests.end_to_end.projects import COUNT_MEASUREMENTS, Project, marked
from tests.end_to_end.writers import MASKED_WORDS, write_rows


@pytest.fixture
def project(writing: Project) -> Project:
    write_rows(writing, "sentences", [{"text": "w1 w2 w3"}, {"text": " "}, {"text": "w4 w5 w6 w7 nobody"}])
    return writing.add("datasets", sentences="path: sentences.jsonl").write(conftest=COUNT_MEASUREMENTS)


def test_a_model_to_which_all_words_are_equally_likely_has_the_size_of_its_vocabulary(project: Project) -> None:
    project.write(
        test_masked=f"""
            import pytest

            @pytest.mark.pppl_max("masked", "sentences", {MASKED_WORDS} + 1e-3)
            def test_within(): pass

            @pytest.mark.pppl_max("masked", "sentences", {MASKED_WORDS} - 1e-3)
            def test_above(): pass

            def test_score(pppl_of):
                score = pppl_of("masked", "sentences")
                assert score.cached and score == pytest.approx({MASKED_WORDS}, rel=1e-6)
                assert (score.metric, score.n, score.unit) == ("pppl", 8, "token"), "no special token is counted"
                assert score.signature.startswith("masked|max_length:160|unit:token|")
                pieces = pppl_of("masked", ["w1 w2 w3 w4 w5"], max_length=4)
                assert pieces == pytest.approx({MASKED_WORDS}, rel=1e-6) and pieces.n == 5
        """
    )
    outcome = project.run("--lmgate-report", "json:report.json", "-W", "error").expect(1, passed=2, failed=1)
    outcome.says("of 'masked' on 'sentences' is above the limit 39.999")
    within, above = project.report()["gates"]
    assert (within["verdict"], above["verdict"]) == ("pass", "fail")
    assert within["value"] == above["value"] == pytest.approx(MASKED_WORDS, rel=1e-6)
    assert project.measured == ["masked", "masked"]
    project.run(torch_free=True).expect(1, passed=2, failed=1)
    assert len(project.measured) == 2, "nothing changed, nothing runs"


def test_one_kind_of_perplexity_is_never_taken_for_another(project: Project) -> None:
    gates = {
        "masked": 'ppl_max("masked", "sentences", 100)',
        "causal": 'pppl_max("counter", "sentences", 100)',
        "encoder_decoder": 'pppl_max("translator", "sentences", 100)',
    }
    project.write(test_kinds=marked(**gates))
    outcome = project.run("-W", "error").expect(1, error=3).is_silent_on("Traceback", "/pytest_lmgate/")
    outcome.says("masked model 'masked'", "causal model 'counter'", "encoder-decoder model 'translator'")
