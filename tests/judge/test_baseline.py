"""The baseline file: what is written is read back to the bit, and what is not whole is never read at all."""

import json
import math
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_lmgate.errors import BaselineError, ComparisonError
from pytest_lmgate.judge.baseline import (
    BaselineEntry,
    Provenance,
    entry_of,
    format_baseline,
    parse_baseline,
    read_baseline,
    reference_of,
    require_same,
    rewrite,
    write_baseline,
)
from pytest_lmgate.metrics.score import Score
from pytest_lmgate.settings.gates import Tolerance
from pytest_lmgate.stats.means import MAX_CLUSTERS
from pytest_lmgate.stats.paired import compare
from pytest_lmgate.stats.sample import MOST_OUTCOMES, Sample, Scale
from tests.stats.samples import right_or_wrong

NOW = Provenance("2026-01-31", "0123456789ab", "cpu", "a processor", {"torch": "2.13.0"})


def score(sums: list[float], counts: list[int], value: float | None = None) -> Score:
    """A perplexity of clusters with these sums of NLL."""
    sample = Sample(np.array(sums)[:, None], np.array(counts), Scale("lower", exponential=True), identity={"data": "d"})
    return Score(sample.value() if value is None else value, metric="ppl", n=sum(counts), sample=sample)


def entries(count: int = 2) -> dict[str, BaselineEntry]:
    return {f"test_x.py::test_{i}::ppl": entry_of(score([1.25, 3.5 + i], [2, 4]), NOW) for i in range(count)}


def text(count: int = 2) -> str:
    return format_baseline(entries(count))


def edited(key: str, value: object) -> str:
    data = json.loads(text(1))
    (gate,) = data["gates"].values()
    gate[key] = value
    return json.dumps(data)


@given(st.lists(st.tuples(st.floats(0, 1e9), st.integers(1, 10**9)), min_size=1, max_size=8))
def test_what_is_written_is_read_back_to_the_bit(clusters: list[tuple[float, int]]) -> None:
    sums, counts = [s for s, _ in clusters], [n for _, n in clusters]
    measured = score(sums, counts, value=1.0)
    (entry,) = parse_baseline(format_baseline({"id": entry_of(measured, NOW)}), "file").values()
    assert entry.clusters == [[n, s] for s, n in clusters]
    assert (entry.value, entry.provenance) == (measured, NOW)


def test_the_text_is_json_sorted_by_gate_with_a_line_for_each_number() -> None:
    written = format_baseline(dict(reversed(entries().items())))
    assert written == text()
    assert list(json.loads(written)["gates"]) == sorted(entries())
    assert "        [2, 1.25],\n        [4, 3.5]\n" in written
    assert written.endswith("}\n")
    assert parse_baseline(format_baseline({}), "file") == {}


def test_a_file_cut_short_anywhere_is_an_error() -> None:
    whole = text().rstrip()
    for end in range(len(whole)):
        with pytest.raises(BaselineError, match=r"^file: .*(mend|restore)"):
            parse_baseline(whole[:end], "file")


@pytest.mark.parametrize(
    ("written", "says"),
    [
        (edited("value", "2.5"), r"test_0::ppl: value: expected `float`, got `str`"),
        (edited("clusters", [[1, "2"]]), r"clusters\[0\]\[1\]: expected `float`, got `str`"),
        (edited("valeu", 2.5), r"unknown field `valeu`"),
        (text().replace("1.25", "NaN"), r"not whole JSON"),
        (text().replace("1.25", "1e999"), r"not whole JSON|expected `float`|out of range"),
        ("[]", r"top level: expected `object`, got `array`"),
        ('{"schema": 2, "gates": ' + '{"a": ' * 100_000, r"nested more deeply"),
        (text().replace('"schema": 2', '"schema": 3'), r"expected schema 2, got 3"),
        (text(1).replace('"schema": 2', '"schema": 2, "schema": 2'), r"schema appears twice"),
        (text(1).replace('"value": ', '"value": 1.0, "value": '), r"value appears twice"),
        (text().replace("test_1", "test_0"), r"test_0::ppl appears twice"),
        (text().replace("    [4, 3.5]", "\n<<<<<<< HEAD\n  [4, 3.5]"), r"^file:\d+: an unresolved merge conflict"),
    ],
)
def test_what_is_edited_by_hand_to_something_else_is_an_error_that_names_it(written: str, says: str) -> None:
    with pytest.raises(BaselineError, match=says):
        parse_baseline(written, "file")


def test_a_file_that_cannot_be_read_is_an_error_and_is_never_written_over(tmp_path: Path) -> None:
    path = tmp_path / "b.json"
    path.write_bytes(b"\xff")
    with pytest.raises(BaselineError, match=r"b\.json: cannot be read: "):
        read_baseline(path)
    told, (problem,) = write_baseline(path, "all", entries(), used=None)
    assert told == []
    assert problem.startswith("the baseline was not written: ")
    assert path.read_bytes() == b"\xff"


def test_writers_at_one_time_lose_no_entry_and_leave_no_lock(tmp_path: Path) -> None:
    path, made = tmp_path / "b.json", entries(24)

    def add(name: str) -> None:
        rewrite(path, lambda before: {**before, name: made[name]})

    with ThreadPoolExecutor(8) as threads:
        list(threads.map(add, made))
    assert read_baseline(path) == made
    assert [each.name for each in tmp_path.iterdir()] == ["b.json"]


def test_clusters_that_are_none_or_do_not_add_up_to_the_value_are_an_error() -> None:
    measured = score([1.25, 3.5], [2, 4])
    entry = entry_of(measured, NOW)
    with pytest.raises(BaselineError, match="edited by hand"):
        reference_of(msgspec.structs.replace(entry, value=float(measured) * 1.01), measured.sample)
    for clusters in ([], [[1]], [[1, 2, 3]], [[1, 2], [1]], [[-1, 2.0]], [[0.5, 2.0]], [[0, 0.0]]):
        with pytest.raises(BaselineError, match="clusters: expected"):
            reference_of(msgspec.structs.replace(entry, clusters=clusters), measured.sample)


def test_no_more_than_512_clusters_are_kept_and_nothing_is_lost_by_it() -> None:
    random = np.random.default_rng(0)
    sums, counts = random.uniform(0, 9, 5000), random.integers(1, 9, 5000)
    entry = entry_of(score(sums.tolist(), counts.tolist()), NOW)
    kept = np.array(entry.clusters)
    assert MAX_CLUSTERS / 2 < len(kept) <= MAX_CLUSTERS
    assert kept[:, 0].sum() == counts.sum()
    assert kept[:, 1].sum() == pytest.approx(sums.sum(), rel=1e-12)


def test_what_is_not_finite_is_no_baseline() -> None:
    for value in (math.nan, math.inf):
        with pytest.raises(BaselineError, match="finite"):
            entry_of(score([1.0], [1], value=value), NOW)


@pytest.mark.parametrize(("key", "value"), [("metric", "bpb"), ("unit", "byte"), ("n", 7)])
def test_an_entry_of_another_metric_or_count_is_refused(key: str, value: object) -> None:
    measured, whole = score([1.25, 3.5], [2, 4]), entries(1)
    require_same(*whole.values(), measured)
    (entry,) = parse_baseline(edited(key, value), "file").values()
    with pytest.raises(BaselineError, match=f"{key}: expected .*, got {value!r}: edited by hand"):
        require_same(entry, measured)


def accuracy_of(right: list[bool]) -> Score:
    """An accuracy of rows."""
    sample = right_or_wrong(right).merged()
    return Score(sample.value(), metric="accuracy", unit="row", direction="higher", n=len(right), sample=sample)


def read_back(measured: Score) -> tuple[BaselineEntry, Sample]:
    (entry,) = parse_baseline(format_baseline({"id": entry_of(measured, NOW)}), "file").values()
    return entry, reference_of(entry, measured.sample)


@given(st.lists(st.booleans(), min_size=1, max_size=70))
def test_each_row_is_a_bit_that_is_read_back(right: list[bool]) -> None:
    entry, reference = read_back(accuracy_of(right))
    assert entry.outcomes == np.packbits(right).tobytes().hex()
    assert reference.outcomes.right.tolist() == right


@pytest.mark.parametrize(
    ("outcomes", "message"),
    [
        *dict.fromkeys(["zz", "f", "7"], "expected hexadecimal digits").items(),
        *dict.fromkeys(["", "ffff", "ff", "e1", "f000"], "expected a bit for each of 5 rows").items(),
        ("78", "they do not add up to the clusters"),  # 0b01111000: as many right rows, but others
    ],
)
def test_outcomes_that_were_edited_are_refused(outcomes: str, message: str) -> None:
    measured = accuracy_of([True, True, True, True, False])
    entry = msgspec.structs.replace(entry_of(measured, NOW), outcomes=outcomes)
    with pytest.raises(BaselineError, match=f"outcomes: {message}"):
        reference_of(entry, measured.sample)


def test_beyond_100000_rows_the_clusters_are_kept_and_judged() -> None:
    assert MOST_OUTCOMES == 100_000
    right = np.random.default_rng(0).random(100_001) < 0.7
    lost = right & (np.random.default_rng(1).random(100_001) < 0.99)
    entry, reference = read_back(accuracy_of(right.tolist()))
    assert (entry.outcomes, reference.outcomes) == ("", None)
    worse, same = (
        compare(accuracy_of(each.tolist()).sample, reference, tolerance=Tolerance(0.005, relative=False))
        for each in (lost, right)
    )
    assert (worse.decision, same.decision) == ("fail", "pass")
    assert worse.bounds in ("student", "hall")
    assert MAX_CLUSTERS / 2 < worse.clusters <= MAX_CLUSTERS


def test_of_another_text_it_is_the_comparison_that_says_what_differs() -> None:
    measured = score([1.25, 3.5], [2, 4])
    entry = entry_of(measured, NOW)
    longer = replace(measured.sample, scale=replace(measured.sample.scale, factor=0.5), identity={"data": "another"})
    with pytest.raises(ComparisonError, match="the two sides used different data"):
        compare(longer, reference_of(entry, longer), tolerance=Tolerance(0.01, relative=True))
