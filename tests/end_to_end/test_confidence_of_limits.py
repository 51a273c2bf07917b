"""``ppl_max`` with a confidence, from Python and from lmgate.yaml: the bound is judged, not the value."""

from tests.end_to_end.projects import Project

GATE = """
    import pytest

    @pytest.mark.ppl_max("sure", "words", LIMIT, confidence=0.95)
    def test_gate(): pass
"""


def bounds(project: Project) -> tuple[float, float, float]:
    """Bounds of the perplexity of `sure`, with its value between them."""
    project.write(test_gate=GATE.replace("LIMIT", "1e300")).run("--lmgate-report", "json:report.json").expect(0)
    (gate,) = project.report()["gates"]
    assert gate["bounded"]["clusters"] == 24
    assert gate["bounded"]["clustered_by"] == "blocks"
    return gate["bounded"]["lower"], gate["value"], gate["bounded"]["upper"]


def test_a_perplexity_passes_fails_or_stays_open_by_its_bounds(measured: Project) -> None:
    lower, value, upper = bounds(measured)
    assert lower < value < upper
    cases = {
        upper * 1.001: ("pass", 0, "the value is within the limit with 95% confidence"),
        (value + upper) / 2: ("inconclusive", 0, "the build does not fail"),
        (value + lower) / 2: ("inconclusive", 1, "the build fails"),
        lower * 0.999: ("fail", 1, "the value is beyond the limit with 95% confidence"),
    }
    for limit, (verdict, code, says) in cases.items():
        done = measured.write(test_gate=GATE.replace("LIMIT", repr(limit))).run("--lmgate-report", "json:report.json")
        done.expect(code).says(f"1 gate: 1 {verdict}")
        if verdict != "pass":
            done.says(says, "24 blocks of text, by ").is_silent_on("few rows")
        assert measured.report()["gates"][0]["verdict"] == verdict
        measured.run("--lmgate-strict").expect(0 if verdict == "pass" else 1)


def test_fail_fast_measures_the_whole_text_where_bounds_are_judged(project: Project) -> None:
    project.write(test_gate=GATE.replace("LIMIT", "2"))
    done = project.run("--lmgate-fail-fast").expect(1, failed=1)
    done.says("399 tokens", "with 95% confidence").is_silent_on("at least", "stopped early")
