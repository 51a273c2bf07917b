"""The process that runs vLLM: how it ends, that a killed one is started again, and what vLLM itself refuses."""

import signal
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import pytest

from pytest_lmgate.engines.vllm.process import VllmProcess
from pytest_lmgate.errors import EngineError, LmgateError
from tests.engines.contract.bench import Bench
from tests.engines.contract.engines import BY_NAME

# The session itself never imports vLLM.
pytestmark = pytest.mark.skipif(
    find_spec("vllm") is None, reason="vLLM is NOT installed; make test-vllm runs these tests"
)


@pytest.fixture(scope="module")
def bench(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bench]:
    found = Bench(BY_NAME["vllm"], tmp_path_factory.getbasetemp(), tmp_path_factory.mktemp("vllm"))
    yield found
    found.close()


def is_running(process: int) -> bool:
    try:
        return "python" in Path(f"/proc/{process}/cmdline").read_text()
    except OSError:
        return False


def test_a_process_that_dies_is_one_clear_sentence_and_none_outlives_its_session() -> None:
    process = VllmProcess("m", {})
    process._process.send_signal(signal.SIGKILL)
    with pytest.raises(EngineError, match=r"^model 'm': .* was killed by SIGKILL \(probably"):
        process.ask("open", device="cpu", options={})
    process.close()
    assert not is_running(process._process.pid)
    process = VllmProcess("m", {})
    assert process._process.stdin is not None
    process._process.stdin.close()
    assert process._process.wait(300) == 0
    process.close()


def test_a_process_that_was_killed_is_started_again_for_the_next_gate(bench: Bench) -> None:
    expected = bench.value("ppl_of", "exact", "text", max_length=64, stride=64)
    killed = bench.runner()._process._process
    killed.kill()
    with pytest.raises(EngineError, match="the process of vLLM was killed by SIGKILL"):
        bench.value("ppl_of", "exact", "text", max_length=96, stride=96)
    assert bench.value("accuracy_of", "exact", "quiz") > 0
    again = bench.runner()._process._process
    assert again.pid != killed.pid
    assert expected > 1
    bench.close()
    assert not is_running(again.pid)


@pytest.mark.parametrize(
    ("load", "says"),
    [
        ({"max_model_len": 4096}, "is greater than the derived max_model_len"),
        ({"kv_cache_memory_bytes": 1000}, "No available memory for the cache blocks"),
    ],
    ids=str,
)
def test_what_vllm_cannot_run_is_one_clear_sentence(bench: Bench, load: dict[str, int], says: str) -> None:
    with pytest.raises(LmgateError, match=says) as refused:
        bench.described(bench.entry(load=load)).open()
    assert str(refused.value).startswith("model 'model': vLLM ")
