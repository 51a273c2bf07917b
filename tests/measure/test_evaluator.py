"""Measured once, judged many times: what runs a model, what is found, and what never is."""

import json
import math
from pathlib import Path
from typing import Any, get_args

import pytest

from pytest_lmgate.cache.files import read_sealed
from pytest_lmgate.cache.store import Fingerprint, Store, StoredResult
from pytest_lmgate.errors import ConfigError
from pytest_lmgate.metrics.score import Score
from pytest_lmgate.settings.decoding import parse_fixture_call
from pytest_lmgate.settings.gate_options import Unit, WindowProtocol
from tests.measure.entries import entry, perplexity, write_rows

PROTOCOL = WindowProtocol(max_length=16, stride=8)
UNITS = get_args(Unit)


def _entries(workplace: Any, suffix: str = ".lmgate") -> list[Path]:
    return list((workplace.folder / ".lmgate_cache").glob(f"token-nll/*/*{suffix}"))


def _measure(session: Any, model: Any = "float", dataset: Any = "text", protocol: WindowProtocol = PROTOCOL) -> Score:
    return perplexity(session.evaluator, model, dataset, protocol)


def test_a_score_says_what_was_measured_and_how(workplace: Any, loads: list[str]) -> None:
    session = workplace.session()
    score = _measure(session)
    assert 20 < score < 50  # random weights on an alphabet of 31
    assert (score.metric, score.unit, score.direction) == ("ppl", "token", "lower")
    assert (score.model, score.dataset, score.cached) == ("float", "text", False)
    assert score.n == 4 * 52 - 1  # one token per character, of which the first is never a target
    assert score.signature.startswith("protocol:sliding|max_length:16|stride:8|average:token|unit:token|version:")
    assert score.fingerprint == session.evaluator.measurements.lookups[0].address
    assert score.seconds > 0
    assert loads == ["float"]
    assert session.warnings == []


def test_the_second_time_it_is_found_in_this_session_and_in_the_next(workplace: Any, loads: list[str]) -> None:
    session = workplace.session()
    first, second = _measure(session), _measure(session)
    third = _measure(workplace.session())
    assert [first.cached, second.cached, third.cached] == [False, True, True]
    assert first == second == third
    assert first.fingerprint == third.fingerprint
    assert [lookup.hit for lookup in session.evaluator.measurements.lookups] == [False, True]
    assert loads == ["float"]


def test_units_and_averages_need_no_model(workplace: Any, loads: list[str]) -> None:
    _measure(workplace.session())
    session = workplace.session()
    scores = {unit: _measure(session, protocol=WindowProtocol(max_length=16, stride=8, unit=unit)) for unit in UNITS}
    window = _measure(session, protocol=WindowProtocol(max_length=16, stride=8, average="window"))
    bpb = perplexity(
        session.evaluator, "float", "text", WindowProtocol(max_length=16, stride=8, unit="bits_per_byte"), metric="bpb"
    )
    assert loads == ["float"]
    assert all(lookup.hit for lookup in session.evaluator.measurements.lookups)
    nll = math.log(scores["token"]) * (4 * 52 - 1)
    # The first letter of the first word, "the", is not scored.
    assert scores["char"] == pytest.approx(math.exp(nll / (4 * 52 - 1)))
    assert scores["byte"] == pytest.approx(math.exp(nll / (4 * 52 - 1)))
    assert scores["bits_per_byte"] == pytest.approx(nll / (4 * 52 - 1) / math.log(2))
    # The text of 4 * 13 words ends in a newline, after which the convention counts an empty piece.
    assert scores["word"] == pytest.approx(math.exp(nll / (4 * 13 + 1 - 1 / 3)))
    assert window != scores["token"]
    assert (bpb, bpb.metric) == (scores["bits_per_byte"], "bpb")


def test_a_well_sealed_entry_without_its_arrays_is_measured_again_with_a_warning(
    workplace: Any, loads: list[str]
) -> None:
    first = _measure(workplace.session())
    (entry,) = _entries(workplace)
    body = read_sealed(entry)
    header = json.loads(body[8 : 8 + int.from_bytes(body[:8], "little")])
    fingerprint = Fingerprint.parse(header["__metadata__"]["fingerprint"])
    Store(workplace.folder / ".lmgate_cache", print).put(fingerprint, StoredResult({}, {}))
    session = workplace.session()
    second = _measure(session)
    assert (second, second.cached) == (first, False)
    (warning,) = session.warnings
    assert "it is not a measurement of float on text (KeyError('window_targets'))" in warning


def test_texts_of_groups_are_averaged_group_by_group_and_the_signature_says_so(workplace: Any) -> None:
    rows = [{"q": text, "a": right, "g": group} for text, right, group in ("aa1", "bb1", "cx1", "dd2", "ee2")]
    entry(workplace, "said", path=write_rows(workplace, "said", rows), source="q", references="a", average_by="g")
    score = workplace.session().evaluator.evaluate(parse_fixture_call("exact_of", (list, "said"), {}))
    assert score == pytest.approx((2 / 3 + 1) / 2)
    assert "|average_by:g" in score.signature


def test_rows_that_were_joined_are_remarked_with_what_can_be_done(workplace: Any) -> None:
    rows = [f"row {letter}" for letter in "abcdefghijkl"]
    entry(workplace, "many", path=write_rows(workplace, "many", [{"text": row} for row in rows]))
    session = workplace.session()
    joined, join = (
        '12 rows were read as one text; protocol="document" reads them one by one',
        "in the entry of the dataset",
    )
    _measure(session, dataset="many", protocol=WindowProtocol(max_length=16))
    assert session.remarks == [f'many: {joined}; if they are one text, set join: "\\n\\n" {join}']
    _measure(session, dataset=rows, protocol=WindowProtocol(max_length=16))  # has no entry
    assert session.remarks[1].endswith(joined)
    later = workplace.session()
    _measure(later, dataset="many")  # with the stride that is the default, whose user knows what is read
    assert later.remarks == []
    _measure(later, dataset="many", protocol=WindowProtocol(max_length=16))  # of the same address
    assert later.remarks == session.remarks[:1]


def test_what_windows_puts_into_a_text_unseen_is_remarked(workplace: Any) -> None:
    session, how = workplace.session(), WindowProtocol(max_length=16)
    (workplace.folder / "windows.txt").write_bytes("\ufeffab\r\nba\r\n".encode())
    for dataset in ("windows.txt", ["ab\rba", "ab"], ["ab\nba"]):
        _measure(session, dataset=dataset, protocol=how)
    assert [remark.partition(", which")[0] for remark in session.remarks if "its texts have" in remark] == [
        "windows.txt: its texts have carriage returns (CRLF) and byte-order marks",
        "in-memory list: its texts have carriage returns (CRLF)",
    ]


def test_a_comparison_that_is_refused_runs_no_model_and_says_nothing_of_the_data(
    workplace: Any, loads: list[str]
) -> None:
    entry(
        workplace, "many", path=write_rows(workplace, "many", [{"text": f"row {letter}"} for letter in "abcdefghijkl"])
    )
    session = workplace.session()

    def refuse(shared: Any, device: str) -> None:
        raise ConfigError(f"no baseline of {shared['protocol']} on {device}")

    what = parse_fixture_call("ppl_of", ("float", "many"), {"max_length": 16})
    with pytest.raises(ConfigError, match=r"no baseline of protocol:sliding\|max_length:16.* on cpu"):
        session.evaluator.evaluate(what, refuse)
    assert loads == session.remarks == session.evaluator.measurements.lookups == []
