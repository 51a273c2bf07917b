"""Measurements on a real Ray cluster of three nodes: shared, equal to local ones, and whole where a node is lost."""

from typing import Any

import pytest

from pytest_lmgate.errors import EngineError, ModelError
from pytest_lmgate.measure.loop import Progress
from pytest_lmgate.settings.gate_options import WindowProtocol
from pytest_lmgate.settings.session import Executor
from tests.measure.cluster.conftest import NODES, Dicing
from tests.measure.entries import perplexity

pytestmark = pytest.mark.filterwarnings("default")  # Ray's own
PROTOCOL = WindowProtocol(max_length=8)


def test_all_workers_share_a_measurement_whose_number_is_the_local_one(ray_cluster: Any, dicing: Dicing) -> None:
    dicing.die("slow", waits_for=NODES)

    there = perplexity(dicing.session(Executor()), "slow", "text", PROTOCOL)

    assert dicing.processes == NODES
    here = perplexity(dicing.session(None, cache="local"), "slow", "text", PROTOCOL)
    assert (float(there), there.stderr, there.n) == (float(here), here.stderr, here.n)
    assert there.fingerprint == here.fingerprint


def test_what_the_cache_has_needs_no_worker(dicing: Dicing) -> None:
    dicing.die("quick")
    perplexity(dicing.session(None), "quick", "text", PROTOCOL)

    found = perplexity(dicing.session(Executor("ray://nowhere.invalid:1")), "quick", "text", PROTOCOL)

    assert found.cached


def test_a_node_that_is_lost_in_mid_run_costs_nothing_but_time(ray_cluster: Any, dicing: Dicing) -> None:
    dicing.die("slow", seconds=0.1, waits_for=NODES + 1)
    node = ray_cluster.add_node(num_cpus=1)
    lost: list[Any] = []

    def lose(progress: Progress) -> None:
        if not lost and dicing.processes > NODES:
            lost.append(node)
            ray_cluster.remove_node(node, allow_graceful=False)

    session = dicing.session(Executor(workers=NODES + 1), progress=lose)
    found = perplexity(session, "slow", "text", PROTOCOL)

    assert lost
    assert any("a Ray worker was lost, and another one reads its batch" in note for note in dicing.notes)
    here = perplexity(dicing.session(None, cache="local"), "slow", "text", PROTOCOL)
    assert (float(found), found.n) == (float(here), here.n)


def test_a_batch_over_which_each_worker_ends_is_an_error_and_the_rest_is_kept(ray_cluster: Any, dicing: Dicing) -> None:
    dicing.die("mortal", ends_below=5)
    texts = [f"{number:08}" for number in range(40)]

    with pytest.raises(EngineError, match=r"3 Ray workers were lost over one batch, which may need more memory"):
        perplexity(dicing.session(Executor()), "mortal", [*texts, "abc"], WindowProtocol("document", max_length=8))

    assert any("this part is kept, and the next run resumes it" in note for note in dicing.notes)


def test_a_worker_that_no_node_has_room_for_is_an_error_at_once(ray_cluster: Any, dicing: Dicing) -> None:
    dicing.die("quick")
    session = dicing.session(Executor(num_gpus=1))

    for _ in range(2):  # the second gate says so too
        with pytest.raises(EngineError, match=r"no node with 1 processors and 1 GPUs for a worker: it has 3 nodes"):
            perplexity(session, "quick", "text", PROTOCOL)


def test_two_workers_share_a_gpu_of_which_each_needs_half(ray_cluster: Any, dicing: Dicing) -> None:
    node = ray_cluster.add_node(num_cpus=2, num_gpus=1)  # Ray takes the word for it
    dicing.die("slow", waits_for=2)
    try:
        found = perplexity(dicing.session(Executor(num_gpus=0.5)), "slow", "text", PROTOCOL)
    finally:
        ray_cluster.remove_node(node)

    assert dicing.processes == 2
    assert float(found) == pytest.approx(6)


def test_a_model_that_no_digest_tells_of_is_loaded_anew_by_workers_too(ray_cluster: Any, dicing: Dicing) -> None:
    dicing.die("loaded", unknown=True)
    session = dicing.session(Executor(workers=1))
    before = perplexity(session, "loaded", "text", PROTOCOL)

    dicing.die("loaded", unknown=True, sides=8)
    session.forget()

    assert float(before) == pytest.approx(6)
    assert float(perplexity(session, "loaded", "text", PROTOCOL)) == pytest.approx(8)


def test_who_waits_for_a_worker_when_the_session_ends_gets_an_error(ray_cluster: Any, dicing: Dicing) -> None:
    dicing.die("slow", seconds=0.1)
    session = dicing.session(Executor(workers=1), progress=lambda _: session.resolver.close())

    with pytest.raises(EngineError, match="the session has ended its Ray workers"):
        perplexity(session, "slow", "text", PROTOCOL)

    assert not any("was lost" in note for note in dicing.notes)


def test_a_model_here_and_one_there_are_not_compared(ray_cluster: Any, dicing: Dicing) -> None:
    from pytest_lmgate.measure.cluster import RayRunner
    from tests.engines.fair_die import Die

    dicing.die("quick")
    session = dicing.session(Executor())
    runner = session.measurements.runner(session.resolver.model("quick"))

    assert isinstance(runner, RayRunner)
    with pytest.raises(ModelError, match="cannot be compared with a model in this process"):
        runner.compare_with(Die(6), None)  # type: ignore[arg-type]
