"""A session that patches a library measures for itself, keeps nothing and says so; importing a library is no patch."""

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
