"""Hub ids: what is in the local hub cache is used by its content; what is not is named, and the network left alone."""

import hashlib
import shutil
from pathlib import Path

import pytest

from tests.end_to_end.projects import Project, marked

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
