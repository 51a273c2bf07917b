"""A cache under a key: only what somebody with the key wrote is believed, and the key is shown nowhere."""

import hashlib
from pathlib import Path

from pytest_lmgate.cache.files import write_sealed
from pytest_lmgate.cache.store import _key
from tests.end_to_end.forging import forge, times
from tests.end_to_end.projects import COUNT_MEASUREMENTS, GATE, Project, marked

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
    honest = measured.run().expect(1, failed=1)
    named = _key(weights, weights.stat())
    memory = measured.cache / "digests" / named[:2] / named[2:40]
    assert memory.is_file(), f"the weights were not remembered\n{honest.text}"
    of_die = hashlib.sha256((models / "die" / "model.safetensors").read_bytes()).hexdigest()
    write_sealed(memory, f"{named} {of_die}".encode())
    measured.run().expect(0, passed=1)
    verified = measured.with_torch.run("--lmgate-verify", "1").expect(1, passed=1)
    verified.says("./copy on words: the cache entry does not match the model")
    measured.with_torch.run(env=KEY).expect(1, failed=1)
    # Now the memories are signed: another's does not help either.
    for other in [path for path in measured.cache.glob("digests/*/*") if path.is_file() and path != memory]:
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
    files = [path for path in project.folder.rglob("*") if path.is_file()]
    assert any(path.name == "junit.xml" for path in files)
    for path in files:
        assert SECRET.encode() not in path.read_bytes(), path
