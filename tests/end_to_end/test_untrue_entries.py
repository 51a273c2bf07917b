"""Untrue entries: `--lmgate-verify` finds them, and under a key only what somebody with the key wrote is believed."""

import hashlib
import json
import math
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.numpy
from numpy.typing import NDArray

from pytest_lmgate.cache.files import read_sealed, write_sealed
from pytest_lmgate.cache.store import decode
from tests.end_to_end.dice import DiceProject
from tests.end_to_end.projects import COUNT_MEASUREMENTS, GATE, Project, marked
from tests.end_to_end.writers import ROWS


def forge(
    entry: Path,
    change: Callable[[str, NDArray[Any]], NDArray[Any]] = lambda _, array: array,
    facts: Callable[[dict[str, Any]], dict[str, Any]] = lambda facts: facts,
) -> None:
    """Rewrite an entry as somebody could who can write to the cache: whole, sealed, of the right name, and untrue."""
    body = read_sealed(entry)
    header = json.loads(body[8 : 8 + int.from_bytes(body[:8], "little")])
    metadata = header["__metadata__"]
    metadata["facts"] = json.dumps(facts(json.loads(metadata["facts"])), sort_keys=True)
    arrays = {name: change(name, array) for name, array in safetensors.numpy.load(body).items()}
    write_sealed(entry, safetensors.numpy.save(arrays, metadata=metadata))


def times(factor: float) -> Callable[[str, NDArray[Any]], NDArray[Any]]:
    return lambda name, array: array * array.dtype.type(factor) if name == "nll" else array


# A marker, a fixture, and a gate of lmgate.yaml; one measurement each.
TESTS = """
    import pytest

    @pytest.mark.ppl_max("die", "words", 60.5)
    @pytest.mark.bpb_max("die", "words", 9)
    def test_marker(): pass

    def test_fixture(ppl_of):
        assert ppl_of("sure", "words") > 1
        assert ppl_of("sure", "words").cached
"""


@pytest.fixture
def three(measured: Project) -> Project:
    """A project with three measurements in its cache; `hopeless` passes no gate unless its entry is untrue."""
    measured.add_gates("ppl_max: {model: hopeless, dataset: words, limit: 1.0e+300}")
    return measured.write(conftest=COUNT_MEASUREMENTS, test_three=TESTS)


def test_an_honest_cache_is_measured_again_and_agrees(three: Project) -> None:
    entries = {path: path.read_bytes() for path in three.entries}
    outcome = three.with_torch.run("-W", "error", "--lmgate-verify", "all", "-n", "2", "-k", "not hopeless")
    outcome.expect(0, passed=2).says("--lmgate-verify: 2 of 2 cache hits measured again, all agree\n")
    assert sorted(three.measured) == ["die", "sure"]
    assert {path: path.read_bytes() for path in three.entries} == entries


def test_forged_entries_pass_every_gate_and_fail_the_session_that_verifies(three: Project) -> None:
    for entry in three.entries:
        forge(entry, times(1e-4))
    three.run("--lmgate-verify", "0").expect(0, passed=3).is_silent_on("--lmgate-verify")
    assert not three.measured
    three.write(pytest_ini="[pytest]\nlmgate_verify = 1\n")
    three.with_torch.run().expect(1, passed=3).says("--lmgate-verify: 1 of 3 cache hits measured again\n")
    assert len(three.measured) == 1
    outcome = three.with_torch.run("--lmgate-verify", "all", "-n", "2").expect(1, passed=3)
    outcome.says("--lmgate-verify: 3 of 3 cache hits measured again\n")
    for model in ("die", "sure", "hopeless"):
        outcome.says(f"ERROR: --lmgate-verify: {model} on words: the cache entry does not match the model: nll is ")
    # The logarithm of 60, the faces of the die.
    outcome.says("nll is 0.000409434 on average in the cache and 4.09434 when measured again")
    outcome.says(*map(str, three.entries))


def test_an_entry_of_impossible_numbers_is_an_error_even_where_nothing_is_verified(measured: Project) -> None:
    measured.write(test_gate=GATE)
    for number in (-0.5, math.nan, math.inf):
        (entry,) = [each for each in measured.entries if forged(each, number)]
        measured.run().expect(1, error=1).says(f"the cache entry {entry} of die on words is impossible: nll: expected ")
    measured.with_torch.run("--lmgate-refresh").expect(0, passed=1)


def forged(entry: Path, number: float) -> bool:
    """Put another number into the entry if it is the die's."""
    if decode(read_sealed(entry))[1].facts["models"] != ["die"]:
        return False
    forge(entry, lambda name, array: np.full_like(array, number) if name == "nll" else array)
    return True


def test_an_interrupted_measurement_of_impossible_numbers_is_not_resumed(dice: DiceProject) -> None:
    dice.models(red={"kills_after": 3}).gates([("red", "one")])
    dice.run()
    (partial,) = dice.partials
    forge(partial, lambda name, array: -array)
    dice.run().expect(1, error=1).says("a negative log-likelihood of -")


def test_a_model_that_is_gone_by_the_end_is_not_taken_for_verified(measured: Project, models: Path) -> None:
    measured.model("copy", models / "die")
    remove = "\ndef test_remove():\n    __import__('shutil').rmtree('copy')\n"
    measured.write(test_gate=GATE.replace("'die'", "'./copy'") + remove)
    outcome = measured.with_torch.run("--lmgate-verify", "1", "--lmgate-offline").expect(1, passed=2)
    outcome.says("--lmgate-verify: ./copy on words: cannot be measured again, so it was not verified: ModelError: ")
    outcome.is_silent_on("Traceback", "INTERNALERROR")


def test_a_worker_that_dies_before_it_has_verified_fails_the_session(three: Project) -> None:
    three.write(
        conftest="""
            import os, signal

            def pytest_collection_finish():
                from pytest_lmgate.measure.lookup import Measurements
                Measurements.verify = lambda *_: os.kill(os.getpid(), signal.SIGKILL)
        """
    )
    outcome = three.run("--lmgate-verify", "all", "-n", "1", "-k", "not hopeless").expect(1)
    outcome.says("--lmgate-verify: the worker gw0 ended before it verified its cache hits")


def test_a_forged_text_is_named_by_its_row(writing: Project) -> None:
    project = writing.write(test_gate=marked(gate="exact_min('backward', 'chains', 0.5)"))
    project.run().expect(1, failed=1)
    (entry,) = project.cache.glob("texts/*/*.lmgate")
    rows = [row["rest"] for row in ROWS]
    forge(entry, facts=lambda facts: {**facts, "texts": [facts["texts"][0], *rows[1:]]})
    project.run(torch_free=True).expect(0, passed=1)
    outcome = project.run("--lmgate-verify", "all").expect(1, passed=1)
    outcome.says("texts, row 1, is 'three four five six seven' in the cache and 'one' when measured again")


def test_kept_texts_of_another_number_than_the_rows_are_written_again(writing: Project) -> None:
    project = writing.write(test_gate=marked(gate="exact_min('backward', 'chains', 0.5)"))
    project.run().expect(1, failed=1)
    (entry,) = project.cache.glob("texts/*/*.lmgate")
    for keys in (["texts", "cut"], ["cut"]):  # twice as many would pass for two texts of each row
        forge(entry, facts=lambda facts, keys=keys: {**facts, **{key: facts[key] * 2 for key in keys}})
        project.with_torch.run().expect(1, failed=1).says("it is not a measurement of backward on chains")


SECRET = "correct horse battery staple"
KEY = {"LMGATE_CACHE_KEY": SECRET}
UNSIGNED = "cache entries without a signature were not used, but measured again"

# `sure` is far worse than the limit: only an untrue entry lets it pass.
GATES = marked(
    broken_model='ppl_max("sure", "words", 60.5)', perplexity_beyond_any_number='ppl_max("hopeless", "words", 60.5)'
)


def test_a_forged_entry_passes_by_its_checksum_alone_and_is_measured_again_under_a_key(measured: Project) -> None:
    measured.write(conftest=COUNT_MEASUREMENTS, test_gate=GATES)
    measured.run("-n", "2", env={"LMGATE_CACHE_KEY": "fifteen bytes!!"}).expect(4).is_silent_on("fifteen", "Traceback")
    for entry in measured.entries:
        forge(entry, times(0.0))
    measured.run("-W", "error").expect(0, passed=2).is_silent_on(UNSIGNED)

    outcome = measured.with_torch.run("-W", "error", "-n", "2", env=KEY).expect(1, failed=1, error=1)
    assert outcome.text.count(UNSIGNED) == 1, "said once, not by each entry or worker"
    assert sorted(measured.measured) == ["hopeless", "sure"]
    # What was measured is signed, and found again.
    measured.run("-W", "error", env=KEY).expect(1, failed=1, error=1).is_silent_on(UNSIGNED)
    assert sorted(measured.measured) == ["hopeless", "sure"]


def test_a_forged_digest_memory_passes_a_broken_model_without_a_key_only(measured: Project, models: Path) -> None:
    weights = measured.model("copy", models / "sure") / "model.safetensors"
    at_once = "from pytest_lmgate.cache import store\n\nstore._RACY_SECONDS = 0.0\n"
    measured.write(test_gate=GATE.replace("'die'", "'./copy'"), conftest=at_once)
    shutil.rmtree(measured.cache / "digests", ignore_errors=True)
    measured.run().expect(1, failed=1)
    files = weights, models / "die" / weights.name
    digests = [hashlib.sha256(file.read_bytes()).hexdigest().encode() for file in files]
    memories = {path: read_sealed(path) for path in measured.cache.glob("digests/*/*") if path.is_file()}
    (memory,) = (path for path, body in memories.items() if digests[0] in body)
    write_sealed(memory, memories[memory].replace(*digests))
    measured.run().expect(0, passed=1)
    verified = measured.with_torch.run("--lmgate-verify", "1").expect(1, passed=1)
    verified.says("./copy on words: the cache entry does not match the model")
    measured.with_torch.run(env=KEY).expect(1, failed=1)
    # Now the memories are signed: another's does not help either.
    for other in memories.keys() - {memory}:
        memory.write_bytes(other.read_bytes())
    measured.run(env=KEY).expect(1, failed=1)


def test_the_key_is_in_no_output_and_no_file(project: Project) -> None:
    project.write(
        test_gate=marked(
            fails='ppl_max("die", "words", 59.5)',
            baseline='no_regression("ppl", "die", "words", "1%")',
            breaks='ppl_max("sure", "words", 60.5)',
        ),
        conftest="""
            import pytest

            def pytest_collection_finish():
                from pytest_lmgate.cache import files, store

                plain = store.write_sealed

                # An error of no kind that is expected: its traceback shows all variables.
                def broken(path, body, key):
                    if path.suffix == ".lmgate" and path.parent.parent.name == "token-nll" and b"sure" in body:
                        raise RuntimeError("nobody expects this")
                    plain(path, body, key)

                store.write_sealed = broken
        """,
    )
    shown = ("-l", "-vv", "--tb=long", "--full-trace", "--lmgate-explain-cache", "--junitxml=junit.xml")
    outcome = project.run(*shown, "--lmgate-update", "--lmgate-report=json:report.json", "--lmgate-verify=all", env=KEY)
    outcome.expect(1).is_silent_on(SECRET, SECRET.encode().hex())
    files = {path.name: path.read_bytes() for path in project.folder.rglob("*") if path.is_file()}
    assert "junit.xml" in files
    assert not [name for name, content in files.items() if SECRET.encode() in content]
