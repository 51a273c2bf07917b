"""Models of vLLM gated in real pytest processes: numbers, the cache, resuming, errors, and no process left behind."""

import signal
from importlib.util import find_spec
from pathlib import Path

import pytest

from pytest_lmgate.engines.vllm.process import VllmProcess
from pytest_lmgate.errors import EngineError
from tests.engines.projects import (
    OPTIONS,
    Project,
    interrupted,
    ppl,
    require_kept,
    require_refusals,
    require_sampled_kl,
    require_twins,
    twin_gates,
    watched,
)

# The session itself never imports vLLM.
pytestmark = pytest.mark.skipif(
    find_spec("vllm") is None, reason="vLLM is NOT installed; make test-vllm runs these tests"
)

RUNNER = "pytest_lmgate.engines.vllm.process:VllmRunner"
# Notes the processes of vLLM too, of which none may be left.
WATCHED = watched(
    RUNNER,
    and_then="""
    from pytest_lmgate.engines.vllm.process import VllmProcess

    start = VllmProcess.__init__

    def started(self, name, environment):
        start(self, name, environment)
        with (here / "processes.txt").open("a") as file:
            file.write(f"{self._process.pid}\\n")

    VllmProcess.__init__ = started

    def pytest_sessionfinish():
        import sys
        assert "vllm" not in sys.modules
    """,
)


def is_running(process: int) -> bool:
    try:
        return "python" in Path(f"/proc/{process}/cmdline").read_text()
    except OSError:
        return False


def test_every_metric_is_that_of_the_float_model_and_is_kept(project: Project) -> None:
    (project.folder / "conftest.py").write_text(WATCHED)
    gates = twin_gates("float", "vllm")
    gates += ["no_regression: {metric: ppl, model: vllm, dataset: text, tolerance: 0.1%, against: float}"]
    said = project.run(gates, PYTEST_ADDOPTS="-n 2 -W error")
    assert project.status == 0, said
    require_twins(project, "vllm")
    # vLLM says pages on both; progress is our own.
    assert not [line for line in project.stderr.splitlines() if line and not line.startswith("lmgate: ")]
    assert "INFO" not in said
    processes = [int(line) for line in (project.folder / "processes.txt").read_text().split()]
    assert processes
    assert not any(map(is_running, processes))

    require_kept(project, gates, RUNNER)


def test_a_sampled_divergence_from_transformers_finds_damaged_weights(project: Project) -> None:
    require_sampled_kl(project, "vllm", "damaged", {"damaged": "{path: {files}/damaged, backend: vllm}"})


def test_an_interrupted_measurement_goes_on_where_it_was(project: Project) -> None:
    (project.folder / "conftest.py").write_text(WATCHED)
    parts, whole = interrupted(project, "{path: {files}/float, backend: vllm, batch_size: 2}", after=3)
    assert sum(map(int, parts)) == sum(map(int, whole)), "no request was scored twice"


def test_a_process_that_dies_is_one_clear_sentence() -> None:
    process = VllmProcess("m", {})
    process._process.send_signal(signal.SIGKILL)
    with pytest.raises(EngineError, match=r"^model 'm': .* has ended by the signal SIGKILL \(probably"):
        process.ask("open", device="cpu", options={})
    process.close()
    assert not is_running(process._process.pid)


KILLED = watched(
    RUNNER,
    and_then="""
    def killed(self, requests):
        module.VllmRunner.begin = begin
        self._process._process.kill()
        return begin(self, requests)

    module.VllmRunner.begin = killed
    """,
)


def test_a_process_that_was_killed_is_started_again_for_the_next_gate(project: Project) -> None:
    (project.folder / "conftest.py").write_text(KILLED)
    said = project.run([ppl("vllm", OPTIONS[2]), ppl("vllm", OPTIONS[1])])
    assert project.status == 1, said
    assert said.count("the process of vLLM has ended by the signal SIGKILL") >= 1
    assert "2 gates: 1 pass, 1 error" in said


def test_the_process_ends_with_the_session() -> None:
    process = VllmProcess("m", {})
    process._process.stdin.close()
    assert process._process.wait(300) == 0
    process.close()


REFUSED = [
    ("{path: {files}/float, backend: vllm, dtype: float64}", "models.NAME.dtype: vLLM computes in float32, bfloat16"),
    (
        "{path: {files}/float, backend: vllm, adapter: a}",
        "models.NAME.adapter: the engine vllm does not support it: merge",
    ),
    ("{path: {files}/float, backend: vllm, load: {dtype: half}}", "models.NAME.load.dtype: put dtype: next to load:"),
    ("{path: {files}/float, backend: vllm, load: {seed: 1}}", "models.NAME.load.seed: the engine sets it"),
    (
        "{path: {files}/float, backend: vllm, load: {speculative_config: {model: a}}}",
        "models.NAME.load.speculative_config: it adds a model or code",
    ),
    ("{path: {files}/float, backend: vllm, load: {max_model_len: 2k}}", "expected a whole number from 1, got '2k'"),
    ("{path: {files}/nowhere, backend: vllm}", "model 'NAME': no such folder:"),
    ("{backend: vllm}", "models.NAME: the engine vllm expects path: or hub:"),
]
FAILING = [
    ("{path: {files}/strange, backend: vllm}", "architectures ['StrangeForCausalLM'] are not supported"),
    ("{path: {files}/small-heads, backend: vllm}", "head_dim=16"),
    ("{path: {files}/float, backend: vllm, load: {max_model_length: 9}}", "unexpected keyword argument"),
    ("{path: {files}/float, backend: vllm, load: {max_model_len: 4096}}", "is greater than the derived max_model_len"),
    (
        "{path: {files}/float, backend: vllm, load: {kv_cache_memory_bytes: 1000}}",
        "No available memory for the cache blocks",
    ),
    ("{path: {files}/float, backend: vllm, device: cuda}", "this build of vLLM runs on cpu, but the device is cuda"),
]


def messages_of(project: Project, entries: list[str]) -> str:
    models = {f"x{number}": entry for number, entry in enumerate(entries)}
    said = project.run([ppl(name) for name in models], models, PYTEST_ADDOPTS="-n 2")
    assert project.status == 1, said
    assert f"{len(entries)} error" in said or f"{len(entries)} failed" in said
    assert "Traceback" not in said
    return said


def test_a_wrong_entry_is_one_clear_sentence(project: Project) -> None:
    said = messages_of(project, [entry for entry, _ in REFUSED])
    for number, (_, message) in enumerate(REFUSED):
        assert message.replace("NAME", f"x{number}") in said


def test_what_vllm_cannot_run_is_one_clear_sentence(project: Project) -> None:
    said = messages_of(project, [entry for entry, _ in FAILING])
    for number, (_, message) in enumerate(FAILING):
        assert f"model 'x{number}': vLLM " in said
        assert message in said


def test_what_vllm_does_not_offer_is_one_clear_sentence(project: Project) -> None:
    require_refusals(project, "vllm", compares=False)


def test_a_missing_package_says_what_to_install(project: Project) -> None:
    (project.folder / "conftest.py").write_text("import sys\nsys.modules['vllm'] = None\n")
    said = project.run([ppl("vllm")])
    assert project.status == 1
    assert "pip install 'pytest-lmgate[vllm]'" in said
