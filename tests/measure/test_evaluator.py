"""Measured once, judged many times: what runs a model, what is found, and what never is."""

import json
from typing import Any

import pytest

from pytest_lmgate.cache.files import read_sealed
from pytest_lmgate.cache.store import Fingerprint, Store, StoredResult
from pytest_lmgate.errors import ConfigError
from pytest_lmgate.settings.decoding import parse_fixture_call
from pytest_lmgate.settings.gate_options import WindowProtocol
from tests.measure.entries import entry, write_rows


def test_a_score_says_what_was_measured_and_how_and_is_found_the_second_time(workplace: Any, loads: list[str]) -> None:
    session = workplace.session()
    score = session.perplexity()
    assert 20 < score < 50  # random weights on an alphabet of 31
    assert (score.metric, score.unit, score.direction) == ("ppl", "token", "lower")
    assert (score.model, score.dataset, score.cached) == ("float", "text", False)
    assert score.n == 4 * 52 - 1  # one token per character, of which the first is never a target
    assert score.signature.startswith("protocol:sliding|max_length:16|stride:8|average:token|unit:token|version:")
    assert score.fingerprint == session.evaluator.measurements.lookups[0].address
    assert score.seconds > 0
    again = [session.perplexity(), workplace.session().perplexity()]
    assert [(each, each.cached, each.fingerprint) for each in again] == [(score, True, score.fingerprint)] * 2
    assert [lookup.hit for lookup in session.evaluator.measurements.lookups] == [False, True]
    assert loads == ["float"]
    assert session.warnings == []


def test_a_well_sealed_entry_without_its_arrays_is_measured_again_with_a_warning(
    workplace: Any, loads: list[str]
) -> None:
    first = workplace.session().perplexity()
    (entry,) = (workplace.folder / ".lmgate_cache").glob("token-nll/*/*.lmgate")
    body = read_sealed(entry)
    header = json.loads(body[8 : 8 + int.from_bytes(body[:8], "little")])
    fingerprint = Fingerprint.parse(header["__metadata__"]["fingerprint"])
    Store(workplace.folder / ".lmgate_cache", print).put(fingerprint, StoredResult({}, {}))
    session = workplace.session()
    second = session.perplexity()
    assert (second, second.cached) == (first, False)
    (warning,) = session.warnings
    assert "it is not a measurement of float on text (KeyError('window_targets'))" in warning


def test_texts_of_groups_are_averaged_group_by_group_and_the_signature_says_so(workplace: Any) -> None:
    rows = [{"q": text, "a": right, "g": group} for text, right, group in ("aa1", "bb1", "cx1", "dd2", "ee2")]
    entry(workplace, "said", path=write_rows(workplace, "said", rows), source="q", references="a", average_by="g")
    score = workplace.session().score("exact_of", list, "said")
    assert score == pytest.approx((2 / 3 + 1) / 2)
    assert "|average_by:g" in score.signature


ROWS = [f"row {letter}" for letter in "abcdefghijkl"]


@pytest.fixture
def many(workplace: Any) -> Any:
    """The workplace with rows that are read as one text."""
    entry(workplace, "many", path=write_rows(workplace, "many", [{"text": row} for row in ROWS]))
    return workplace


def test_rows_that_were_joined_are_remarked_with_what_can_be_done(many: Any) -> None:
    session = many.session()
    joined, join = (
        '12 rows were read as one text; protocol="document" reads them one by one',
        "in the entry of the dataset",
    )
    session.perplexity(dataset="many", protocol=WindowProtocol(max_length=16))
    assert session.remarks == [f'many: {joined}; if they are one text, set join: "\\n\\n" {join}']
    session.perplexity(dataset=ROWS, protocol=WindowProtocol(max_length=16))  # has no entry
    assert session.remarks[1].endswith(joined)
    later = many.session()
    later.perplexity(dataset="many")  # with the stride that is the default, whose user knows what is read
    assert later.remarks == []
    later.perplexity(dataset="many", protocol=WindowProtocol(max_length=16))  # of the same address
    assert later.remarks == session.remarks[:1]


def test_what_windows_puts_into_a_text_unseen_is_remarked(workplace: Any) -> None:
    session = workplace.session()
    (workplace.folder / "windows.txt").write_bytes("\ufeffab\r\nba\r\n".encode())
    for dataset in ("windows.txt", ["ab\rba", "ab"], ["ab\nba"]):
        session.perplexity(dataset=dataset, protocol=WindowProtocol(max_length=16))
    assert [remark.partition(", which")[0] for remark in session.remarks if "its texts have" in remark] == [
        "windows.txt: its texts have carriage returns (CRLF) and byte-order marks",
        "in-memory list: its texts have carriage returns (CRLF)",
    ]


def test_a_comparison_that_is_refused_runs_no_model_and_says_nothing_of_the_data(many: Any, loads: list[str]) -> None:
    session = many.session()

    def refuse(shared: Any, device: str) -> None:
        raise ConfigError(f"no baseline of {shared['protocol']} on {device}")

    what = parse_fixture_call("ppl_of", ("float", "many"), {"max_length": 16})
    with pytest.raises(ConfigError, match=r"no baseline of protocol:sliding\|max_length:16.* on cpu"):
        session.evaluator.evaluate(what, refuse)
    assert loads == session.remarks == session.evaluator.measurements.lookups == []
