"""Rows of which several texts are drawn, through pytest."""

import pytest

from tests.end_to_end.projects import COUNT_MEASUREMENTS, Project, marked
from tests.end_to_end.writers import CHAINS, write_rows

WORDS = [word for chain in CHAINS for word in chain]


@pytest.fixture
def project(writing: Project) -> Project:
    rows, draws = 'path: drawn.jsonl, prompt: "{start}", references: half', "temperature: 1, seed: 3, max_new_tokens: 1"
    write_rows(writing, "drawn", [{"start": word, "half": WORDS[::2]} for word in WORDS])
    writing.add("datasets", drawn=f"{rows}, repeats: 4, {draws}", plain=rows)
    return writing.write(conftest=COUNT_MEASUREMENTS)


def test_rows_are_written_several_times_and_one_generation_serves_all_variants(project: Project) -> None:
    project.write(
        test_repeats="""
            import itertools
            import pytest

            @pytest.mark.exact_min("even", "drawn", 0.01, variant="pass@4")
            @pytest.mark.no_regression("exact", "even", "drawn", 0.0, against="even", same=True)
            def test_gates(): pass

            def test_values(exact_of):
                mean = exact_of("even", "drawn")
                once = exact_of("even", "plain", temperature=1, seed=3, max_new_tokens=1)
                passed = [exact_of("even", "drawn", variant=f"pass@{k}").value for k in (1, 2, 3, 4)]
                assert 0 < mean.value == pytest.approx(passed[0])
                assert all(less < more for less, more in itertools.pairwise(passed))
                assert mean.n == once.n == mean.details["clusters"]
                assert "repeats:4" in mean.signature and "repeats" not in once.signature
                assert mean.details["matches"] == round(4 * mean.n * mean.value)
                assert 0 < exact_of("even", "drawn", variant="majority").value < passed[3]
        """
    )
    project.run().expect(0, passed=2)
    assert project.measured.count("even") == 2


WRONG = {
    "'plain', 0.1, repeats=4": "repeats: without sampling all texts are the same",
    "'plain', 0.1, repeats=0": "repeats: expected a whole number from 1",
    "'plain', 0.1, variant='pass@2'": "expected repeats=2 or more",
    "'drawn', 0.1, variant='pass@5'": "expected repeats=5 or more",
    "'drawn', 0.1, variant='pass@0'": "variant: expected an extraction of the dataset",
}


def test_repeats_that_mean_nothing_are_an_error(project: Project) -> None:
    project.write(test_bad=marked(**{f"_{at}": f"exact_min('even', {each})" for at, each in enumerate(WRONG)}))
    project.run(torch_free=True).expect(4).says(*WRONG.values())
    assert not project.measured
