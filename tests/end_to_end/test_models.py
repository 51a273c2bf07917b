"""Models: warnings of libraries, what the machine lacks, the local hub cache, and GPUs with numbers of their own."""

import hashlib
import json
import shutil
from pathlib import Path

import pytest

from tests.end_to_end.projects import Outcome, Project, marked

WARNING = "model './warned' was loaded with a warning of transformers: Unrecognized keys in `rope_"


def test_a_warning_of_a_library_is_shown_once_also_from_workers_and_from_the_cache(
    project: Project, models: Path
) -> None:
    file = project.model("warned", models / "die") / "config.json"
    scaling = {"rope_type": "yarn", "factor": 2.0, "original_max_position_embeddings": 16, "finetuned": True}
    file.write_text(json.dumps(json.loads(file.read_text()) | {"rope_scaling": scaling}))
    gates = {"one": "ppl_max('./warned', 'words', 60.5)", "two": "bpb_max('./warned', 'words', 60.5)"}
    fixture = "def test_three(ppl_of): assert ppl_of('./warned', 'words', stride=32) < 60.5\n"
    project.write(test_warned=marked(**gates) + fixture)
    for _ in ("measured", "from the cache"):
        outcome = project.run("-n", "2", "-W", "error", "--lmgate-report=json:report.json").expect(0, passed=3)
        assert outcome.text.count(WARNING) == 1, outcome.text
        assert [remark for remark in project.report()["remarks"] if remark.startswith(WARNING)]


def test_a_gate_and_a_fixture_of_a_model_whose_program_is_missing_are_skipped_unless_all_are_required(
    project: Project, models: Path
) -> None:
    server = "{command: 'no-such-program {port}', requires: {command: no-such-program}}"
    served = f"server: {server}, model: m, tokenizer: {models / 'die'}, load: {{context: 16}}"
    project.add("models", served=served).write(
        test_it="""
            import pytest

            @pytest.mark.ppl_max("served", "words", 9)
            def test_gate(): pass

            def test_fixture(ppl_of): ppl_of("served", "words")
        """,
    )
    lacks = "models.served.server.requires: expected the program 'no-such-program' in PATH, found none"
    project.run("-rs").expect(0, skipped=2).says(lacks)
    project.run("--lmgate-require-all").expect(1, failed=1, error=1).says(lacks)


COMMIT = "0123456789abcdef0123456789abcdef01234567"


@pytest.fixture
def hub(project: Project, models: Path) -> dict[str, str]:
    """Environment of a local hub cache, laid out as huggingface_hub does, that holds ``org/die`` at one commit."""
    home = project.folder / "hf"
    repository = home / "hub" / "models--org--die"
    snapshot = repository / "snapshots" / COMMIT
    for folder in (repository / "blobs", repository / "refs", snapshot):
        folder.mkdir(parents=True)
    (repository / "refs" / "main").write_text(COMMIT)
    for file in (models / "die").iterdir():
        blob = repository / "blobs" / hashlib.sha256(file.read_bytes()).hexdigest()
        shutil.copy(file, blob)
        (snapshot / file.name).symlink_to(Path("../../blobs") / blob.name)
    # No address answers: a call of the network is an error, not a wait.
    return {"HF_HOME": str(home), "HF_ENDPOINT": "http://127.0.0.1:9", "HF_HUB_OFFLINE": "0"}


def test_a_pinned_model_in_the_cache_needs_no_network_and_if_trusted_no_digest(
    project: Project, hub: dict[str, str]
) -> None:
    pinned = "ppl_max('pinned', 'words', 60.5)"
    project.add("models", pinned=f"hub: org/die, revision: {COMMIT}, trust: hub")
    project.write(test_hub=marked(pinned=pinned, untrusted=f"ppl_max('hub:org/die@{COMMIT}', 'words', 60.5)"))
    project.run(env=hub).expect(0, passed=2)
    project.write(test_hub=marked(pinned=pinned))
    weights = next(Path(hub["HF_HOME"]).rglob("snapshots/*/model.safetensors"))
    blob = weights.resolve()
    blob.write_bytes(blob.read_bytes()[::-1])  # what trusting the name does not see
    project.run(env=hub, torch_free=True).expect(0, passed=1).says("cached")
    other = blob.with_name("f" * 64)
    blob.rename(other)
    weights.unlink()
    weights.symlink_to(other)
    project.run(env=hub).expect(1, error=1).says("cannot be loaded")
    project.add("models", path="path: die, trust: hub")
    project.run(env=hub).expect(4).says("trust: expected it at a model with hub:")


CONFTEST = f"""
    import dataclasses
    import os
    import sys

    sys.path.insert(0, {str(Path(__file__).parents[1] / "engines")!r})
    from fair_die import Dice as Plain
    from pytest_lmgate.engines import devices

    devices.cards = lambda: tuple(devices.Card(name, "9.0") for name in [os.environ["CARD"]] if name)
    devices._torch_build = lambda: ("cuda", "13.0")

    class Dice(Plain):
        def describe(self, entry):
            return dataclasses.replace(super().describe(entry), device="cuda")

    def pytest_lmgate_backends():
        return [Dice()]
"""
YAML = """
models: {six: {path: six.die}}
datasets: {letters: {path: letters.txt}}
gates:
  - ppl_max: {model: six, dataset: letters, limit: 6.01}
"""
GATE = "lmgate.yaml::no_regression:ppl[six-letters]"
BY_BASELINE = YAML.replace("ppl_max: {", "no_regression: {metric: ppl, ").replace("limit: 6.01", "tolerance: 1%")
H100, A100 = "NVIDIA H100", "NVIDIA A100"


class Cards(Project):
    """A project with one gate, run on a card."""

    def on(self, card: str, *options: str, **env: str) -> Outcome:
        return self.run(*options, "--lmgate-report=json:report.json", env={"CARD": card, **env})

    def is_cached(self, card: str) -> tuple[bool, str]:
        """Return whether the cache had the number, and which card the report says made it."""
        self.on(card).expect(0)
        report = self.report()
        (gate,) = report["gates"]
        assert report["run"].get("hardware", "") == gate.get("hardware", "")
        return gate["cached"], gate.get("hardware", "")

    def yaml(self, text: str) -> None:
        self.write(lmgate_yaml=text)

    @property
    def names(self) -> list[str]:
        return sorted(self.report("lmgate-baseline.json")["gates"])


@pytest.fixture
def measured(tmp_path: Path) -> Cards:
    """A project whose gate an H100 has measured."""
    project = Cards(tmp_path, "pytest")
    project.write(conftest=CONFTEST, pytest_ini="[pytest]\n", letters_txt="abcd" * 200)
    (tmp_path / "six.die").write_text('{"sides": 6}')
    project.yaml(YAML)
    assert project.is_cached(H100) == (False, H100)
    return project


def test_another_card_measures_for_itself_unless_the_file_counts_them_as_one(measured: Cards) -> None:
    assert measured.is_cached(A100) == (False, A100)
    assert measured.is_cached("") == (False, "")
    assert measured.is_cached(H100) == (True, H100)
    measured.yaml(f"devices: [{H100}, NVIDIA H200]\n{YAML}")
    assert measured.is_cached(H100) == (False, H100)  # another address than that of one card
    assert measured.is_cached("NVIDIA H200") == (True, H100)
    assert measured.is_cached("") == (True, H100)  # a machine without a GPU judges what one with it measured
    assert measured.is_cached("NVIDIA L4")[0] is False


@pytest.fixture
def accepted(measured: Cards) -> Cards:
    """The same project with a baseline of an H100."""
    measured.yaml(BY_BASELINE)
    measured.on(H100, "--lmgate-update-new-only").expect(0)
    return measured


def test_each_card_has_a_baseline_of_its_own(accepted: Cards) -> None:
    accepted.on(A100).expect(1, error=1).says(f"no baseline for {A100}", f"of {H100}, 6, and")
    accepted.on(A100, "--lmgate-update-new-only").expect(0).says("1 new")
    assert accepted.names == [GATE, f"{GATE} @ {A100}"]
    assert "no gate uses" not in accepted.on(H100).expect(0, passed=1).text
    (accepted.folder / "six.die").write_text('{"sides": 5.5}')
    outgrown = "baseline outgrown: 1 gate better by more than the tolerance (no_regression:ppl[six-letters])"
    accepted.on(H100).expect(0, passed=1).says(outgrown)
    (accepted.folder / "six.die").write_text('{"sides": 7}')
    accepted.on(A100, "--lmgate-update").expect(0).says("1 changed")
    accepted.on(H100, "--lmgate-prune").expect(1).says("+16.67%")
    assert accepted.names == [GATE, f"{GATE} @ {A100}"]


def test_cards_that_count_as_one_share_a_baseline(accepted: Cards) -> None:
    for alike, code in (("equal", 0), (f"[{H100}, {A100}]", 1)):
        accepted.yaml(f"devices: {alike}\n{BY_BASELINE}")
        accepted.on(A100).expect(0, passed=1)
        accepted.on("NVIDIA L4").expect(code)


def test_a_label_tells_machines_apart(accepted: Cards) -> None:
    accepted.yaml(f"label: ${{RUNNER_CLASS}}\n{BY_BASELINE}")
    accepted.on(H100).expect(1).says("label: ${RUNNER_CLASS}: the environment variable RUNNER_CLASS is not set")
    accepted.on(H100, RUNNER_CLASS="large").expect(1).says("no baseline for large", f"of {H100}, 6, and")
    accepted.on(H100, "--lmgate-update", RUNNER_CLASS="large").expect(0)
    assert accepted.names == [GATE, f"{GATE} @ large"]
    accepted.on(A100, RUNNER_CLASS="large").expect(0, passed=1)
    accepted.on(H100, RUNNER_CLASS="small").expect(1).says("no baseline for small", f"of {H100}, 6; large, 6")
