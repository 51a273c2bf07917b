"""A session that patches a library measures for itself, keeps nothing and says so; importing a library is no patch."""

import json
from pathlib import Path

from tests.end_to_end.projects import COUNT_MEASUREMENTS, GATE, Project

PATCH = """
    from transformers.models.llama import modeling_llama

    modeling_llama.LlamaRMSNorm.forward = lambda self, states: states * 0.5
"""
IMPORT = """
    from transformers.models.llama import modeling_llama
"""
GATE_OF_SURE = GATE.replace("'die'", "'sure'").replace("60.5", "1e300")
NOT_KEPT = "not kept, measured again in each session: sure (this session patched "
WAY_OUT = 'give the model a revision that you change with its code: lmgate.model(..., revision="1"), or revision:'


def _run(project: Project, conftest: str, *says: str) -> tuple[float, bool]:
    project.write(conftest=COUNT_MEASUREMENTS + conftest, test_gate=GATE_OF_SURE)
    outcome = project.with_torch.run("--lmgate-explain-cache", "--lmgate-report=json:report.json").expect(0, passed=1)
    outcome.says(*says)
    if not says:
        outcome.is_silent_on("not kept")
    (gate,) = project.report()["gates"]
    return gate["value"], gate["cached"]


def test_patched_sessions_measure_for_themselves_and_the_plain_model_is_found_again(measured: Project) -> None:
    entries = measured.entries
    measured.write(conftest=PATCH, test_gate=GATE_OF_SURE, test_other=GATE)
    outcome = measured.with_torch.run("-n", "2").expect(0, passed=2)
    (line,) = (line for line in outcome.out.splitlines() if line.startswith("not kept"))
    assert (line.count("this session patched"), line.count(WAY_OUT)) == (2, 1)
    (measured.folder / "test_other.py").unlink()
    why = (NOT_KEPT, "LlamaRMSNorm.forward is conftest.<lambda>", WAY_OUT, "miss, not kept: this session patched ")
    patched, cached = _run(measured, PATCH, *why)
    assert not cached
    assert measured.measured == ["sure"]
    assert measured.entries == entries
    assert measured.partials == []
    plain, cached = _run(measured, IMPORT)
    assert cached, "importing is no change"
    assert plain != patched
    # A revision keeps them.
    measured.change("/sure}", "/sure, revision: '1'}")
    assert [_run(measured, PATCH) for _ in range(2)] == [(patched, False), (patched, True)]


REMOTE = """
from transformers import LlamaForCausalLM
from ourlib.ops import scale


class Scaled(LlamaForCausalLM):
    def forward(self, *args, **kwargs):
        output = super().forward(*args, **kwargs)
        output.logits = scale(output.logits)
        return output
"""


def test_a_model_with_code_of_its_own_is_kept_only_with_a_revision(project: Project, models: Path) -> None:
    remote = project.model("remote", models / "sure")
    config = json.loads((remote / "config.json").read_text())
    config["auto_map"] = {"AutoModelForCausalLM": "modeling_scaled.Scaled"}
    (remote / "config.json").write_text(json.dumps(config))
    (remote / "modeling_scaled.py").write_text(REMOTE)
    package = project.folder / "ourlib"
    package.mkdir()
    (package / "__init__.py").touch()
    project.add("models", remote="path: remote, trust_remote_code: true")
    project.write(test_gate=GATE_OF_SURE.replace("'sure'", "'remote'"))
    (package / "ops.py").write_text("def scale(logits):\n    return logits * 0.5\n")
    env = {"HF_HOME": str(project.folder / "home"), "HF_HUB_OFFLINE": "1"}
    says = (
        "not kept, ",
        "it runs code of its own (modeling_scaled.py), whose imports are not part of the cache key",
        WAY_OUT,
    )
    project.run(env=env).expect(0, passed=1).says(*says)
    assert project.entries == []
    project.change("trust_remote_code: true}", "trust_remote_code: true, revision: '1'}")
    project.run(env=env).expect(0, passed=1)
    project.run(env=env).expect(0, passed=1).says("cached")
    (remote / "modeling_scaled.py").write_text(REMOTE.replace("scale(output.logits)", "output.logits"))
    project.run(env=env).expect(0, passed=1).is_silent_on("cached")
