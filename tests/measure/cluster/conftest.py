"""A cluster of several nodes on this machine, and a project of dice to measure on it."""

import json
import os
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from pytest_lmgate.measure.evaluator import Evaluator
from pytest_lmgate.measure.loop import Log
from pytest_lmgate.settings.file import load_project
from pytest_lmgate.settings.session import Executor, Options
from tests.measure.cluster.slow_die import SlowDice

NODES = 3
# Of ray://, below those that the system gives away; another for each worker of pytest-xdist.
CLIENT_PORT = 24671 + int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw"))


@pytest.fixture(scope="session")
def ray_cluster() -> Iterator[Any]:
    """A cluster of three nodes, a worker's room on each, to which this process is connected."""
    os.environ["RAY_raylet_start_wait_time_s"] = "180"  # noqa: SIM112 - Ray writes it so; a node takes its time
    ray = pytest.importorskip("ray", reason="Ray is not installed: no measurement on a cluster is checked")
    from ray.cluster_utils import Cluster

    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    head = {"num_cpus": 1, "include_dashboard": False, "ray_client_server_port": CLIENT_PORT}
    cluster = Cluster(initialize_head=True, head_node_args=head)
    for _ in range(NODES - 1):
        cluster.add_node(num_cpus=1)
    ray.init(cluster.address, log_to_driver=False)
    yield cluster
    ray.shutdown()
    cluster.shutdown()


class Dicing:
    """A project of dice and a text, and sessions on it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.notes: list[str] = []
        self._sessions: list[Evaluator] = []
        (folder / "text.txt").write_text("".join(random.Random(7).choices("abcd", k=99 * 8 + 4)))
        self.models: dict[str, dict[str, Any]] = {}

    def die(self, name: str, **facts: Any) -> None:
        """Add a model; each window of 8 tokens is a batch."""
        (self.folder / f"{name}.slow").write_text(json.dumps({"sides": 6, **facts}))
        self.models[name] = {"path": f"{name}.slow", "batch_size": 1}

    def session(self, executor: Executor | None, cache: str = "cache", **watching: Any) -> Evaluator:
        """Begin a session, with a cache of its own if named so."""
        text = {"models": self.models, "datasets": {"text": {"path": "text.txt"}}}
        (self.folder / "lmgate.yaml").write_text(json.dumps(text))
        evaluator = Evaluator(
            load_project(self.folder),
            Options(cache=self.folder / cache, executor=executor),
            Log(note=self.notes.append, **watching),
            users_backends={"slow-die": SlowDice()},
        )
        self._sessions.append(evaluator)
        return evaluator

    def close(self) -> None:
        """End the workers of all sessions."""
        for session in self._sessions:
            session.resolver.close()

    @property
    def processes(self) -> int:
        """How many processes have read."""
        return sum(file.name.isdecimal() for file in self.folder.iterdir())


@pytest.fixture
def dicing(tmp_path: Path) -> Iterator[Dicing]:
    """An empty project."""
    made = Dicing(tmp_path)
    yield made
    made.close()
