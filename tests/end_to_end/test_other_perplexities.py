"""Perplexities of an encoder-decoder and of a masked model: values by hand, what shares them, what they refuse."""

import math

import pytest

from tests.end_to_end.projects import COUNT_MEASUREMENTS, Project, marked
from tests.end_to_end.writers import CHAINS, MASKED_WORDS, OTHERS, write_rows

WORDS = 3 + len(OTHERS) + sum(map(len, CHAINS))


@pytest.fixture
def project(writing: Project) -> Project:
    first = {"said": "今天 天气", "counted": ["one two three four five six seven", "not scored"]}
    write_rows(writing, "counting", [first, {"said": "seven", "counted": "one two three"}])
    writing.add("datasets", counting="path: counting.jsonl, source: said, references: counted")
    return writing.write(conftest=COUNT_MEASUREMENTS)


def by_hand() -> float:
    """The perplexity of `translator` on a chain of numbers from its first.

    Its only working layer adds 10 x sqrt(32) of the next word to the one it has read: 32 dimensions, each word one of
    them, so that a normalized word is sqrt(32) there. Normalized again, and divided by sqrt(32) since T5's head is its
    embedding, the next word's logit is a / sqrt(a^2 + 1), that of the word itself 1 / sqrt(a^2 + 1).
    """
    a = 10 * math.sqrt(32)
    following, itself = math.exp(a / math.hypot(a, 1)), math.exp(1 / math.hypot(a, 1))
    return (following + itself + WORDS - 2) / following


def test_it_is_that_of_the_first_reference_given_the_source(project: Project) -> None:
    value = by_hand()
    assert 7 < value < 9
    project.write(
        test_conditional=f"""
            import math
            import pytest

            @pytest.mark.ppl_max("translator", "counting", {value * (1 + 1e-5)!r})
            def test_within(): pass

            @pytest.mark.ppl_max("translator", "counting", {value * (1 - 1e-5)!r})
            def test_above(): pass

            def test_units(ppl_of, bpb_of):
                score = ppl_of("translator", "counting")
                assert score.cached and (score.metric, score.n, score.unit) == ("ppl", 10, "token")
                assert score.signature.startswith("conditional|target:first reference|unit:token|")
                assert ppl_of("translator", "counting", unit="word") == pytest.approx(score)
                # "one two three four five six seven" has 33 bytes, "one two three" 13.
                bits = bpb_of("translator", "counting")
                assert bits == pytest.approx(10 * math.log2(score) / (33 + 13)) and bits.n == 46

            def test_rows_in_memory(ppl_of):
                rows = [{{"source": "류현진이", "references": ["one two three four"]}}]
                assert ppl_of("translator", rows) == pytest.approx({value!r}, rel=1e-5)
        """
    )
    project.run("-W", "error").expect(1, passed=3, failed=1).says("of 'translator' on 'counting' is above the limit")
    assert project.measured == ["translator", "translator"], "one for each dataset, whatever the limit and the unit"
    project.run(torch_free=True).expect(1, passed=3, failed=1)
    assert len(project.measured) == 2, "nothing changed, nothing runs"


def test_what_has_no_meaning_is_one_clear_error(project: Project) -> None:
    write_rows(project, "plain", [{"text": "one two three"}])
    windows, plain = 'ppl_max("translator", "counting", 100, stride=4)', 'ppl_max("translator", "plain", 100)'
    project.add("datasets", plain="path: plain.jsonl").write(test_wrong=marked(windows=windows, no_reference=plain))
    outcome = project.run("-W", "error").expect(1, error=2).is_silent_on("Traceback", "INTERNALERROR")
    outcome.says("stride: the encoder-decoder model 'translator'", "dataset 'plain': ")


# Pseudo-perplexity of a masked model.


@pytest.fixture
def masked(writing: Project) -> Project:
    write_rows(writing, "sentences", [{"text": "w1 w2 w3"}, {"text": " "}, {"text": "w4 w5 w6 w7 nobody"}])
    return writing.add("datasets", sentences="path: sentences.jsonl").write(conftest=COUNT_MEASUREMENTS)


def test_a_model_to_which_all_words_are_equally_likely_has_the_size_of_its_vocabulary(masked: Project) -> None:
    masked.write(
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
    outcome = masked.run("--lmgate-report", "json:report.json", "-W", "error").expect(1, passed=2, failed=1)
    outcome.says("of 'masked' on 'sentences' is above the limit 39.999")
    within, above = masked.report()["gates"]
    assert (within["verdict"], above["verdict"]) == ("pass", "fail")
    assert within["value"] == above["value"] == pytest.approx(MASKED_WORDS, rel=1e-6)
    assert masked.measured == ["masked", "masked"]
    masked.run(torch_free=True).expect(1, passed=2, failed=1)
    assert len(masked.measured) == 2, "nothing changed, nothing runs"


def test_one_kind_of_perplexity_is_never_taken_for_another(masked: Project) -> None:
    gates = {
        "masked": 'ppl_max("masked", "sentences", 100)',
        "causal": 'pppl_max("counter", "sentences", 100)',
        "encoder_decoder": 'pppl_max("translator", "sentences", 100)',
    }
    masked.write(test_kinds=marked(**gates))
    outcome = masked.run("-W", "error").expect(1, error=3).is_silent_on("Traceback", "/pytest_lmgate/")
    outcome.says("masked model 'masked'", "causal model 'counter'", "encoder-decoder model 'translator'")
