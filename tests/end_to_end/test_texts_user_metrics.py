"""The hook `pytest_lmgate_metrics`: a user's metric is gated, cached, shown and reported like any other."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.end_to_end.projects import COUNT_MEASUREMENTS, Project
from tests.end_to_end.writers import writing_project

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


@pytest.fixture
def project(tmp_path: Path, tmp_path_factory: pytest.TempPathFactory) -> Project:
    return writing_project(tmp_path, tmp_path_factory.getbasetemp())


def conftest(*parts: str) -> str:
    return "\n".join(part.replace("\n    ", "\n") for part in parts)


def test_a_users_metric_is_gated_like_any_other_and_shares_the_generation(project: Project) -> None:
    project.write(
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
    for options in ((), ("-n", "2")):
        outcome = project.run("-W", "error", "--lmgate-report", "json:report.json", *options)
        outcome.expect(1, passed=2, failed=1)
        # 6, 5, 4 of the numbers; 3, 2, 1 of each other chain; two words each are written.
        outcome.says("metric_max: absent 11 [", "of 'counter' on 'chains' is above the limit 5")
        outcome.says(
            "metric_min:length_ratio[counter-chains]", "worst rows", "0         4  one", "two three four five six seven"
        )
        assert project.measured == ["counter", "counter"]
        values = {gate["metric"]: gate["value"] for gate in project.report()["gates"] if "whole" in gate["test"]}
        assert values == {"bleu": pytest.approx(100), "length_ratio": 1, "absent": 0}


def test_what_is_asked_wrongly_of_a_users_metric_is_named_at_collection(project: Project) -> None:
    project.write(
        conftest=conftest(METRICS),
        test_wrong="""
            import pytest

            @pytest.mark.metric_max("length_ratio", "counter", "chains", 1)
            def test_direction(): pass

            @pytest.mark.metric_min("lenght_ratio", "counter", "chains", 1)
            def test_name(): pass

            @pytest.mark.metric_min("accuracy", "counter", "chains", 1)
            def test_built_in(): pass

            @pytest.mark.metric_min("length_ratio", "counter", "chains", 1, tokenize="zh")
            def test_option(): pass
        """,
    )
    for options in ((), ("-n", "2")):
        outcome = project.run(*options).expect(4).is_silent_on("Traceback", "INTERNALERROR")
        outcome.says(
            "higher values of 'length_ratio' are better: use metric_min",
            "got 'lenght_ratio' (did you mean 'length_ratio'?)",
            "metric: 'accuracy' has markers and a fixture of its own; use these",
            "tokenize: unknown argument",
        )


BAD_HOOKS = {
    "lmgate.TextMetric(name='own', direction='higher', signature='own', statistics=len)": "a list of TextMetric",
    "[len]": "expected TextMetric objects, got builtin_function_or_method",
    "[lmgate.TextMetric(name='bleu', direction='higher', signature='own', statistics=len)]": "choose another",
    "[lmgate.TextMetric(name='own', direction='up', signature='own', statistics=len)]": "expected direction 'higher'",
}


@pytest.mark.parametrize("given", BAD_HOOKS)
def test_a_hook_that_gives_no_metrics_is_a_usage_error(project: Project, given: str) -> None:
    project.write(
        conftest=f"import pytest_lmgate as lmgate\n\ndef pytest_lmgate_metrics(config):\n    return {given}\n",
        test_gate='import pytest\n\n@pytest.mark.metric_min("own", "counter", "chains", 1)\ndef test_gate(): pass\n',
    )
    project.run().expect(4).says(BAD_HOOKS[given]).is_silent_on("INTERNALERROR")


def test_a_metric_that_returns_no_numbers_is_an_error_that_fails_the_build(project: Project) -> None:
    bad = {
        "few": ("[[1, 1]]", "expected statistics of shape [9, k]"),
        "nan": ("[[float('nan'), 1]] * len(predictions)", "expected finite statistics, got nan in row 0, column 0"),
        "raises": ("1 / 0", "ZeroDivisionError"),
    }
    metrics = ", ".join(
        f"lmgate.TextMetric(name={name!r}, direction='higher', signature='own',"
        f" statistics=lambda predictions, references, rows: {returned})"
        for name, (returned, _) in bad.items()
    )
    gates = "\n\n".join(
        f'@pytest.mark.metric_min("{name}", "counter", "chains", 1)\ndef test_{name}(): pass' for name in bad
    )
    project.write(
        conftest=f"import pytest_lmgate as lmgate\n\ndef pytest_lmgate_metrics(config):\n    return [{metrics}]\n",
        test_gates=f"import pytest\n\n{gates}\n",
    )
    outcome = project.run().expect(1, error=len(bad)).is_silent_on("INTERNALERROR")
    outcome.says(*(sentence for _, sentence in bad.values()))


def test_a_value_or_details_of_the_wrong_kind_are_one_sentence_that_names_the_metric(project: Project) -> None:
    bad = {
        "none": ("value=lambda sums: None", "expected its value to be a number, got NoneType None"),
        "imaginary": ("value=lambda sums: 1j", "expected its value to be a number, got complex 1j"),
        "listed": ("value=lambda sums: sums", "expected its value to be a number, got ndarray array([9., 9.])"),
        "by_row": ("row_value=lambda sums: None", "expected its row_value to be a number, got NoneType None"),
        "details": (
            "details=lambda sums: None",
            "expected its details to be a mapping from names to figures, got None",
        ),
    }
    metrics = ", ".join(
        f"lmgate.TextMetric(name={name!r}, direction='higher', signature='own', statistics=ones, {field})"
        for name, (field, _) in bad.items()
    )
    gates = "\n\n".join(
        f'@pytest.mark.metric_min("{name}", "counter", "chains", 0.5)\ndef test_{name}(): pass' for name in bad
    )
    project.write(
        conftest=f"""
            import pytest_lmgate as lmgate

            def ones(predictions, references, rows):
                return [[1, 1]] * len(predictions)

            def pytest_lmgate_metrics(config):
                return [{metrics}]
        """,
        test_gates=f"import pytest\n\n{gates}\n",
    )
    outcome = project.run().expect(1, error=len(bad)).is_silent_on("INTERNALERROR", "Traceback", "/pytest_lmgate/")
    outcome.says(*(f"text metric {name!r}: {sentence}" for name, (_, sentence) in bad.items()))
