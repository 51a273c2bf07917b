"""The summary says which models are read with fewer rows in a batch, in one process and in workers."""

from pathlib import Path

import pytest

from tests.end_to_end.projects import Project
from tests.models.zoo import ARCHITECTURES, build, word_tokenizer, words

SAID = "model 'longrope': the numbers of a row depend on the other rows of its batch"


@pytest.fixture
def project(tmp_path: Path) -> Project:
    scaling = {"rope_type": "longrope", "rope_theta": 1e4, "short_factor": [1.0] * 4, "long_factor": [4.0] * 4}
    scaling |= {"original_max_position_embeddings": 32}
    sizes = ARCHITECTURES["llama"] | {"original_max_position_embeddings": 32, "rope_parameters": scaling}
    for name, model in {"longrope": build("phi3", **sizes), "llama": build("llama")}.items():
        model.save_pretrained(tmp_path / name)
        word_tokenizer().save_pretrained(tmp_path / name)
    rows = [" ".join(words()[at : at + length]) for at, length in ((0, 60), (9, 20), (30, 12), (3, 45))]
    (tmp_path / "rows.txt").write_text("\n".join(rows))
    return Project(tmp_path).write(
        pytest_ini="[pytest]\n",
        lmgate_yaml="""
            models: {longrope: {path: longrope}, llama: {path: llama}}
            datasets: {rows: {path: rows.txt, lines: true}}
        """,
        test_gates="""
            import pytest

            @pytest.mark.ppl_max("longrope", "rows", 1e9, protocol="document")
            def test_gate(): pass

            @pytest.mark.ppl_max("llama", "rows", 1e9, protocol="document")
            def test_other(): pass

            def test_fixture(ppl_of):
                assert ppl_of("longrope", "rows", protocol="lm-eval") < 1e9
        """,
    )


def test_a_model_whose_rows_run_alone_is_named_once_and_not_again_from_the_cache(project: Project) -> None:
    first = project.run("-n", "2").expect(0, passed=3)

    assert first.out.count(SAID) == 1
    assert "model 'llama': the numbers" not in first.text
    project.run(torch_free=True).expect(0, passed=3).is_silent_on(SAID)
