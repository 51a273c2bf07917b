"""The OpenMetrics report, read by Prometheus' parser and as GitLab reads it."""

from __future__ import annotations

import math
import re
import shlex
from dataclasses import replace

import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families

from pytest_lmgate.gates.verdict import Verdict
from pytest_lmgate.report.formats.openmetrics import openmetrics_report
from pytest_lmgate.report.results import Results
from tests.report.hostile import HOSTILE

Series = dict[tuple[tuple[str, str], ...], float]


def _read(report: str) -> dict[str, Series]:
    """Families with their series; the parser refuses wrong types, escapes and states, and a missing EOF."""
    families: dict[str, Series] = {}
    for family in text_string_to_metric_families(report):
        assert family.documentation
        series: Series = {}
        for sample in family.samples:
            labels = tuple(sorted(sample.labels.items()))
            assert labels not in series
            series[labels] = sample.value
        families[family.name] = series
    return families


def _as_gitlab(report: str) -> dict[str, str]:
    """As lib/gitlab/ci/parsers/metrics/generic.rb: a comment begins at any ``#``, and a shell splits the words."""
    found = {}
    for line in report.splitlines():
        if words := shlex.split(re.sub(r"#.*$", "", line)):
            name, value = words
            assert name not in found
            found[name] = value
    return found


def _values(families: dict[str, Series], name: str) -> list[float]:
    return list(families[name].values())


def test_every_number_of_a_gate_is_a_series_in_all_its_digits(failed: Verdict, compared: Verdict) -> None:
    one = replace(failed, value=0.1 + 0.2, limit=1 / 3, id="t.py::test_a::x", test="t.py::test_a")
    found = _read(openmetrics_report(Results([one, compared])))
    labels = tuple(
        sorted({"gate": "t.py::test_a::x", "metric": "ppl", "model": "int8", "dataset": "wikitext2"}.items())
    )
    assert found["lmgate_value"][labels] == 0.1 + 0.2
    assert found["lmgate_limit"][labels] == 1 / 3
    assert found["lmgate_stderr"][labels] == 0.4567
    assert (found["lmgate_lower"][labels], found["lmgate_upper"][labels]) == (17.25, 19.0625)
    assert found["lmgate_scored"][labels] == 283287
    assert _values(found, "lmgate_reference") == [16.5]
    assert _values(found, "lmgate_degradation") == [0.1]
    assert _values(found, "lmgate_degradation_lower") == [0.09]
    assert _values(found, "lmgate_degradation_upper") == [0.11]
    assert _values(found, "lmgate_tolerance") == [0.01]


def test_a_verdict_is_one_of_five_states(passed: Verdict, unmeasured: Verdict) -> None:
    found = _read(openmetrics_report(Results([passed, unmeasured], problems=("x",))))
    assert _values(found, "lmgate_verdict") == [1, 0, 0, 0, 0, 0, 0, 0, 1, 0]
    assert len(found["lmgate_value"]) == 1
    assert _values(found, "lmgate_problems") == [1]


def test_numbers_that_are_not_finite_are_openmetrics_own(failed: Verdict) -> None:
    endless = replace(failed, interval=(-math.inf, math.inf), stderr=math.nan, value=1e300)
    found = _read(openmetrics_report(Results([endless])))
    assert _values(found, "lmgate_lower") == [-math.inf]
    assert _values(found, "lmgate_upper") == [math.inf]
    assert math.isnan(_values(found, "lmgate_stderr")[0])
    assert _values(found, "lmgate_value") == [1e300]


def test_a_report_without_gates_is_valid() -> None:
    assert _values(_read(openmetrics_report(Results([]))), "lmgate_problems") == [0]


def test_series_depend_on_nothing_that_changes_while_the_model_does_not(failed: Verdict) -> None:
    again = replace(failed, cached=True, seconds=0.0, cache="hit", fingerprint="f" * 64)
    assert openmetrics_report(Results([failed])) == openmetrics_report(Results([again]))


def test_gitlab_reads_every_series(failed: Verdict) -> None:
    second = replace(failed, id=f"{failed.id}#2")
    found = _as_gitlab(openmetrics_report(Results([failed, second])))
    assert found[r"lmgate_value{gate=" + failed.id + r"\x232,metric=ppl,model=int8,dataset=wikitext2}"] == "18.15"
    assert len([name for name in found if name.startswith("lmgate_value")]) == 2


@pytest.mark.parametrize("text", HOSTILE.values(), ids=HOSTILE)
def test_hostile_names_are_labels_and_no_two_series_are_the_same(failed: Verdict, text: str) -> None:
    gates = [
        replace(failed, id=f"t::{name}", test="t", model=name, dataset=name)
        for name in (text, text.encode("unicode_escape").decode())
    ]
    report = openmetrics_report(Results(gates))
    report.encode("utf-8")
    assert len(_read(report)["lmgate_value"]) == 2
    assert len([name for name in _as_gitlab(report) if name.startswith("lmgate_value")]) == 2
    assert report.replace("\n", "").isprintable()
    assert len(report) < 100_000
