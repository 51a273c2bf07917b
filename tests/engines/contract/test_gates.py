"""Gates of every engine: the cache, what addresses hold, a crash half way, a session of its own, refusals."""

import json
import os
import sys
from importlib import import_module
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pytest_lmgate.errors import EngineError, LmgateError
from pytest_lmgate.measure import loop
from pytest_lmgate.settings.decoding import parse_fixture_call
from tests.engines.contract.bench import ROWS, Bench, copied, write_data
from tests.engines.contract.engines import Entry
from tests.engines.projects import CONTEXT, Project, warm

SLIDING: dict[str, Any] = {"max_length": 96, "stride": 32}
CHOICES = parse_fixture_call("accuracy_of", ("model", "quiz"), {})


def runner_class(bench: Bench) -> Any:
    module, _, name = bench.engine.runner.partition(":")
    return getattr(import_module(module), name)


def is_kept(bench: Bench, entry: Entry) -> bool:
    """Return whether a session would find a measurement of an entry, without opening its model."""
    other = bench.evaluator({"model": entry}, cache=bench.cache)
    lookup, _ = other.measurements.planned(other.cached_statistics(CHOICES)[0])
    return lookup.hit


def test_other_weights_and_options_that_change_numbers_are_measured_anew(bench: Bench, tmp_path: Path) -> None:
    bench.value("accuracy_of", "exact", "quiz")
    entry = bench.entry()
    assert is_kept(bench, entry)
    mine, copy = copied(entry, tmp_path / "mine")
    assert is_kept(bench, mine), "where a model lies is no part of it"
    if "path" in entry:  # of others a broken tokenizer is all that could be damaged here
        weights = [each for each in copy.parent.rglob("*") if each.suffix in (".gguf", ".onnx", ".safetensors")]
        file = max(weights, key=lambda each: each.stat().st_size)
        content = file.read_bytes()
        file.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
        assert not is_kept(bench, mine)
    assert is_kept(bench, {**entry, "load": {**entry.get("load", {}), **bench.engine.silent}})
    assert not is_kept(bench, {**entry, "load": {**entry.get("load", {}), **bench.engine.audible}})
    assert not is_kept(bench, {**entry, "revision": "2"})


def test_the_address_holds_the_library_and_the_class_of_the_device(bench: Bench) -> None:
    runtime = bench.described(bench.entry()).runtime
    assert version(bench.engine.library) in " ".join(runtime.values())
    assert runtime["device"] == next((each for each in ("server", "command") if each in bench.entry()), "cpu")


@pytest.mark.needs("windows")
def test_after_a_crash_the_rest_is_measured_with_the_same_numbers(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    how: dict[str, Any] = {"protocol": "sliding", "max_length": 32, "stride": 32}
    cls, begun = runner_class(bench), list[int]()
    is_served = "server" in bench.entry()  # of which a batch is what is on its way at once
    begin, crashes_at = cls.begin, 1 if is_served else 5

    def counted(self: Any, requests: Any) -> Any:
        if len(begun) == crashes_at:
            raise RuntimeError("the machine is gone")
        begun.append(len(requests))
        return begin(self, requests)

    monkeypatch.setattr(cls, "begin", counted)
    monkeypatch.setattr(loop, "SAVE_SECONDS", 0.0)  # every partial result is kept at once
    for name, value in {"is_tried": True, "rereads": False}.items():  # no request but those of the measurement
        monkeypatch.setattr(cls, name, value)
    entry = bench.entry() if is_served else bench.entry(batch_size=2)
    with pytest.raises(EngineError, match="the machine is gone"):
        bench.value("ppl_of", entry, "text", **how)
    crashes_at = -1
    _, statistics = bench.measure("ppl_of", entry, "text", **how)

    windows = sum(1 for _ in bench.oracle.windows("sliding", ROWS, 32, 32))
    assert windows <= sum(begun) < windows + 6, "at most the trials before the first batch run again"
    assert np.abs(statistics.nll - bench.oracle.nlls("sliding", ROWS, 32, 32)).max() < bench.engine.rounding


def test_gates_pass_in_a_session_of_their_own_which_keeps_them_and_fail_by_damaged_weights(
    bench: Bench, tmp_path: Path
) -> None:
    names = ["exact"] if "damaged" in bench.engine.lacks else ["exact", "damaged"]
    entries = {name: json.dumps(bench.entry(name)) for name in names}
    is_vllm = bench.engine.leg == "vllm"
    python, path = (sys.executable, os.defpath) if is_vllm else (warm(), "")  # vLLM looks for the program lscpu
    project = Project(tmp_path, tmp_path, entries, python=python, environment={"PATH": path})
    write_data(tmp_path)
    gates = ["accuracy_min: {model: exact, dataset: quiz, limit: 0.001}"]
    if "writes" not in bench.engine.lacks:
        gates += ["chrf_min: {model: exact, dataset: news, limit: 0.001, max_new_tokens: 8}"]
    if "compare" not in bench.engine.lacks:
        gates += ["kl_max: {model: exact, reference: float, dataset: text, limit: 0.000001, max_length: 128}"]
    if "windows" not in bench.engine.lacks:
        limit = 1.001 * bench.value("ppl_of", "exact", "text", **SLIDING)
        ppl = f"ppl_max: {{model: MODEL, dataset: text, limit: {limit}, max_length: 96, stride: 32}}"
        gates += [ppl.replace("MODEL", name) for name in names]
    float_ = {"float": json.dumps(bench.reference())}
    said = project.run(gates, float_)
    verdicts = ["fail" if "damaged" in gate else "pass" for gate in gates]
    assert project.verdicts == verdicts, said
    # Libraries say pages; progress is our own.
    assert not [line for line in project.stderr.splitlines() if line and not line.startswith("lmgate: ")]
    module, _, name = bench.engine.runner.partition(":")
    (tmp_path / "conftest.py").write_text(
        f"from {module} import {name} as Runner\n"
        "def measure(*_): raise RuntimeError('measured again')\n"
        "Runner.__init__ = Runner.begin = Runner.score = Runner.distributions = Runner.generate = measure\n"
    )
    said = project.run([gate for gate in gates if "reference" not in gate], float_)
    assert project.verdicts == [verdict for verdict, gate in zip(verdicts, gates, strict=True) if "ref" not in gate], (
        said
    )


def refusals(bench: Bench) -> list[tuple[str, dict[str, Any], str]]:
    """Return what an engine of causal models has to refuse: a fixture, its arguments and the reason."""
    honours, lacks = bench.described(bench.entry()).honours, bench.engine.lacks
    found: list[tuple[str, dict[str, Any], str]] = [
        ("ppl_of", {"dataset": "text", "max_length": CONTEXT + 1}, f"{CONTEXT} tokens"),
        ("pppl_of", {"dataset": "text"}, "undefined for the causal model"),
    ]
    if "writes" in lacks:
        found.append(("bleu_of", {"dataset": "news", "max_new_tokens": 4}, "its engine does not generate texts"))
    else:
        how = {"dataset": "news", "max_new_tokens": CONTEXT}
        found.append(("bleu_of", how, f"context of {CONTEXT} tokens"))
    if "num_beams" not in honours and "writes" not in lacks:
        how = {"dataset": "news", "max_new_tokens": 4, "num_beams": 2}
        found.append(("bleu_of", how, "num_beams: the engine of the model 'model' does not support it"))
    if "compare" in lacks:
        found.append(("kl_of", {"dataset": "text", "reference": bench.reference()}, "is not possible with the model"))
    if "sample" in lacks:
        reason = "does not give the tokens" if "writes" in lacks else "have another engine write the texts"
        found.append(("self_kl_of", {"dataset": "news", "max_new_tokens": 4}, reason))
    if "windows" in lacks:
        found.append(("ppl_of", {"dataset": "text", **SLIDING}, "its server takes text, not token ids"))
    if "bos" in lacks:
        found.append(("ppl_of", {"dataset": "text", "protocol": "lm-eval"}, "the first token after a BOS"))
    return found


def test_what_an_engine_does_not_offer_is_one_clear_error(bench: Bench) -> None:
    for fixture, how, reason in refusals(bench):
        with pytest.raises(LmgateError) as refused:
            bench.measure(fixture, "exact", how.pop("dataset"), **how)
        assert reason in str(refused.value)


def test_what_the_engine_says_that_it_offers_is_what_the_contract_tests(bench: Bench) -> None:
    offered = {"score": "", "generate": "writes", "compare": "compare", "greedy": "greedy", "sample": "sample"}
    model = bench.described(bench.entry())
    assert model.offers == {offer for offer, case in offered.items() if case not in bench.engine.lacks} | (
        {"sample"} if "server" in bench.entry() else set()
    )
    assert model.kind == "causal"
    assert model.context == CONTEXT
