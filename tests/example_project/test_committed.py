"""The example's committed data and models are those that its scripts write, and its optimum is that of its text."""

import math
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path
from statistics import fmean, stdev

import pytest

from example_project.weather import corpus, quiz, references
from example_project.weather.optimum import best_bits_per_byte, best_perplexity, expected_bulletin
from example_project.weather.tokens import split

EXAMPLE = Path(__file__).parents[2] / "example_project"


@pytest.mark.parametrize(
    ("name", "lines"), [("bulletins", corpus.held_out_lines), ("records", references.lines), ("quiz", quiz.lines)]
)
def test_the_committed_rows_are_what_the_generator_writes(name: str, lines: Callable[[], Iterator[str]]) -> None:
    committed = (EXAMPLE / "data" / f"{name}.jsonl").read_bytes()
    assert "".join(f"{line}\n" for line in lines()).encode() == committed


@pytest.mark.torch
@pytest.mark.parametrize("name", ["int8", "int4", "int3", "broken", "broken-writer"])
def test_the_committed_candidates_are_what_the_script_makes(name: str) -> None:
    import torch
    from safetensors.torch import load_file

    from example_project.quantize import CANDIDATES, candidate

    committed = load_file(EXAMPLE / "models" / name / "model.safetensors")
    made = candidate(*CANDIDATES[name]).state_dict()
    assert set(committed) == set(made) - {"lm_head.weight"}, "the head is tied to the embedding"
    assert all(torch.equal(weight, made[key]) for key, weight in committed.items())


def test_the_best_possible_perplexity_is_the_entropy_of_the_source() -> None:
    """Sampled texts agree with the closed form within four standard errors."""
    bulletins = list(islice(corpus.draw_bulletins(seed=77), 4_000))
    sampled = {
        "nats": [bulletin.surprisal for bulletin in bulletins],
        "tokens": [len(split(bulletin.text + "\n\n")) for bulletin in bulletins],
        "utf8_bytes": [len((bulletin.text + "\n\n").encode()) for bulletin in bulletins],
    }
    bulletin = expected_bulletin()
    for name, values in sampled.items():
        assert abs(fmean(values) - getattr(bulletin, name)) < 4 * stdev(values) / math.sqrt(len(values)), name
    assert math.log(best_perplexity()) * bulletin.tokens == pytest.approx(bulletin.nats)
    assert best_bits_per_byte() * bulletin.utf8_bytes * math.log(2) == pytest.approx(bulletin.nats)
    assert best_perplexity() == pytest.approx(1.996306, abs=1e-6), "the README prints it"
