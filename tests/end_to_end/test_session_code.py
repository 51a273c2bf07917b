"""What a session puts in the place of a library's code is part of an address, and importing a library is not."""

from __future__ import annotations

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
    outcome = project.run("--lmgate-explain-cache", "--lmgate-report", "json:report.json").expect(0, passed=1)
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
