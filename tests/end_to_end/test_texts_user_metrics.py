"""The hook `pytest_lmgate_metrics`: a user's metric is gated, cached, shown and reported like any other."""

import pytest

from tests.end_to_end.projects import COUNT_MEASUREMENTS, Project, marked

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


def conftest(*parts: str) -> str:
    return "\n".join(part.replace("\n    ", "\n") for part in parts)


def test_a_users_metric_is_gated_like_any_other_and_shares_the_generation(writing: Project) -> None:
    writing.write(
        conftest=conftest(METRICS, COUNT_MEASUREMENTS),
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
    outcome = writing.run("-W", "error", "--lmgate-report", "json:report.json")
    outcome.expect(1, passed=2, failed=1)
    # 6, 5, 4 of the numbers; 3, 2, 1 of each other chain; two words each are written.
    outcome.says("metric_max: absent 11 [", "metric_min:length_ratio[counter-chains]", "0         4  one")
    assert writing.measured == ["counter", "counter"]
    values = {gate["metric"]: gate["value"] for gate in writing.report()["gates"] if "whole" in gate["test"]}
    assert values == {"bleu": pytest.approx(100), "length_ratio": 1, "absent": 0}


def test_what_is_asked_wrongly_of_a_users_metric_is_named_at_collection(writing: Project) -> None:
    writing.write(
        conftest=conftest(METRICS),
        test_wrong=marked(
            direction='metric_max("length_ratio", "counter", "chains", 1)',
            name='metric_min("lenght_ratio", "counter", "chains", 1)',
            built_in='metric_min("accuracy", "counter", "chains", 1)',
            option='metric_min("length_ratio", "counter", "chains", 1, tokenize="zh")',
        ),
    )
    outcome = writing.run(torch_free=True).expect(4).is_silent_on("Traceback", "INTERNALERROR")
    outcome.says("use metric_min", "'lenght_ratio'", "metric: 'accuracy'", "tokenize: ")
