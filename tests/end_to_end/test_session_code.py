"""What a session puts in the place of a library's code is part of an address, and importing a library is not."""

from __future__ import annotations

import json
from pathlib import Path

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


def _run(project: Project, conftest: str) -> tuple[float, bool]:
    project.write(conftest=COUNT_MEASUREMENTS + conftest, test_gate=GATE_OF_SURE)
    outcome = project.run("--lmgate-explain-cache", "--lmgate-report", "json:report.json", fresh=True).expect(
        0, passed=1
    )
    (gate,) = project.report()["gates"]
    if not gate["cached"]:
        outcome.says("miss, session code: ")
        assert outcome.out.count(" -> ") == 1, outcome.out
    return gate["value"], gate["cached"]


def test_patched_and_registered_code_is_measured_for_itself_and_the_plain_model_is_found_again(
    measured: Project,
) -> None:
    plain, cached = _run(measured, IMPORT)
    assert cached, "importing is no change"
    patched, cached = _run(measured, PATCH)
    assert not cached
    assert _run(measured, PATCH) == (patched, True)
    registered, cached = _run(measured, REGISTER)
    assert not cached
    assert len({plain, patched, registered}) == 3
    assert measured.measured == ["sure"] * 2
    assert _run(measured, PLAIN) == (plain, True)


SETTINGS = """
    import os
    import types
    import transformers

    SETTINGS = types.SimpleNamespace(scale=float(os.environ["SCALE"]))
    plain = transformers.LlamaForCausalLM.forward

    def forward(self, *args, **kwargs):
        output = plain(self, *args, **kwargs)
        output.logits = output.logits * SETTINGS.scale
        return output

    transformers.LlamaForCausalLM.forward = forward
"""
CACHED = """
    import functools
    import os
    import transformers.models.llama.modeling_llama as llama

    space = {"functools": functools}
    exec(f"@functools.lru_cache\\ndef rotate_half(x): return x * {os.environ['SCALE']}", space)
    llama.rotate_half = space["rotate_half"]
"""


def test_what_a_patch_looks_up_and_what_it_is_wrapped_in_is_seen(project: Project) -> None:
    for conftest in (SETTINGS, CACHED):
        project.write(conftest=conftest, test_gate=GATE_OF_SURE)
        found = []
        for scale in ("1", "0.5", "0.5"):
            project.run("--lmgate-report", "json:report.json", env={"SCALE": scale}, fresh=True).expect(0, passed=1)
            (gate,) = project.report()["gates"]
            found.append((gate["value"], gate["cached"]))

        assert [cached for _, cached in found] == [False, False, True], found
        assert found[1][0] == found[2][0]
        assert conftest is CACHED or found[0][0] != found[1][0]


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


def test_a_module_of_the_projects_own_that_a_model_runs_through_is_seen_when_it_is_edited(
    project: Project, models: Path
) -> None:
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
    for conftest, gate in ((USES, GATE_OF_SURE), ("", GATE_OF_SURE.replace("'sure'", "'remote'"))):
        project.write(conftest=conftest, test_gate=gate)
        found = []
        for scale in ("1.0", "0.5", "0.5"):
            (package / "ops.py").write_text(f"def scale(logits):\n    return logits * {scale}\n")
            env = {"PYTHONPATH": str(project.folder), "HF_HOME": str(project.folder / "home"), "HF_HUB_OFFLINE": "1"}
            project.run("--lmgate-report", "json:report.json", env=env, fresh=True).expect(0, passed=1)
            (row,) = project.report()["gates"]
            found.append((row["value"], row["cached"]))

        assert [cached for _, cached in found] == [False, False, True], found
        assert found[1][0] == found[2][0] != found[0][0]
