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
    write_rows(writing, "sentences", [{"text": "w1 w2 w3"}, {"text": " "}, {"text": "w4 w5 w6 w7 nobody"}])
    writing.add("datasets", counting="path: counting.jsonl, source: said, references: counted")
    writing.add("datasets", sentences="path: sentences.jsonl")
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


def test_a_masked_model_to_which_all_words_are_equally_likely_has_the_size_of_its_vocabulary(project: Project) -> None:
    project.write(
        test_masked=f"""
            import pytest

            @pytest.mark.pppl_max("masked", "sentences", {MASKED_WORDS} + 1e-3)
            @pytest.mark.pppl_max("masked", "sentences", {MASKED_WORDS} - 1e-3)
            def test_gates(): pass

            def test_score(pppl_of):
                score = pppl_of("masked", "sentences")
                assert score.cached and score == pytest.approx({MASKED_WORDS}, rel=1e-6)
                assert (score.metric, score.n, score.unit) == ("pppl", 8, "token"), "no special token is counted"
                assert score.signature.startswith("masked|max_length:160|unit:token|")
                pieces = pppl_of("masked", ["w1 w2 w3 w4 w5"], max_length=4)
                assert pieces == pytest.approx({MASKED_WORDS}, rel=1e-6) and pieces.n == 5
        """
    )
    project.run("--lmgate-report", "json:report.json", "-W", "error").expect(1, passed=1, failed=1)
    assert {gate["verdict"] for gate in project.report()["gates"]} == {"pass", "fail"}
    assert project.measured == ["masked", "masked"]


def test_one_kind_of_perplexity_is_never_taken_for_another(project: Project) -> None:
    wrong = {
        "masked": ('ppl_max("masked", "sentences", 100)', "masked model 'masked'"),
        "causal": ('pppl_max("counter", "sentences", 100)', "causal model 'counter'"),
        "encoder_decoder": ('pppl_max("translator", "sentences", 100)', "encoder-decoder model 'translator'"),
        "windows": (
            'ppl_max("translator", "counting", 100, stride=4)',
            "stride: the encoder-decoder model 'translator'",
        ),
        "no_reference": ('ppl_max("translator", "sentences", 100)', "dataset 'sentences': "),
    }
    project.write(test_kinds=marked(**{name: gate for name, (gate, _) in wrong.items()}))
    outcome = project.run("-W", "error").expect(1, error=len(wrong)).is_silent_on("Traceback", "/pytest_lmgate/")
    outcome.says(*(said for _, said in wrong.values()))
