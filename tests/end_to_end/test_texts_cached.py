"""Texts that have been generated are scored by another metric without the model, and without what runs one."""

from pathlib import Path

import pytest

from tests.end_to_end.projects import COUNT_MEASUREMENTS, Project
from tests.end_to_end.writers import writing_project

FIRST = """
    import sys
    import pytest

    @pytest.mark.exact_min("counter", "chains", 1)
    def test_exact(): pass

    def test_a_model_ran():
        assert "torch" in sys.modules
"""
SECOND = """
    import sys
    import pytest

    @pytest.mark.bleu_min("counter", "chains", 99)
    @pytest.mark.chrf_min("counter", "chains", 99)
    @pytest.mark.rouge_min("counter", "chains", 0.99, "rougeL")
    @pytest.mark.ter_max("counter", "chains", 1)
    def test_others(): pass

    def test_fixture(rouge_of):
        score = rouge_of("counter", "chains", "rouge2")
        assert score.cached and score == pytest.approx(7 / 9), "two rests are a single token, without a bigram"
        with pytest.raises(AssertionError):
            assert score < 0.5
"""
TORCH_FREE = """
    import sys

    def pytest_sessionfinish():
        heavy = {"torch", "transformers", "tokenizers", "datasets", "peft", "accelerate"} & sys.modules.keys()
        assert not heavy, heavy
"""


@pytest.fixture
def project(tmp_path: Path, tmp_path_factory: pytest.TempPathFactory) -> Project:
    return writing_project(tmp_path, tmp_path_factory.getbasetemp())


def test_a_second_metric_on_cached_texts_loads_no_model_and_no_torch(project: Project) -> None:
    project.write(conftest=COUNT_MEASUREMENTS, test_first=FIRST).run("-p", "no:xdist").expect(0, passed=2)
    assert project.measured == ["counter"]
    (project.folder / "test_first.py").unlink()
    project.write(conftest=COUNT_MEASUREMENTS + TORCH_FREE, test_second=SECOND)
    project.run("-p", "no:xdist", "--lmgate-report", "json:report.json", torch_free=True).expect(0, passed=2)
    assert project.measured == ["counter"]
    assert [gate["cached"] for gate in project.report()["gates"]] == [True] * 4
