"""Measured once, judged many times: what runs a model, what is found, and what never is."""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from pytest_lmgate.cache.files import read_sealed
from pytest_lmgate.cache.fingerprint import Fingerprint
from pytest_lmgate.cache.store import Entry, Store
from pytest_lmgate.errors import ConfigError, DataError, LmgateError, ModelError, ProtocolError
from pytest_lmgate.metrics.score import Score
from pytest_lmgate.spec.markers import parse_fixture_call
from pytest_lmgate.spec.protocol import UNITS, Protocol
from tests.evaluate.entries import perplexity

PROTOCOL = Protocol(max_length=16, stride=8)


def _entries(workplace: Any, suffix: str = ".lmgate") -> list[Path]:
    return list((workplace.folder / ".lmgate_cache").glob(f"token-nll/*/*{suffix}"))


def _measure(session: Any, model: Any = "float", dataset: Any = "text", protocol: Protocol = PROTOCOL) -> Score:
    return perplexity(session.evaluator, model, dataset, protocol)


def test_a_score_says_what_was_measured_and_how(workplace: Any, loads: list[str]) -> None:
    session = workplace.session()
    score = _measure(session)
    assert 20 < score < 50  # random weights on an alphabet of 31
    assert (score.metric, score.unit, score.direction) == ("ppl", "token", "lower")
    assert (score.model, score.dataset, score.cached) == ("float", "text", False)
    assert score.n == 4 * 52 - 1  # one token per character, of which the first is never a target
    assert score.signature.startswith("protocol:sliding|max_length:16|stride:8|average:token|unit:token|version:")
    assert score.fingerprint == session.evaluator.lookups[0].address
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
    assert [lookup.hit for lookup in session.evaluator.lookups] == [False, True]
    assert loads == ["float"]


def test_units_and_averages_need_no_model(workplace: Any, loads: list[str]) -> None:
    _measure(workplace.session())
    session = workplace.session()
    scores = {unit: _measure(session, protocol=Protocol(max_length=16, stride=8, unit=unit)) for unit in UNITS}
    window = _measure(session, protocol=Protocol(max_length=16, stride=8, average="window"))
    bpb = perplexity(
        session.evaluator, "float", "text", Protocol(max_length=16, stride=8, unit="bits_per_byte"), metric="bpb"
    )
    assert loads == ["float"]
    assert all(lookup.hit for lookup in session.evaluator.lookups)
    nll = math.log(scores["token"]) * (4 * 52 - 1)
    assert scores["char"] == pytest.approx(math.exp(nll / (4 * 52)))
    assert scores["byte"] == pytest.approx(math.exp(nll / (4 * 52)))
    assert scores["bits_per_byte"] == pytest.approx(nll / (4 * 52) / math.log(2))
    # The text of 4 * 13 words ends in a newline, after which the convention counts an empty piece.
    assert scores["word"] == pytest.approx(math.exp(nll / (4 * 13 + 1)))
    assert window != scores["token"]
    assert (bpb, bpb.metric) == (scores["bits_per_byte"], "bpb")


def test_the_same_windows_under_two_names_are_one_measurement(workplace: Any, loads: list[str]) -> None:
    session = workplace.session()
    disjoint = _measure(session, protocol=Protocol("disjoint", max_length=16))
    sliding = _measure(session, protocol=Protocol(max_length=16, stride=16))
    default = _measure(session, protocol=Protocol())
    spelled_out = _measure(session, protocol=Protocol(max_length=32, stride=16))
    assert [disjoint.cached, sliding.cached, default.cached, spelled_out.cached] == [False, True, False, True]
    assert disjoint == sliding
    assert default == spelled_out
    assert loads == ["float"]


@pytest.mark.parametrize("batch_size", [1, 3])
def test_the_result_does_not_depend_on_what_is_not_in_its_address(workplace: Any, batch_size: int) -> None:
    first = _measure(workplace.session())
    file = workplace.folder / "lmgate.yaml"
    file.write_text(file.read_text().replace("{device: cpu}", f"{{device: cpu, batch_size: {batch_size}}}"))
    other = _measure(workplace.session(cache=workplace.folder / "elsewhere"))
    assert other.fingerprint == first.fingerprint
    assert other == pytest.approx(first, rel=1e-6)


def test_whatever_can_change_the_number_is_measured_anew(workplace: Any, loads: list[str]) -> None:
    session = workplace.session()
    first = _measure(session)
    others = [
        _measure(session, protocol=Protocol(max_length=16, stride=4)),
        _measure(session, protocol=Protocol(max_length=8, stride=8)),
        _measure(session, protocol=Protocol("document", max_length=16, stride=8)),
        _measure(session, dataset="rows"),
        _measure(session, model="half"),
    ]
    assert not any(score.cached for score in others)
    assert len({score.fingerprint for score in (first, *others)}) == 6


def test_the_same_text_from_another_place_is_the_same_data(workplace: Any, loads: list[str]) -> None:
    session = workplace.session()
    _measure(session)
    (workplace.folder / "copy.txt").write_bytes((workplace.folder / "data" / "text.txt").read_bytes())
    assert _measure(session, dataset="copy.txt").cached
    assert _measure(session, dataset=workplace.folder / "copy.txt").cached
    (workplace.folder / "copy.txt").write_text("another text")
    assert not _measure(session, dataset="copy.txt").cached
    assert loads == ["float"]


def test_weights_rewritten_in_place_are_measured_again(workplace: Any, loads: list[str]) -> None:
    first = _measure(workplace.session())
    weights = workplace.folder / "models" / "float" / "model.safetensors"
    status, data = weights.stat(), bytearray(weights.read_bytes())
    data[-1] ^= 0x80  # the sign of a weight
    time.sleep(0.02)
    with weights.open("r+b") as file:
        file.write(data)
    os.utime(weights, ns=(status.st_atime_ns, status.st_mtime_ns))
    second = _measure(workplace.session())
    assert not second.cached
    assert second.fingerprint != first.fingerprint
    assert loads == ["float", "float"]


def test_a_checkpoint_that_moved_is_the_same_checkpoint(workplace: Any, loads: list[str]) -> None:
    _measure(workplace.session())
    folder = workplace.folder / "models" / "float"
    folder.rename(folder.with_name("renamed"))
    assert _measure(workplace.session(), model="./models/renamed").cached


def test_refresh_measures_again_once_and_keeps_the_new_result(workplace: Any, loads: list[str]) -> None:
    first = _measure(workplace.session())
    session = workplace.session(refresh=True, run="one")
    assert [_measure(session).cached for _ in range(2)] == [False, True]
    assert _measure(workplace.session(refresh=True, run="one")).cached  # as another worker of the same session
    assert _measure(workplace.session()) == first
    assert loads == ["float", "float"]


def test_refresh_measures_again_what_a_machine_with_a_fast_clock_measured(
    workplace: Any, loads: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    now = time.time()
    monkeypatch.setattr("pytest_lmgate.evaluate.lookup.time.time", lambda: now + 1e6)
    _measure(workplace.session())
    monkeypatch.undo()
    assert not _measure(workplace.session(refresh=True)).cached


def test_explaining_says_what_changed_since_the_nearest_measurement(workplace: Any) -> None:
    session = workplace.session(explain_cache=True)
    _measure(session)
    _measure(session)
    _measure(session, protocol=Protocol(max_length=16, stride=4))
    _measure(session, model="half")
    assert [(lookup.hit, lookup.changed) for lookup in session.evaluator.lookups] == [
        (False, ()),
        (True, ()),
        (
            False,
            ("protocol: protocol:sliding|max_length:16|stride:8 -> protocol:sliding|max_length:16|stride:4",),
        ),
        (False, ("dtype: auto -> bfloat16",)),
    ]
    again = workplace.session(explain_cache=True, refresh=True)
    _measure(again)
    assert again.evaluator.lookups[0].changed == ("nothing changed: measured again by --lmgate-refresh",)


def _bounded(session: Any, limit: float, **protocol: Any) -> Score:
    wanted = Protocol(max_length=16, stride=8, **protocol)
    return perplexity(session.evaluator, "float", "text", wanted, stop_above=limit)


@pytest.fixture
def one_by_one(workplace: Any) -> Any:
    """The workplace with one window to a batch, so that a measurement can stop between them."""
    file = workplace.folder / "lmgate.yaml"
    file.write_text(file.read_text().replace("{device: cpu}", "{device: cpu, batch_size: 1}"))
    return workplace


@pytest.mark.parametrize("unit", UNITS)
def test_a_limit_that_is_certainly_broken_stops_the_measurement_with_a_lower_bound(one_by_one: Any, unit: str) -> None:
    bound = _bounded(one_by_one.session(), 1.5, unit=unit)
    assert bound.details["at_least"] is True
    assert bound > 1.5
    assert not bound.cached
    assert (bound.stderr, bound.interval) == (None, None)
    assert _entries(one_by_one) == []
    session = one_by_one.session()
    whole = _measure(session, protocol=Protocol(max_length=16, stride=8, unit=unit))
    assert not whole.cached
    assert bound < whole
    # Once it is measured whole there is no need of a bound.
    judged = _bounded(session, 1.5, unit=unit)
    assert judged == whole
    assert "at_least" not in judged.details


def test_a_limit_that_holds_stops_nothing(one_by_one: Any) -> None:
    score = _bounded(one_by_one.session(), 1000.0)
    assert "at_least" not in score.details
    assert score == _measure(one_by_one.session(cache=one_by_one.folder / "elsewhere"))
    assert len(_entries(one_by_one)) == 1


def test_a_mean_of_window_means_is_never_bounded(one_by_one: Any) -> None:
    score = _bounded(one_by_one.session(), 1.5, average="window")
    assert "at_least" not in score.details


def test_a_measurement_stopped_early_goes_on_where_it_was_and_ends_the_same(one_by_one: Any) -> None:
    elsewhere = _measure(one_by_one.session(cache=one_by_one.folder / "elsewhere"))
    _bounded(one_by_one.session(), 1.5)
    assert len(_entries(one_by_one, ".partial")) == 1
    progress: list[Any] = []
    session = one_by_one.session()
    session.evaluator.report = progress.append
    whole = _measure(session)
    assert whole == pytest.approx(elsewhere, rel=1e-12)
    assert progress[0].resumed > 0
    assert _entries(one_by_one, ".partial") == []


def test_a_spoiled_entry_is_measured_again_with_a_warning(workplace: Any, loads: list[str]) -> None:
    first = _measure(workplace.session())
    (entry,) = _entries(workplace)
    entry.write_bytes(entry.read_bytes()[:-7])
    session = workplace.session()
    second = _measure(session)
    assert (second, second.cached) == (first, False)
    assert len(session.warnings) == 1
    assert _measure(workplace.session()).cached


def test_a_well_sealed_entry_without_its_arrays_is_measured_again_with_a_warning(
    workplace: Any, loads: list[str]
) -> None:
    first = _measure(workplace.session())
    (entry,) = _entries(workplace)
    body = read_sealed(entry)
    header = json.loads(body[8 : 8 + int.from_bytes(body[:8], "little")])
    fingerprint = Fingerprint.parse(header["__metadata__"]["fingerprint"])
    Store(workplace.folder / ".lmgate_cache", print).put(fingerprint, Entry({}, {}))
    session = workplace.session()
    second = _measure(session)
    assert (second, second.cached) == (first, False)
    (warning,) = session.warnings
    said = "cannot be trusted: it is no measurement of float on text (KeyError('window_targets')); set aside as "
    assert said in warning


def test_a_cache_that_cannot_be_written_changes_no_score(workplace: Any) -> None:
    first = _measure(workplace.session(cache=workplace.folder / "elsewhere"))
    (workplace.folder / ".lmgate_cache").write_text("in the way")
    session = workplace.session()
    assert _measure(session) == first
    assert session.warnings


def test_the_generic_way_in_measures_the_same(workplace: Any) -> None:
    session = workplace.session()
    what = parse_fixture_call("bpb_of", ("float", "text"), {"max_length": 16, "stride": 8})
    assert session.evaluator.evaluate(what) == perplexity(
        session.evaluator, "float", "text", Protocol(max_length=16, stride=8, unit="bits_per_byte"), metric="bpb"
    )


@pytest.mark.parametrize(
    ("model", "dataset", "protocol", "error", "message"),
    [
        ("flaot", "text", PROTOCOL, ConfigError, "model 'flaot' is not known"),
        ("float", "txet", PROTOCOL, ConfigError, "dataset 'txet' is not known"),
        ("./gone", "text", PROTOCOL, ModelError, "no such folder"),
        ("float", "gone.txt", PROTOCOL, DataError, "no such file or folder"),
        (
            "float",
            "text",
            Protocol(max_length=33),
            ProtocolError,
            "33 is longer than the context of the model 'float', 32",
        ),
        ("float", ["a"], PROTOCOL, DataError, "1 token, but protocol 'sliding' needs at least 2"),
        ("float", ["a", "b"], Protocol("document"), DataError, "no target to score under protocol:document"),
        ("float", ["a \n", ""], PROTOCOL, DataError, "no target to score under .* that is not white space"),
        (
            "float",
            "text",
            Protocol("llama.cpp"),
            ProtocolError,
            "512 \\(the default of protocol 'llama.cpp'\\) is longer",
        ),
    ],
)
def test_what_cannot_be_measured_is_an_error_and_leaves_no_entry(
    workplace: Any, model: Any, dataset: Any, protocol: Protocol, error: type[LmgateError], message: str
) -> None:
    with pytest.raises(error, match=message):
        _measure(workplace.session(), model, dataset, protocol)
    assert _entries(workplace) == []


_CACHED = """
import sys
from pathlib import Path
if sys.argv[2] == "without":
    sys.modules["torch"] = sys.modules["transformers"] = sys.modules["datasets"] = None  # importing them raises
from pytest_lmgate.config.file import load_project
from pytest_lmgate.config.options import Options
from pytest_lmgate.spec.gates import EvaluationSpec
from pytest_lmgate.spec.protocol import Protocol
from pytest_lmgate.evaluate.evaluator import Evaluator
folder = Path(sys.argv[1])
evaluator = Evaluator(load_project(folder), Options(cache=folder / ".lmgate_cache"))
score = evaluator.evaluate(EvaluationSpec("ppl", "float", "text", Protocol(max_length=16, stride=8)))
print(score.cached, repr(score.value))
"""


def test_another_process_finds_it_without_torch(workplace: Any) -> None:
    first = _measure(workplace.session())
    command = [sys.executable, "-c", _CACHED, str(workplace.folder), "without"]
    run = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (run.stdout, run.stderr) == (f"True {first.value!r}\n", "")
