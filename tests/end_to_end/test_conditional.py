"""Conditional perplexity of an encoder-decoder: a value by hand, what shares its measurement, what it refuses."""

import math

import pytest

from tests.end_to_end.projects import COUNT_MEASUREMENTS, Project, marked
from tests.end_to_end.writers import CHAINS, OTHERS, write_rows

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
