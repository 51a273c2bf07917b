"""Imported tasks of lm-evaluation-harness behind a real server: the harness's numbers of the same weights."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

pytest.importorskip("httpx2", reason="httpx2 is NOT installed; make test-server runs these tests")

from pytest_lmgate.errors import EngineError
from tests.engines.server.conftest import NAME, llama_cpp_serves
from tests.engines.server.faulty import ROOM
from tests.engines.tasks import CASES, ROLLING, Imported, checkpoint


@contextmanager
def behind(url: str, base: Path) -> Iterator[Imported]:
    entry = {"server": url, "model": NAME, "tokenizer": str(checkpoint(base)), "load": {"context": ROOM}}
    imported = Imported(base, {**entry, "revision": "1"})  # without it nothing is kept
    yield imported
    imported.close()


def test_gates_on_imported_tasks_behind_llama_cpp_have_the_numbers_of_the_harness_or_an_error(
    tmp_path_factory: pytest.TempPathFactory, tmp_path: Path
) -> None:
    base = tmp_path_factory.getbasetemp()
    with llama_cpp_serves(checkpoint(base), tmp_path) as url, behind(url, base) as imported:
        for case in CASES:
            if case in ROLLING:  # its protocol reads a BOS and scores the token after it
                with pytest.raises(EngineError, match="no likelihood of the first token after a BOS"):
                    imported.require_same(case)
            else:
                imported.require_same(case)
