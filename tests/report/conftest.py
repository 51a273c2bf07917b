"""Verdicts to render."""

from pathlib import Path

import pytest
from msgspec.structs import replace

from pytest_lmgate.judge.attribution import Attribution, ChangeHistogram, Passage, TagChange, TokenChange
from pytest_lmgate.judge.result import (
    Bounded,
    Environment,
    FixtureCall,
    PastRun,
    PreviousBaseline,
    Results,
    Run,
    Verdict,
    WorstRow,
)
from pytest_lmgate.settings.gates import Tolerance
from pytest_lmgate.stats.comparison import Comparison

INFINITE = float("inf")
WORSE = "16 -> 17.6 (+10.00%), 5.5 standard errors, p 4e-08, allowed 0.025"


# 300 rows: 100 better in two bins, 190 worse in three, of which the last is open.
SPREAD = ChangeHistogram(
    "rows", "nats per token", 190, 10, 100, 0.01, -0.2, 5.0, 0.5, 1.0, -0.2, 0.1, (40, 60, 90, 60, 40)
)
# 200 rows, of which two are as the reference has them; the last bin is open.
DISTANCES = ChangeHistogram(
    "rows", "nats per token", 198, 2, 0, 0.004, 0.0, 0.25, 0.011, 0.032, 0.0, 0.01, (120, 60, 12, 6), "distance"
)
RUN = Run(
    project="owner/model", commit="0c0ffee1c0f0+", branch="main", date="2026-03-31T18:00:00Z", device="cuda",
    hardware="an accelerator", command="pytest -k quality",
)  # fmt: skip


def past_run(at: int) -> PastRun:
    """One of 31 runs, of which the 25th and those after it are worse."""
    verdict, value = ("fail", 17.6) if at >= 24 else ("pass", 16.0)
    kind, words = ("worse", WORSE) if at == 24 else ("same" if at else "first", "")
    date, interval = f"2026-03-{at + 1:02}T18:00:00Z", (value - 0.4, value + 0.4)
    return PastRun(date, f"{at:02}c0ffee1c0f", "main", verdict, value, interval, 16.8, kind, words)


PAST = [past_run(at) for at in range(31)]


@pytest.fixture(autouse=True)
def _wide_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "160")


@pytest.fixture
def failed() -> Verdict:
    return Verdict.unmeasured(
        id="tests/test_quality.py::test_quality::ppl_max[int8-wikitext2]", test="tests/test_quality.py::test_quality",
        marker="ppl_max", metric="ppl", model="int8", dataset="wikitext2", verdict="fail", value=18.15, limit=16.5,
        stderr=0.4567, interval=(17.25, 19.0625), n=283287, fingerprint="0123456789abcdef" * 4, seconds=12.34,
        signature="protocol:sliding|max_length:1024|stride:512|average:token|unit:token|version:0.1.0",
    )  # fmt: skip


@pytest.fixture
def passed(failed: Verdict) -> Verdict:
    return replace(failed, verdict="pass", value=16.0, interval=(15.5, 16.5), cached=True, seconds=0.01)


@pytest.fixture
def without_interval(failed: Verdict) -> Verdict:
    return replace(failed, value=20.0, stderr=None, interval=None)


@pytest.fixture
def unmeasured(failed: Verdict) -> Verdict:
    nothing = {"value": None, "stderr": None, "interval": None, "n": None, "signature": "", "fingerprint": ""}
    named = {"marker": "bpb_max", "metric": "bpb", "model": "gone"}
    message = "model 'gone': no such folder: models/gone; check models.gone.path"
    id_ = "tests/test_quality.py::test_quality::bpb_max[gone-wikitext2]"
    return replace(failed, id=id_, verdict="error", message=message, seconds=0.04, **named, **nothing)


@pytest.fixture
def compared(failed: Verdict) -> Verdict:
    values = {"candidate": 18.15, "reference": 16.5, "change": 0.1, "degradation": 0.1, "lower": 0.09, "upper": 0.11}
    comparison = Comparison(
        decision="fail", tolerance=Tolerance(0.01, relative=True), confidence=0.95, n=283287, clusters=40, **values,
        p_pass=1.0, p_fail=0.0001, bounds="hall", against="model 'fp16'", notes=("device: cpu then, cuda now",),
    )  # fmt: skip
    return replace(failed, marker="no_regression", comparison=comparison)


@pytest.fixture
def located(compared: Verdict) -> Verdict:
    """Worse in two documents and three tags, of which one got worse beyond noise."""
    sat = TokenChange("the cat ", "sat", " on the mat", 9.25, 1.25)
    on = TokenChange("the cat sat ", "on", " the mat", 2.5, 0.5)
    passages = (Passage("row 17", 5, 10.0, "the cat sat on the mat", (sat, on)), Passage("row 3", 4, 2.0, "a dog ran"))
    tags = (
        TagChange("language", "ko", 10, 24.0, 20.0, 0.2, 0.15, 0.25),
        TagChange("language", "en", 30, 16.5, 16.5, 0.0, -0.01, 0.01),
        TagChange("language", "fr", 2, problem="no target of these rows was scored"),
    )
    return replace(compared, where=Attribution(passages=passages, tags=tags, more_tags=4, notes=("a note",)))


@pytest.fixture
def results(
    passed: Verdict, failed: Verdict, without_interval: Verdict, unmeasured: Verdict, compared: Verdict,
    located: Verdict, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
) -> Results:  # fmt: skip
    """A verdict of every kind, what a fixture measured, and the runs before."""
    monkeypatch.chdir(tmp_path)
    assert compared.comparison is not None
    open_above = replace(compared.comparison, decision="inconclusive", upper=INFINITE, detectable=None, needed=10)
    without = replace(open_above, lower=None, upper=None, bounds=None, reason="1 cluster")
    verdicts = [
        replace(passed, direction="lower", device="cuda", identity={"data": "0a", "protocol": "sliding"}),
        replace(
            failed, interval=(17.25, INFINITE), worst=(WorstRow(3, 0.5, "say it", "a | b", "c"),), file="t.py", line=7
        ),
        replace(without_interval, arguments=("--lmgate-device=cpu",)),
        unmeasured,
        replace(compared, spread=SPREAD),
        replace(compared, verdict="inconclusive"),
        replace(compared, verdict="inconclusive", blocking=True, comparison=open_above),
        replace(compared, verdict="inconclusive", comparison=without),
        replace(
            passed, limit=None, marker="no_regression", message="anew", previous=PreviousBaseline(16.5, problem="x")
        ),
        replace(failed, verdict="inconclusive", bounded=Bounded(0.95, -INFINITE, 19.0, "hall", 40, "rows", 1000)),
        replace(failed, iid=True, details={"reference": "fp16", "Mean KLD": 0.02, "Median KLD": 0.01, "df": None}),
        replace(passed, marker="kl_max", metric="kl", spread=DISTANCES),
        located,
        replace(compared, where=Attribution()),
    ]
    verdicts = [replace(each, id=f"{each.id}#{number}") for number, each in enumerate(verdicts)]
    unknown = replace(PAST[3], value=None, interval=(1.0, INFINITE), limit=None, kind="unknown", words="why")
    verdicts[0] = replace(verdicts[0], history=tuple(PAST[:5]))
    verdicts[2] = replace(verdicts[2], xfail=True)
    verdicts[4] = replace(verdicts[4], history=(unknown, *PAST[1:]))
    score = {"metric": "ppl", "model": "m", "dataset": "d", "value": 2.0, "stderr": 0.1, "interval": (1.9, INFINITE)}
    facts = {"n": 9, "unit": "token", "signature": "s", "fingerprint": "f", "cached": True, "seconds": 0.1}
    measured = FixtureCall(test="t.py::t", fixture="ppl_of", **score, **facts)
    told = {"problems": ("lost",), "remarks": ("odd",)}
    environment = Environment("3.11.7", "Linux-6", "x86_64", {"torch": "2.13.0", "numpy": "absent"})
    return Results(run=RUN, verdicts=tuple(verdicts), measured=(measured,), environment=environment, **told)
