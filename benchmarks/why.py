"""How often `lmgate why` finds a damaged layer, and how often it names a layer of an undamaged model.

Each run draws a Llama of 12 layers with random weights and a text, and measures two candidates: of one a layer, drawn
at random, is rounded to 4 bits; of the other, A/A, all layers are rounded alike, to 8 bits, and none should be named.

    python benchmarks/why.py --runs 20 --tokens 20000
"""

from __future__ import annotations

import argparse
import copy
import random
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent))

from pytest_lmgate.measure.evaluator import Evaluator
from pytest_lmgate.measure.why import why
from pytest_lmgate.settings.file import Project
from pytest_lmgate.settings.requests import Protocol
from pytest_lmgate.settings.session import Options
from tests.measure.conftest import make_tokenizer
from tests.measure.test_why import LAYERS, make_reference, quantize, text


def named(seed: int, tokens: int, *, damaged: int | None) -> list[str]:
    """Return the parts that are named in one run."""
    reference, tokenizer = make_reference(seed), make_tokenizer()
    candidate = copy.deepcopy(reference)
    if damaged is None:
        quantize(candidate, bits=8)
    else:
        quantize(candidate.model.layers[damaged], bits=4)
    with tempfile.TemporaryDirectory() as folder:
        evaluator = Evaluator(Project(Path(folder)), Options(Path(folder) / "cache"))
        pair, original = (candidate, tokenizer), (reference, tokenizer)
        asked = {"protocol": Protocol("disjoint"), "tokens": tokens, "seconds": 1e9}
        found = why(evaluator, pair, original, [text(tokens, seed)], **asked)
    return [each.part for each in found.parts if each.stands_out]


def main() -> None:
    """Print a line a run and both counts."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=20, help="runs of each kind")
    parser.add_argument("--tokens", type=int, default=20_000)
    given = parser.parse_args()
    found = false = 0
    for seed in range(given.runs):
        started, layer = time.monotonic(), random.Random(seed).randrange(LAYERS)
        one, none = named(seed, given.tokens, damaged=layer), named(seed, given.tokens, damaged=None)
        found += one == [f"model.layers.{layer}"]
        false += bool(none)
        print(
            f"run {seed}: layer {layer} damaged, named {one}; A/A named {none}; {time.monotonic() - started:.0f} s",
            flush=True,
        )
    print(f"found {found} of {given.runs}; named a layer in {false} of {given.runs} A/A runs; {given.tokens:,} tokens")


if __name__ == "__main__":
    main()
