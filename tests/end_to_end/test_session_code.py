"""A session that patches a library measures for itself, keeps nothing and says so; importing a library is no patch."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.end_to_end.projects import COUNT_MEASUREMENTS, GATE, Project

PATCH = """
    from transformers.models.llama import modeling_llama

    modeling_llama.LlamaRMSNorm.forward = lambda self, states: states * 0.5
"""
REGISTER = """
    import transformers

    class Halved(transformers.LlamaForCausalLM):
        def forward(self, *args, **kwargs):
            output = super().forward(*args, **kwargs)
            output.logits = output.logits * 0.5
            return output

    transformers.AutoModelForCausalLM.register(transformers.LlamaConfig, Halved, exist_ok=True)
"""
IMPORT = """
    import peft
    import transformers
    from transformers.models.llama import modeling_llama
"""
PLAIN = """
    import sys

    def pytest_sessionfinish():
        assert "torch" not in sys.modules
"""
GATE_OF_SURE = GATE.replace("'die'", "'sure'").replace("60.5", "1e300")
NOT_KEPT = "not kept, measured again in each session: sure (this session patched "
WAY_OUT = 'give the model a revision that you change with its code: lmgate.model(..., revision="1"), or revision:'


def _run(project: Project, conftest: str, *says: str) -> tuple[float, bool]:
    project.write(conftest=COUNT_MEASUREMENTS + conftest, test_gate=GATE_OF_SURE)
    plain = conftest == PLAIN
    outcome = project.run("--lmgate-explain-cache", "--lmgate-report=json:report.json", fresh=plain, early=not plain)
    outcome.expect(0, passed=1)
    outcome.says(*says)
    if not says:
        outcome.is_silent_on("not kept")
    (gate,) = project.report()["gates"]
    return gate["value"], gate["cached"]


def test_patched_sessions_measure_for_themselves_and_the_plain_model_is_found_again(measured: Project) -> None:
    entries = measured.entries
    plain, cached = _run(measured, IMPORT)
    assert cached, "importing is no change"
    patched, cached = _run(measured, PATCH, NOT_KEPT, "LlamaRMSNorm.forward is conftest.<lambda>", WAY_OUT)
    assert not cached
    assert _run(measured, PATCH, "miss, not kept: this session patched ") == (patched, False)
    registered, cached = _run(measured, REGISTER, NOT_KEPT, "Halved is registered in ")
    assert not cached
    assert len({plain, patched, registered}) == 3
    assert measured.measured == ["sure"] * 3
    assert measured.entries == entries
    assert measured.partials == []
    assert _run(measured, PLAIN) == (plain, True)


def test_a_revision_keeps_the_measurements_of_a_patched_session(measured: Project) -> None:
    named = (measured.folder / "lmgate.yaml").read_text()
    plain, _ = _run(measured, PLAIN)
    found = []
    for revision in ("1", "1", "2"):
        measured.write(lmgate_yaml=named.replace("/sure}", f"/sure, revision: '{revision}'}}"))
        found.append(_run(measured, PATCH))
    assert [cached for _, cached in found] == [False, True, False]
    assert len({value for value, _ in found}) == 1
    assert found[0][0] != plain
    # The same revision without the patch is another measurement.
    assert _run(measured, IMPORT) == (plain, False)


def test_gates_of_lmgate_yaml_share_a_measurement_that_is_not_kept(measured: Project) -> None:
    named = (measured.folder / "lmgate.yaml").read_text()
    gates = "".join(f"  - ppl_max: {{model: sure, dataset: words, limit: 1.0e+300, unit: {unit}}}\n" for unit in UNITS)
    measured.write(lmgate_yaml=f"{named}\ngates:\n{gates}", conftest=COUNT_MEASUREMENTS + PATCH)
    measured.run().expect(0, passed=2).says(NOT_KEPT)
    assert measured.measured == ["sure"]


UNITS = ("token", "word")


@pytest.mark.parametrize("arguments", [(), ("-n", "2")])
def test_the_summary_says_in_one_line_what_is_not_kept(measured: Project, arguments: tuple[str, ...]) -> None:
    measured.write(conftest=PATCH, test_gate=GATE_OF_SURE, test_other=GATE)
    outcome = measured.run(*arguments).expect(0, passed=2)
    (line,) = (line for line in outcome.out.splitlines() if line.startswith("not kept"))
    assert line.count("this session patched") == 2
    assert line.count(WAY_OUT) == 1


ATTACKS = """
    import functools

    import pytest
    import torch
    import transformers
    from pytest_lmgate import LmgateError
    from transformers.models.llama import modeling_llama
    from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

    PLAIN = transformers.LlamaForCausalLM.forward
    SETTINGS = {"scale": 0.5}

    def scaled(self, *args, **kwargs):
        output = PLAIN(self, *args, **kwargs)
        output.logits = output.logits * SETTINGS["scale"]
        return output

    class Mode(torch.overrides.TorchFunctionMode):
        def __torch_function__(self, function, types, args=(), kwargs=None):
            return function(*args, **(kwargs or {}))

    def attend(*args, **kwargs):
        return modeling_llama.eager_attention_forward(*args, **kwargs)

    def mode(patch, stack):
        Mode().__enter__()
        stack.append(lambda: torch.overrides._pop_mode())

    def local_table(patch, stack):
        ALL_ATTENTION_FUNCTIONS["sdpa"] = attend
        stack.append(lambda: ALL_ATTENTION_FUNCTIONS.__delitem__("sdpa"))

    TABLE = transformers.AttentionInterface._global_mapping
    TOKENIZER = transformers.PreTrainedTokenizerFast
    ATTACKS = {
        "sdpa": lambda patch, stack: patch.setitem(TABLE, "sdpa", attend),
        "sdpa, for all models": local_table,
        "__code__": lambda patch, stack: patch.setattr(
            modeling_llama.rotate_half, "__code__", (lambda x: x).__code__),
        "torch.matmul": lambda patch, stack: patch.setattr(torch, "matmul", lambda a, b: a @ b * 0.5),
        "torch.nn.functional.silu": lambda patch, stack: patch.setattr(
            torch.nn.functional, "silu", lambda x, inplace=False: x),
        "a TorchFunctionMode": mode,
        "a tokenizer's class": lambda patch, stack: patch.setattr(
            TOKENIZER, "_encode_plus", functools.wraps(TOKENIZER._encode_plus)(lambda *a, **k: 1 / 0)),
        "a method with settings": lambda patch, stack: patch.setattr(
            transformers.LlamaForCausalLM, "forward", functools.wraps(PLAIN)(scaled)),
    }

    @pytest.mark.parametrize("attack", ATTACKS)
    def test_attack(ppl_of, attack, monkeypatch):
        assert ppl_of("sure", "words").cached
        undo = []
        ATTACKS[attack](monkeypatch, undo)
        try:
            for _ in range(2):
                try:
                    assert not ppl_of("sure", "words").cached
                except LmgateError:  # the model is measured, and found to be none
                    pass
        finally:
            monkeypatch.undo()
            for each in undo:
                each()
        assert ppl_of("sure", "words").cached
"""


def test_no_common_way_to_patch_a_library_finds_the_plain_models_measurement(measured: Project) -> None:
    entries = measured.entries
    measured.write(test_attacks=ATTACKS)
    outcome = measured.run("-W", "ignore").expect(0, passed=8)
    outcome.says("not kept, measured again in each session: sure (this session patched ")
    assert measured.entries == entries


USES = """
    import transformers
    import ourlib.ops

    class Scaled(transformers.LlamaForCausalLM):
        def forward(self, *args, **kwargs):
            output = super().forward(*args, **kwargs)
            output.logits = ourlib.ops.scale(output.logits)
            return output

    transformers.AutoModelForCausalLM.register(transformers.LlamaConfig, Scaled, exist_ok=True)
"""
REMOTE = """
from transformers import LlamaForCausalLM
from ourlib.ops import scale


class Scaled(LlamaForCausalLM):
    def forward(self, *args, **kwargs):
        output = super().forward(*args, **kwargs)
        output.logits = scale(output.logits)
        return output
"""


def test_a_module_of_the_projects_own_that_a_model_runs_through_is_never_kept(project: Project, models: Path) -> None:
    remote = project.model("remote", models / "sure")
    config = json.loads((remote / "config.json").read_text())
    config["auto_map"] = {"AutoModelForCausalLM": "modeling_scaled.Scaled"}
    (remote / "config.json").write_text(json.dumps(config))
    (remote / "modeling_scaled.py").write_text(REMOTE)
    package = project.folder / "ourlib"
    package.mkdir()
    (package / "__init__.py").touch()
    project.write(
        lmgate_yaml=f"""
            models:
              sure: {{path: {models}/sure}}
              remote: {{path: remote, trust_remote_code: true}}
            datasets:
              words: {{path: {models}/words.txt}}
        """
    )
    # The checkpoint's code is imported by another session than the class that is registered.
    reasons = ("Scaled is registered in ", "modeling_scaled.py imports ourlib, which is not an installed package")
    for conftest, gate, reason in zip((USES, ""), ("'sure'", "'remote'"), reasons, strict=True):
        project.write(conftest=conftest, test_gate=GATE_OF_SURE.replace("'sure'", gate))
        found = []
        for scale in ("1.0", "0.5"):
            (package / "ops.py").write_text(f"def scale(logits):\n    return logits * {scale}\n")
            env = {"HF_HOME": str(project.folder / "home"), "HF_HUB_OFFLINE": "1"}
            outcome = project.run("--lmgate-report", "json:report.json", env=env).expect(0, passed=1)
            outcome.says("not kept, ", reason)
            (row,) = project.report()["gates"]
            found.append((row["value"], row["cached"]))

        assert [cached for _, cached in found] == [False, False], found
        assert found[0][0] != found[1][0]
    assert project.entries == []
