"""Memory that really runs out: a process of its own, whose address space is limited while it measures."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="limits the address space, as Linux does")

ROOT = Path(__file__).resolve().parents[2]

_MEASURE = """
import json, resource

import torch

torch.set_num_threads(1)
from pytest_lmgate.backends import memory
from pytest_lmgate.errors import EngineError
from tests.engine.measuring import measure_nll
from tests.models.zoo import build, documents, loaded, sliding

# Between the layers, 64 KiB for each token: 16 MiB for a window, 128 MiB for all of them.
model = loaded(build("llama", num_hidden_layers=1, intermediate_size=16384, max_position_embeddings=256))
streams = documents(*[256] * 8)
plan = sliding(streams, 256, 256)
measure = lambda size: measure_nll(model, streams, plan, dataset="d", batch_size=size)
expected = measure(1)

def limited(room):
    used = 1024 * int(next(line.split()[1] for line in open("/proc/self/status") if line.startswith("VmSize")))
    resource.setrlimit(resource.RLIMIT_AS, (used + room * 2**20, resource.RLIM_INFINITY))
    try:
        return {"error": None, "difference": float(abs(measure(8) - expected).max())}
    except EngineError as error:
        return {"error": str(error)}
    finally:
        resource.setrlimit(resource.RLIMIT_AS, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))

lowered = []
release = memory.release
memory.release = lambda device: (lowered.append(1), release(device))
outcomes = {"none": limited(1), "little": limited(10)}
lowered.clear()
outcomes["some"] = limited(130) | {"lowered": len(lowered)}
print(json.dumps(outcomes))
"""


@pytest.fixture(scope="module")
def outcomes() -> dict[str, dict[str, Any]]:
    """What came of measuring with room for some windows, for less than one, and for nothing."""
    # What the allocator frees it gives back at once, so that it is missing when it is asked for again.
    environment = os.environ | {"MALLOC_MMAP_THRESHOLD_": "65536"}
    done = subprocess.run(
        [sys.executable, "-c", _MEASURE], capture_output=True, text=True, cwd=ROOT, env=environment, check=False
    )
    assert done.returncode == 0, done.stderr
    outcomes: dict[str, dict[str, Any]] = json.loads(done.stdout.splitlines()[-1])
    return outcomes


def test_a_batch_too_large_for_the_memory_is_halved_until_it_fits_and_gives_the_same_numbers(
    outcomes: dict[str, dict[str, Any]],
) -> None:
    assert outcomes["some"]["error"] is None
    assert 1 <= outcomes["some"]["lowered"] <= 2
    assert outcomes["some"]["difference"] == pytest.approx(0, abs=1e-5)


@pytest.mark.parametrize("room", ["little", "none"])
def test_where_not_even_one_window_fits_the_error_says_so(outcomes: dict[str, dict[str, Any]], room: str) -> None:
    message = outcomes[room]["error"]

    assert message.startswith("model 'LlamaForCausalLM': out of memory with a window of 255 tokens alone on cpu; use")
    assert "can't allocate memory" in message
