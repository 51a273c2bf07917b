"""Makes the candidates of this repository from what is trained here, by rounding its weights to nearest.

    python quantize.py

models/int8, models/int4 and models/int3 are as they should be: so many bits and one scale for each output row. Whether
they are good enough is for test_quantization.py to say. models/broken and models/broken-writer have 4 bits and a
mistake: their scales are those of an unsigned grid (15 steps to the peak) where a signed one ends at 7, so that every
weight beyond half its row's peak is clipped. They load, run and write bulletins that look right at a glance.

Each weight is stored as the float16 nearest to its rounded value, at most a sixteenth of an int8 step away, so that
plain ``from_pretrained`` loads it.
"""

from __future__ import annotations

import shutil
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM

MODELS = Path(__file__).parent / "models"
CANDIDATES = {
    "int8": ("float", 8, 127),
    "int4": ("float", 4, 7),
    "int3": ("float", 3, 3),
    "broken": ("float", 4, 15),
    "broken-writer": ("writer", 4, 15),
}
"""Of each candidate the model it is made from, its bits, and the steps to each row's peak."""


def rounded(weight: torch.Tensor, bits: int, steps_to_peak: int) -> torch.Tensor:
    """Round a weight matrix to nearest on a symmetric grid, each row with a scale of its own.

    Args:
        weight: Shape ``[outputs, inputs]``.
        bits: The grid's whole numbers end at 2 ** (bits - 1) - 1 on both sides.
        steps_to_peak: The scale is a row's largest magnitude divided by this; right is where the grid ends.

    Returns:
        The rounded weights times their scales, of the same shape and dtype.
    """
    end = 2 ** (bits - 1) - 1
    scale = weight.abs().amax(dim=1, keepdim=True) / steps_to_peak
    return torch.round(weight / scale).clamp(-end, end) * scale


def candidate(original: str, bits: int, steps_to_peak: int) -> torch.nn.Module:
    """Return the model `original` in float16 with all its matrices rounded, the embedding too."""
    model = AutoModelForCausalLM.from_pretrained(MODELS / original, dtype=torch.float32)
    for parameter in model.parameters():
        if parameter.dim() == 2:
            parameter.data = rounded(parameter.data, bits, steps_to_peak)
    return model.half()


def main() -> None:
    """Write the candidates, with the tokenizers of their originals."""
    for name, (original, bits, steps_to_peak) in CANDIDATES.items():
        candidate(original, bits, steps_to_peak).save_pretrained(MODELS / name)
        for file in ("tokenizer.json", "tokenizer_config.json"):
            shutil.copyfile(MODELS / original / file, MODELS / name / file)
        print(f"wrote models/{name}: models/{original} in {bits} bits, {steps_to_peak} steps to each row's peak")


if __name__ == "__main__":
    main()
