"""`lmgate fix`: whether it names planted damage, and how many bytes it needs for real rounding.

Planted: a Llama of 12 blocks with random weights is rounded to 8 bits; one, three or five groups of its linear layers,
drawn at random, to 2 bits or 3, or get noise instead. The gate allows 1.5 times the KL of the 8 bits alone. The groups
that are kept have to be the planted ones, and none where nothing was planted.

Real: a checkpoint is rounded to nearest, with a scale for each row or for each 32 weights. At several limits the bytes
of the smallest model that passes on the searched rows are compared, and its KL on rows that no choice has read: `fix`,
whole blocks by their KL for a byte as `lmgate why` measures it, groups by their weight error for a byte, and uniform
precision. What is kept has 16 bits.

    python benchmarks/fix.py --planted --runs 20
    python benchmarks/fix.py --real FOLDER --text FILE.jsonl
"""

from __future__ import annotations

import argparse
import copy
import json
import random
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent.parent))

import torch

from pytest_lmgate.engines.transformers.hybrids import By, Hybrids
from pytest_lmgate.judge.fix import Limit, fix, split
from pytest_lmgate.measure.divergence import Divergences
from pytest_lmgate.measure.evaluator import Evaluator
from pytest_lmgate.settings.file import Project
from pytest_lmgate.settings.requests import DivergenceRequest, Protocol
from pytest_lmgate.settings.session import Options
from tests.measure.conftest import make_tokenizer
from tests.measure.test_why import make_reference, quantize, text

PROTOCOL = Protocol("document")
MODULES = {"qkv": "q_proj k_proj v_proj", "o": "o_proj", "up": "gate_proj up_proj", "down": "down_proj"}
KEPT_BITS = 16


def damage(modules: Sequence[Any], kind: str) -> None:
    """Round layers to 2 or 3 bits, or add noise of 30% of their weights' deviation."""
    for module in modules:
        if kind == "noise":
            with torch.no_grad():
                module.weight.add_(0.3 * module.weight.std() * torch.randn(module.weight.shape))
        else:
            quantize(module, bits=int(kind))


def planted(seed: int, count: int, rows: int) -> tuple[list[str], list[str], str, float]:
    """Return the groups that were damaged, those that are kept, the proof's outcome, and seconds."""
    drawn = random.Random(seed)
    torch.manual_seed(seed)
    reference = make_reference(seed, layers=12)
    rounded, candidate, tokenizer = copy.deepcopy(reference), copy.deepcopy(reference), make_tokenizer()
    places = drawn.sample([(layer, kind) for layer in range(12) for kind in MODULES], count)
    quantize(rounded, bits=8)
    damaged = []
    for layer, kind in places:
        block = candidate.model.layers[layer]
        found = [module for name, module in block.named_modules() if name.split(".")[-1] in MODULES[kind].split()]
        damage(found, drawn.choice(["2", "3", "noise"]))
        damaged += [id(each) for each in found]
    for module in candidate.modules():
        if getattr(module, "weight", None) is not None and id(module) not in damaged:
            quantize(module, bits=8)
    texts = [text(drawn.randint(10, 60), 1000 * seed + row) for row in range(rows)]
    original = (reference, tokenizer)
    with tempfile.TemporaryDirectory() as folder:
        evaluator = Evaluator(Project(Path(folder)), Options(Path(folder) / "cache"))
        q, p = (evaluator.resolver.model(each) for each in ((rounded, tokenizer), original))
        request = DivergenceRequest(original, PROTOCOL)
        least = evaluator.measurements.once(
            lambda: Divergences("compare", q, evaluator.resolver.corpus(texts), request, p)
        ).statistics
        limit = Limit("kl", 1.5 * float(least.kl.mean()), 0.95, PROTOCOL)
        started = time.monotonic()
        found = fix(
            evaluator,
            (candidate, tokenizer),
            original,
            texts,
            limit=limit,
            budget=None,
            tokens=10**6,
            bits=8,
            seed=seed,
        )
    kept = [] if found.chosen is None else sorted(found.groups[index].part.name for index in found.chosen.kept)
    names = sorted(f"model.layers.{layer} {kind}" for layer, kind in places)
    return names, kept, found.proof.outcome if found.proof else "passes", time.monotonic() - started


def run_planted(counts: Sequence[int], runs: int, rows: int) -> None:
    for count in counts:
        right, outcomes, seconds = 0, [], 0.0
        for seed in range(runs):
            names, kept, outcome, took = planted(seed, count, rows)
            right, seconds = right + (names == kept), seconds + took
            outcomes.append(outcome)
            right_or_not = "right" if names == kept else f"{names}, kept {kept}"
            print(f"  {count} planted, seed {seed}: {right_or_not}, {outcome}, {took:.0f} s", flush=True)
        verdicts = ", ".join(f"{outcomes.count(each)} {each}" for each in dict.fromkeys(outcomes))
        print(
            f"{count} planted: exactly these in {right} of {runs}; {verdicts}; {seconds / runs:.0f} s a run", flush=True
        )


def rounded_by(model: Any, bits: int, group: int | None) -> Any:
    """Return a copy with every matrix rounded to nearest, with a scale for each row or for so many weights of it."""
    found, steps, seen = copy.deepcopy(model), 2 ** (bits - 1) - 1, set()
    with torch.no_grad():
        for parameter in found.parameters():
            if parameter.dim() == 2 and id(parameter) not in seen:
                seen.add(id(parameter))
                size = group if group and parameter.shape[1] % group == 0 else parameter.shape[1]
                weight = parameter.reshape(parameter.shape[0], -1, size)
                scale = weight.abs().amax(-1, keepdim=True).clamp_min(1e-12) / steps
                parameter.copy_(((weight / scale).round() * scale).reshape(parameter.shape))
    return found


class Bench:
    """A reference and a candidate on the searched rows and on the others."""

    def __init__(self, folder: Path, original: Any, candidate: Any, texts: list[str], bits: float) -> None:
        self.evaluator = Evaluator(Project(folder), Options(folder / "cache"))
        self.original, self.candidate, self.texts, self.bits = original, candidate, texts, bits
        find = self.evaluator.resolver
        self.p, self.q = find.model(original), find.model(candidate)
        self.halves = split(find.corpus(texts), by_document=True, seed=0)
        self.runners = self.evaluator.together(self.p, self.q)
        self.request = DivergenceRequest(original, PROTOCOL)

    def kl(self, model: Any, half: int) -> float:
        found = self.evaluator.measurements.once(
            lambda: Divergences("compare", model, self.halves[half], self.request, self.p)
        )
        return float(found.statistics.kl.mean())

    def alone(self, hybrids: Hybrids, part: Any) -> float:
        return self.kl(hybrids.model(part, healed=False), 0)

    def ranked(self, by: By, score: Callable[[Hybrids, Any], float]) -> list[tuple[int, float, float]]:
        """Keep one part more at a time, by score for a byte: extra bytes, KL on the searched rows and on the others."""
        hybrids = Hybrids(self.p, self.q, self.runners, by=by)
        extra = {part: hybrids.size(part).matrices[0] * (KEPT_BITS - self.bits) / 8 for part in hybrids.parts}
        parts = sorted(
            (part for part in hybrids.parts if extra[part] > 0),
            key=lambda part: -score(hybrids, part) / extra[part],
        )
        found = []
        for count in range(1, len(parts) + 1):
            model = hybrids.model(*parts[:count], healed=True)
            found.append((int(sum(extra[each] for each in parts[:count])), self.kl(model, 0), self.kl(model, 1)))
        return found


def weight_error(bench: Bench) -> Callable[[Hybrids, Any], float]:
    ours, theirs = (dict(runner.loaded.model.named_modules()) for runner in bench.runners)  # type: ignore[attr-defined]

    def score(hybrids: Hybrids, part: Any) -> float:
        names = [name for path in part.paths for name in ours if name == path or name.startswith(f"{path}.")]
        pairs = [
            (ours[name].weight, theirs[name].weight)
            for name in names
            if getattr(ours[name], "weight", None) is not None
        ]
        error, size = (
            sum(float((each**2).sum()) for each in what) for what in ([a - b for a, b in pairs], [a for a, _ in pairs])
        )
        return error / size if size else 0.0

    return score


def run_real(folder: Path, file: Path, rows: int) -> None:
    import transformers

    model = transformers.AutoModelForCausalLM.from_pretrained(folder).eval()
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    texts = [json.loads(line)["text"] for line in file.read_text().splitlines()][:rows]
    numbers = sum(each.numel() for each in model.parameters() if each.dim() == 2)
    for bits, group in ((3, None), (3, 32), (4, None), (4, 32)):
        stored = bits + (16 / group if group else 0)
        with tempfile.TemporaryDirectory() as temporary:
            candidate = (rounded_by(model, bits, group), tokenizer)
            bench = Bench(Path(temporary), (model, tokenizer), candidate, texts, stored)
            whole = bench.kl(bench.q, 0)
            blocks = bench.ranked("block", bench.alone)
            errors = bench.ranked("group", weight_error(bench))
            uniform = []
            for more in range(bits + 1, 9):
                other = bench.evaluator.resolver.model((rounded_by(model, more, group), tokenizer))
                uniform.append((int(numbers * (more - bits) / 8), bench.kl(other, 0), bench.kl(other, 1)))
            size = numbers * stored / 8
            print(f"\n{bits} bits, {f'a scale for {group}' if group else 'a scale for each row'}: KL {whole:.4g}")
            print(f"{'limit':>9}  {'fix':>22}  {'blocks by KL':>22}  {'groups by error':>22}  {'uniform':>22}")
            for share in (0.7, 0.5, 0.35, 0.25, 0.15, 0.1, 0.05):
                limit = Limit("kl", share * whole, 0.95, PROTOCOL, by_value=True)
                found = fix(
                    bench.evaluator,
                    candidate,
                    bench.original,
                    texts,
                    limit=limit,
                    budget=None,
                    tokens=10**7,
                    bits=stored,
                )
                assert found.chosen is not None
                assert found.proof is not None
                # The others get the bound of ours as their limit, so that all have passed at the same KL.
                extra = found.chosen.extra * (KEPT_BITS - stored) / (32 - stored)  # the original is in float32 here
                most = max(found.chosen.kl, share * whole * found.chosen.kl / found.chosen.judged.upper)
                line = [(extra, found.proof.value.mean)]
                for curve in (blocks, errors, uniform):
                    passing = [(each[0], each[2]) for each in curve if each[1] <= most]
                    line.append(min(passing) if passing else (float("nan"), float("nan")))
                cells = "  ".join(f"{f'+{100 * more / size:.1f}% KL {kl:.4f}':>22}" for more, kl in line)
                print(f"{share * whole:9.4f}  {cells}", flush=True)


def main() -> None:
    """Print what was asked for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--planted", action="store_true")
    parser.add_argument("--counts", type=int, nargs="+", default=[0, 1, 3, 5], help="planted: groups that are damaged")
    parser.add_argument("--runs", type=int, default=20, help="planted: runs of each number of groups")
    parser.add_argument("--rows", type=int, default=120, help="rows of the text")
    parser.add_argument("--real", type=Path, help="folder of a checkpoint")
    parser.add_argument("--text", type=Path, help="JSON Lines with the column text")
    given = parser.parse_args()
    if given.planted:
        run_planted(given.counts, given.runs, given.rows)
    if given.real:
        run_real(given.real, given.text, given.rows)


if __name__ == "__main__":
    main()
