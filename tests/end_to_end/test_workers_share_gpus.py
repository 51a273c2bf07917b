"""With ``-n`` each worker takes a GPU of its own; where there are fewer GPUs than workers, they take turns.

The GPUs are made up, by the count that the driver is asked for, so that each model ends with an error that names the
GPU that it was to run on.
"""

import re

import pytest
import torch

from tests.end_to_end.projects import Project, marked

TWO_GPUS = """
    from pytest_lmgate.engines import devices

    devices._torch_build = lambda: ("cuda", "13.0")
    devices.cards = lambda: (devices.Card("NVIDIA H200", "9.0"),) * 2
"""
GATES = marked(**{name: f"ppl_max({name!r}, 'words', 9)" for name in ("die", "sure", "hopeless")})


@pytest.mark.skipif(torch.cuda.is_available(), reason="the models would be measured")
def test_each_worker_takes_its_own(project: Project) -> None:
    project.write(conftest=TWO_GPUS, test_gates=GATES)
    outcome = project.run("-n", "3").expect(1, error=3)
    found = re.findall(r"\[(gw\d)\] \w+ --.*?the device '(cuda:?\d?)' cannot be used", outcome.text, re.DOTALL)
    assert sorted(found) == [("gw0", "cuda:0"), ("gw1", "cuda:1"), ("gw2", "cuda:0")]
