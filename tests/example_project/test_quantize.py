from __future__ import annotations

import pytest
import torch
from safetensors.torch import load_file

from example_project.quantize import CANDIDATES, candidate, rounded


def test_rounding_by_hand():
    weight = torch.tensor([[7.0, -3.4, 0.4, 0.6], [-3.5, 1.75, 0.0, 0.6]])
    assert rounded(weight, 4, 7)[0].tolist() == [7.0, -3.0, 0.0, 1.0]
    # The second row's scale is a half: 1.75 is 3.5 steps, to the even 4; 0.6 is 1.2 steps.
    assert rounded(weight, 4, 7)[1].tolist() == [-3.5, 2.0, 0.0, 0.5]


def test_eight_bits_are_never_off_by_more_than_half_a_step():
    weight = torch.randn(20, 30, generator=torch.Generator().manual_seed(0))
    half_a_step = weight.abs().amax(dim=1, keepdim=True) / 127 / 2
    assert ((rounded(weight, 8, 127) - weight).abs() <= half_a_step * 1.0001).all()


def test_float16_holds_a_rounded_weight_to_a_sixteenth_of_a_step():
    exact = rounded(torch.randn(20, 30, generator=torch.Generator().manual_seed(0)), 8, 127)
    step = exact.abs().amax(dim=1, keepdim=True) / 127
    assert ((exact.half().float() - exact).abs() <= step / 16).all()


def test_fewer_bits_are_off_by_half_a_wider_step():
    weight = torch.randn(20, 30, generator=torch.Generator().manual_seed(0))
    peak = weight.abs().amax(dim=1, keepdim=True)
    for bits, steps in ((4, 7), (3, 3)):
        made = rounded(weight, bits, steps)
        assert ((made - weight).abs() <= peak / steps / 2 * 1.0001).all()
        assert all(len(row.unique()) <= 2 * steps + 1 for row in made)


def test_the_mistake_clips_what_is_beyond_half_of_the_peak():
    weight = torch.tensor([[15.0, 9.0, 6.0, -15.0]])
    assert rounded(weight, 4, 15).tolist() == [[7.0, 7.0, 6.0, -7.0]]


@pytest.mark.parametrize("name", CANDIDATES)
def test_the_committed_candidates_are_what_the_script_makes(example, name):
    committed = load_file(example / "models" / name / "model.safetensors")
    made = candidate(*CANDIDATES[name]).state_dict()
    assert set(committed) == set(made) - {"lm_head.weight"}, "the head is tied to the embedding"
    for key, weight in committed.items():
        assert weight.dtype == torch.float16
        assert torch.equal(weight, made[key]), key


def test_the_committed_models_are_small(example):
    assert sum(file.stat().st_size for file in (example / "models").rglob("*")) < 4_200_000
