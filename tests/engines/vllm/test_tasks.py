"""Imported tasks of lm-evaluation-harness on vLLM: the numbers that the harness has of the same weights."""

from collections.abc import Iterator
from importlib.util import find_spec

import pytest

from tests.engines.tasks import CASES, Imported, checkpoint

# The session itself never imports vLLM.
pytestmark = pytest.mark.skipif(
    find_spec("vllm") is None, reason="vLLM is NOT installed; make test-vllm runs these tests"
)


@pytest.fixture
def imported(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Imported]:
    base = tmp_path_factory.getbasetemp()
    imported = Imported(base, {"path": str(checkpoint(base)), "backend": "vllm", "dtype": "float32"})
    yield imported
    imported.close()


def test_gates_on_imported_tasks_have_the_numbers_of_the_harness(imported: Imported) -> None:
    for case in CASES:  # one test, since each worker would start a vLLM
        imported.require_same(case)
