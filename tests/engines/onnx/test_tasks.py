"""Imported tasks of lm-evaluation-harness on onnxruntime: the numbers that the harness has of the same weights."""

from collections.abc import Iterator

import pytest

pytest.importorskip("onnxruntime", reason="onnxruntime is NOT installed; make test-onnx runs these tests")

from tests.engines.tasks import CASES, Case, Imported, checkpoint, load
from tests.models.tiny import made_once


@pytest.fixture(scope="module")
def imported(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Imported]:
    from tests.engines.onnx.exporting import write_onnx

    base = tmp_path_factory.getbasetemp()
    source = checkpoint(base)
    folder = made_once(base, "reader-onnx", lambda folder: write_onnx(folder, source, load(source)[0]))
    imported = Imported(base, {"path": str(folder), "backend": "onnx"})
    yield imported
    imported.close()


@pytest.mark.parametrize("case", CASES, ids="-".join)
def test_a_gate_on_an_imported_task_has_the_numbers_of_the_harness(imported: Imported, case: Case) -> None:
    imported.require_same(case)
