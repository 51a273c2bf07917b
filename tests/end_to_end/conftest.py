"""Projects for the end-to-end tests: the models are made once, and one measurement of each is kept to copy."""

import shutil
from pathlib import Path

import pytest

from tests.end_to_end.dice import DiceProject
from tests.end_to_end.projects import Project, make_models, scale_head
from tests.end_to_end.writers import models_that_write, writing_project
from tests.models.tiny import made_once


@pytest.fixture(scope="session")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder of the models that `projects` describes, and of ``words.txt``; not to be changed."""
    return made_once(tmp_path_factory.getbasetemp(), "models", make_models)


@pytest.fixture
def project(tmp_path: Path, models: Path) -> Project:
    """A project that names the models and has measured nothing yet."""
    return _project(tmp_path, models)


@pytest.fixture
def writing(tmp_path: Path, tmp_path_factory: pytest.TempPathFactory) -> Project:
    """A project that names the models of `writers`."""
    return writing_project(tmp_path, tmp_path_factory.getbasetemp())


@pytest.fixture
def writers(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder of the models of `writers`, not to be changed."""
    return models_that_write(tmp_path_factory.getbasetemp())


@pytest.fixture
def unmeasured(project: Project) -> Project:
    """A project whose sessions end before they measure: they find no torch imported."""
    return Project(project.folder, "pytest")


@pytest.fixture
def dice(tmp_path: Path) -> DiceProject:
    """A project whose models are fair dice."""
    return DiceProject.at(tmp_path)


@pytest.fixture(scope="session")
def seed(tmp_path_factory: pytest.TempPathFactory, models: Path) -> Path:
    """A cache that holds ``die``, ``sure`` and ``hopeless`` on ``words``, measured by a real run."""

    def measure(folder: Path) -> None:
        seeding = _project(folder, models).write(
            test_seed="""
                def test_seed(ppl_of):
                    assert ppl_of("die", "words") < ppl_of("sure", "words") < ppl_of("hopeless", "words")
            """
        )
        seeding.run().expect(0, passed=1)
        assert len(seeding.entries) == 3

    return Project(made_once(tmp_path_factory.getbasetemp(), "seed", measure)).cache


@pytest.fixture
def measured(project: Project, seed: Path) -> Project:
    """A project whose models have been measured: its gates need no torch, and take no time."""
    shutil.copytree(seed, project.cache)
    return Project(project.folder, "pytest")


@pytest.fixture
def noisy(project: Project, models: Path) -> Project:
    """A project with a model `warm` that is a little off on each word: 6% worse on the whole, give or take as much."""
    folder = project.model("warm", models / "sure")
    scale_head(folder, 0.05)
    return project.add("models", warm=f"path: {folder}")


def _project(folder: Path, models: Path) -> Project:
    return Project(folder).write(
        pytest_ini="[pytest]\n",
        lmgate_yaml=f"""
            models:
              die: {{path: {models}/die}}
              sure: {{path: {models}/sure}}
              hopeless: {{path: {models}/hopeless}}
              nan: {{path: {models}/nan}}
            datasets:
              words: {{path: {models}/words.txt}}
        """,
    )
