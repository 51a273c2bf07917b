"""Imported tasks of lm-evaluation-harness on llama.cpp: the numbers that the harness has of the same weights."""

from collections.abc import Iterator

import pytest

pytest.importorskip("llama_cpp", reason="llama-cpp-python is NOT installed; make test-gguf runs these tests")

from tests.engines.tasks import CASES, Case, Imported, checkpoint, load
from tests.models.tiny import made_once


@pytest.fixture(scope="module")
def imported(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Imported]:
    from tests.engines.gguf.converting import write_gguf

    base = tmp_path_factory.getbasetemp()
    folder = made_once(base, "reader-gguf", lambda folder: write_gguf(folder / "f32.gguf", *load(checkpoint(base))))
    imported = Imported(base, {"path": str(folder / "f32.gguf")})
    yield imported
    imported.close()


@pytest.mark.parametrize("case", CASES, ids="-".join)
def test_a_gate_on_an_imported_task_has_the_numbers_of_the_harness(imported: Imported, case: Case) -> None:
    imported.require_same(case)
