"""What is wrong with a model, its entry or its files is one clear error of every engine, and never a number."""

import re
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from pytest_lmgate.errors import LmgateError, ModelError, NonFiniteError
from tests.engines.contract.bench import Bench, copied
from tests.engines.contract.engines import Entry
from tests.engines.contract.wrong import WRONG


@pytest.mark.needs("NaN")
def test_nan_is_an_error_in_likelihoods_and_texts(bench: Bench) -> None:
    expected = LmgateError if "server" in bench.entry() else NonFiniteError
    with pytest.raises(expected, match=r"(?i)\bnan\b"):
        bench.value("ppl_of", "nan", "text", protocol="document")
    if "server" not in bench.entry() and "writes" not in bench.engine.lacks:  # a server writes texts itself
        with pytest.raises(NonFiniteError, match="while generating"):
            bench.texts("nan")


@pytest.mark.needs("looks ahead")
def test_a_model_that_sees_the_next_token_is_refused(bench: Bench) -> None:
    with pytest.raises(ModelError, match=r"depends on the tokens after it|expected no change before it"):
        bench.value("ppl_of", "looks-ahead", "text", max_length=96)


def cases(bench: Bench, folder: Path) -> Iterator[tuple[Entry, str]]:
    """Yield wrong entries, and entries of copies of the model's files that are spoilt, with what is said of each."""
    entry = bench.entry()
    for number, (change, changes, says) in enumerate(WRONG[bench.engine.name]):
        found = entry
        if change:
            found, _ = copied(entry, folder / f"x{number}")
            change(folder / f"x{number}")
        found = {key: value for key, value in {**found, **changes}.items() if value is not None}
        yield {key: str(folder / "nowhere") if value == "nowhere" else value for key, value in found.items()}, says


def test_a_wrong_file_or_entry_is_one_clear_sentence(
    bench: Bench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("EMPTY", "")
    monkeypatch.setenv("BROKEN", "a b")
    unclear = []
    for entry, says in cases(bench, tmp_path):
        try:
            bench.value("accuracy_of", entry, "quiz")
            unclear.append((entry, says, "a number"))
        except LmgateError as error:
            if not re.search(says, str(error)) or "model" not in str(error):
                unclear.append((entry, says, str(error)))
    assert unclear == []


@pytest.mark.needs("optional")
def test_a_missing_package_says_what_to_install(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, bench.engine.modules[0], None)
    evaluator = bench.evaluator({"unseen": bench.entry()})  # engines remember for each name that the library is there
    with pytest.raises(ModelError, match=rf"pip install 'pytest-lmgate\[{bench.engine.extra}\]'"):
        evaluator.resolver.model("unseen").open()
