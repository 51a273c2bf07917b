"""Tasks of lm-evaluation-harness, imported: every engine has the harness's numbers of the same weights."""

from collections.abc import Iterator

import pytest

from pytest_lmgate.errors import EngineError
from tests.engines.contract.bench import Bench
from tests.engines.tasks import CASES, ROLLING, Case, Imported, checkpoint, load


@pytest.fixture(scope="module")
def imported(bench: Bench, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Imported]:
    base = tmp_path_factory.getbasetemp()
    imported = Imported(base, bench.entry_of("reader", *load(checkpoint(base))))
    yield imported
    imported.close()


@pytest.mark.needs("tasks")
@pytest.mark.parametrize("case", CASES, ids="-".join)
def test_a_gate_on_an_imported_task_has_the_numbers_of_the_harness(
    bench: Bench, imported: Imported, case: Case
) -> None:
    if case in ROLLING and "bos" in bench.engine.lacks:  # its protocol scores the token after a BOS
        with pytest.raises(EngineError, match="the first token after a BOS"):
            imported.require_same(case)
    else:
        imported.require_same(case)
