"""The example's committed data and models are those that its scripts write, and its optimum is that of its text."""

import math
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from example_project.weather import corpus, quiz, references
from example_project.weather.optimum import best_bits_per_byte, best_perplexity, expected_bulletin

EXAMPLE = Path(__file__).parents[2] / "example_project"


@pytest.mark.parametrize(
    ("name", "lines"), [("bulletins", corpus.held_out_lines), ("records", references.lines), ("quiz", quiz.lines)]
)
def test_the_committed_rows_are_what_the_generator_writes(name: str, lines: Callable[[], Iterator[str]]) -> None:
    committed = (EXAMPLE / "data" / f"{name}.jsonl").read_bytes()
    assert "".join(f"{line}\n" for line in lines()).encode() == committed


@pytest.mark.torch
@pytest.mark.parametrize("name", ["int8", "int4", "broken-writer"])
def test_the_committed_candidates_are_what_the_script_makes(name: str) -> None:
    import torch
    from safetensors.torch import load_file

    from example_project.quantize import CANDIDATES, candidate

    committed = load_file(EXAMPLE / "models" / name / "model.safetensors")
    made = candidate(*CANDIDATES[name]).state_dict()
    assert set(committed) == set(made) - {"lm_head.weight"}, "the head is tied to the embedding"
    assert all(torch.equal(weight, made[key]) for key, weight in committed.items())


def test_the_best_possible_figures_are_those_that_the_readme_prints() -> None:
    bulletin = expected_bulletin()
    assert math.log(best_perplexity()) * bulletin.tokens == pytest.approx(bulletin.nats)
    assert best_bits_per_byte() * bulletin.utf8_bytes * math.log(2) == pytest.approx(bulletin.nats)
    assert best_perplexity() == pytest.approx(1.996306, abs=1e-6)
