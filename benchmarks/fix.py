"""`lmgate fix`: whether it names planted damage, how many bytes it needs for real rounding, and what its proof passes.

Planted: a Llama of 12 blocks with random weights is rounded to 8 bits; one, three or five groups of its linear layers,
drawn at random, to 2 bits or 3, or get noise instead. The gate allows 1.5 times the KL of the 8 bits alone. The groups
that are kept have to be the planted ones, and none where nothing was planted.

Real: a checkpoint is rounded to nearest, with a scale for each row or for each 32 weights. At several limits the sizes
of the smallest models that pass on the searched rows are compared, and their KL on rows that no choice has read: `fix`,
whole blocks by their KL for a byte as `lmgate why` measures it, groups by their weight error for a byte, and uniform
precision. All may keep with the fewest bits with which a uniform model passes, or with one more.

Splits: how often the proof passes a model whose mean over a pool of rows is exactly the limit. The rows are written by
the checkpoint, and those of --text are a second pool. Each model is measured once; then rows are drawn, split by the
package and judged by it.

    python benchmarks/fix.py --planted --runs 20
    python benchmarks/fix.py --real FOLDER --text FILE.jsonl --rows 44
    python benchmarks/fix.py --splits 400 --pool 1000 --model FOLDER --text FILE.txt
"""

from __future__ import annotations

import argparse
import copy
import itertools
import json
import math
import random
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from subject import word_tokenizer

from pytest_lmgate.measure.divergence import Divergences
from pytest_lmgate.measure.evaluator import Evaluator
from pytest_lmgate.metrics.divergence import DivergenceStatistics
from pytest_lmgate.settings.file import Project
from pytest_lmgate.settings.gate_options import DivergenceRequest, WindowProtocol
from pytest_lmgate.settings.session import Options
from pytest_lmgate.stats.means import skewness
from pytest_lmgate.tools.fix.costs import bind_pair
from pytest_lmgate.tools.fix.hybrids import By, Hybrids, Part
from pytest_lmgate.tools.fix.search import Limit, fix, split

PROTOCOL = WindowProtocol("document")
MODULES = {"qkv": "q_proj k_proj v_proj", "o": "o_proj", "up": "gate_proj up_proj", "down": "down_proj"}
SHARES = (0.7, 0.5, 0.35, 0.25, 0.15, 0.08)  # of the candidate's KL: the limits
KEEPS = 2
WORDS = [f"w{number}" for number in range(31)]


def make_reference(seed: int) -> Any:
    """Draw a Llama of 12 blocks whose logits differ enough that rounding it costs something."""
    import transformers

    torch.manual_seed(seed)
    config = transformers.LlamaConfig(
        vocab_size=32, hidden_size=16, intermediate_size=32, num_hidden_layers=12, num_attention_heads=2,
        max_position_embeddings=32, initializer_range=0.2, bos_token_id=31, eos_token_id=31,
    )  # fmt: skip
    return transformers.LlamaForCausalLM(config).eval()


def quantize(module: Any, bits: int) -> None:
    """Round a layer's matrix to so many bits, with a scale for each row."""
    with torch.no_grad():
        if module.weight.dim() == 2:
            scale = module.weight.abs().amax(1, keepdim=True).clamp_min(1e-12) / (2 ** (bits - 1) - 1)
            module.weight.copy_((module.weight / scale).round() * scale)


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
    reference = make_reference(seed)
    rounded, candidate, tokenizer = copy.deepcopy(reference), copy.deepcopy(reference), word_tokenizer(WORDS)
    places = drawn.sample([(layer, kind) for layer in range(12) for kind in MODULES], count)
    for module in rounded.modules():
        if getattr(module, "weight", None) is not None:
            quantize(module, bits=8)
    damaged = []
    for layer, kind in places:
        block = candidate.model.layers[layer]
        found = [module for name, module in block.named_modules() if name.split(".")[-1] in MODULES[kind].split()]
        damage(found, drawn.choice(["2", "3", "noise"]))
        damaged += [id(each) for each in found]
    for module in candidate.modules():
        if getattr(module, "weight", None) is not None and id(module) not in damaged:
            quantize(module, bits=8)
    texts = [" ".join(drawn.choices(WORDS, k=drawn.randint(40, 240))) for _ in range(rows)]
    original = (reference, tokenizer)
    with tempfile.TemporaryDirectory() as folder:
        evaluator = Evaluator(Project(Path(folder)), Options(Path(folder) / "cache"))
        q, p = (evaluator.resolver.model(each) for each in ((rounded, tokenizer), original))
        request = DivergenceRequest(original, PROTOCOL)
        least = evaluator.measurements.get_or_measure(
            lambda: Divergences("compare", q, evaluator.resolver.corpus(texts), request, p)
        ).statistics
        limit = Limit("kl", 1.5 * float(least.kl.mean()), 0.95, PROTOCOL)
        started = time.monotonic()
        found = fix(
            evaluator,
            bind_pair(evaluator, ((candidate, tokenizer), original, texts), PROTOCOL),
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
    """A reference, its rounding to few bits and to more bits, on the searched rows and on the others."""

    def __init__(self, folder: Path, original: Any, rounded: dict[int, Any], bits: int, texts: list[str]) -> None:
        self.evaluator = Evaluator(Project(folder), Options(folder / "cache"))
        find = self.evaluator.resolver
        self.original, self.rounded, self.bits, self.texts = original, rounded, bits, texts
        self.p, self.models = find.model(original), {more: find.model(pair) for more, pair in rounded.items()}
        self.halves = split(find.corpus(texts), by_document=True, seed=0)
        self.request = DivergenceRequest(original, PROTOCOL)
        self.why, self.groups = self.hybrids(None, "block"), self.hybrids(None, "group")

    def hybrids(self, keep: int | None, by: By) -> Hybrids:
        """Return hybrids of the candidate and the reference, or of the candidate and a rounding to more bits."""
        q = self.models[self.bits]
        if keep is None:
            return Hybrids(self.p, q, self.evaluator.together(self.p, q), by=by)
        p_runner, *runners = self.evaluator.together(self.p, self.models[keep], q)
        return Hybrids(self.models[keep], q, runners, by=by, original=(self.p, p_runner))

    def statistics(self, model: Any, half: int) -> Any:
        return self.evaluator.measurements.get_or_measure(
            lambda: Divergences("compare", model, self.halves[half], self.request, self.groups.reference)
        ).statistics

    def kl(self, model: Any, half: int) -> float:
        return float(self.statistics(model, half).kl.mean())

    def passes(self, limit: Limit, model: Any) -> bool:
        return limit.judge(self.statistics(model, 0)).outcome == "pass"

    def ordered(self, by: By) -> list[str]:
        """Return parts by what each costs for a byte: blocks by KL as in `why`, groups by their weights' error."""
        hybrids = self.why if by == "block" else self.groups
        sizes = {part: hybrids.size(part).matrices[0] for part in hybrids.parts}
        score = self._weight_error if by == "group" else lambda part: self.kl(hybrids.model(part, healed=False), 0)
        return [part.name for part in sorted(filter(sizes.get, sizes), key=lambda part: -score(part) / sizes[part])]

    def _weight_error(self, part: Any) -> float:
        error = size = 0.0
        for path in part.paths:
            modules = (each[0].get_submodule(path) for each in (self.original, self.rounded[self.bits]))
            ours, theirs = (module.state_dict().values() for module in modules)
            error += sum(float(((one - other) ** 2).sum()) for one, other in zip(ours, theirs, strict=True))
            size += sum(float((one**2).sum()) for one in self.original[0].get_submodule(path).state_dict().values())
        return error / size

    def smallest(self, keep: int, by: By, order: list[str], limit: Limit) -> tuple[float, float] | None:
        """Keep one part more at a time until it passes on the searched rows: extra bytes, KL on the others."""
        hybrids, extra = self.hybrids(keep, by), 0.0
        parts = {part.name: part for part in hybrids.parts}
        kept: list[Any] = []
        for name in order:
            kept.append(parts[name])
            extra += hybrids.size(parts[name]).matrices[0] * (keep - self.bits) / 8
            model = hybrids.model(*kept, healed=True)
            if self.passes(limit, model):
                return extra, self.kl(model, 1)
        return None

    def fixed(self, keep: int, scales: float, limit: Limit) -> tuple[float, float] | None:
        """Return what `fix` finds: extra bytes, KL on the rows that it did not search."""
        bound = bind_pair(self.evaluator, (self.rounded[self.bits], self.original, self.texts), PROTOCOL)
        found = fix(
            self.evaluator, bound, limit=limit, budget=None,
            tokens=10**7, keep=self.rounded[keep], bits=self.bits + scales, keep_bits=keep + scales,
        )  # fmt: skip
        assert found.chosen is not None
        assert found.proof is not None
        return found.chosen.extra, found.proof.value.mean


METHODS = ("fix", "whole blocks", "weight error", "uniform")


def run_real(folder: Path, file: Path, rows: int, characters: int, widths: Sequence[int]) -> None:
    """Print bits for each weight of the smallest model that passes, by method."""
    import transformers

    model = transformers.AutoModelForCausalLM.from_pretrained(folder).eval()
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    texts = [text[:characters] for text in rows_of(file)[:rows]]
    numbers = sum(each.numel() for each in model.parameters() if each.dim() == 2)
    points: list[dict[str, Any]] = []
    for bits, group in itertools.product(widths, (None, 32)):
        scales = 16 / group if group else 0
        pairs = {more: (rounded_by(model, more, group), tokenizer) for more in range(bits, 9)}
        with tempfile.TemporaryDirectory() as temporary:
            bench = Bench(Path(temporary), (model, tokenizer), pairs, bits, texts)
            whole = bench.kl(bench.models[bits], 0)
            blocks, groups = bench.ordered("block"), bench.ordered("group")
            print(f"\n{bits} bits, {f'a scale for {group}' if group else 'a scale for each row'}: KL {whole:.4g}")
            print(f"{'KL at most':>10}  " + "  ".join(f"{each:>18}" for each in METHODS), flush=True)
            for share in SHARES:
                limit = Limit("kl", share * whole, 0.95, PROTOCOL, by_value=True)
                passing = [
                    more for more in range(bits + 1, 9)
                    if bench.passes(limit, bench.models[more])
                ]  # fmt: skip
                found: dict[str, list[tuple[float, float]]] = {each: [] for each in METHODS}
                for keep in passing[:KEEPS]:
                    some = [
                        bench.fixed(keep, scales, limit),
                        bench.smallest(keep, "block", blocks, limit),
                        bench.smallest(keep, "group", groups, limit),
                        (numbers * (keep - bits) / 8, bench.kl(bench.models[keep], 1)),
                    ]
                    for method, one in zip(METHODS, some, strict=True):
                        found[method] += [] if one is None else [one]
                best = {method: min(each) for method, each in found.items() if each}
                sizes = {method: (bits + scales + 8 * extra / numbers, kl) for method, (extra, kl) in best.items()}
                points.append({"bits": bits, "group": group, "limit": share * whole, "sizes": sizes})
                cells = (f"{sizes[each][0]:.2f}, KL {sizes[each][1]:.4f}" for each in METHODS)
                print(f"{share * whole:10.4f}  " + "  ".join(f"{each:>18}" for each in cells), flush=True)
    for other in METHODS[1:]:
        saved = sorted(1 - point["sizes"]["fix"][0] / point["sizes"][other][0] for point in points)
        print(
            f"smaller than {other}: {sum(each > 0 for each in saved)} of {len(saved)}, larger: "
            f"{sum(each < -1e-9 for each in saved)}; by 10% or more: {sum(each >= 0.1 for each in saved)}; "
            f"median {100 * saved[len(saved) // 2]:.1f}%"
        )


def rows_of(file: Path) -> list[str]:
    """Return the rows of JSON Lines; of another text, its long lines."""
    lines = file.read_text(encoding="utf-8").splitlines()
    if file.suffix == ".jsonl":
        return [json.loads(line)["text"] for line in lines]
    return [line.strip() for line in lines if len(line) > 400]


class Pool:
    """A checkpoint and its rounding on many rows, each model measured once."""

    def __init__(self, folder: Path, original: Any, candidate: Any, texts: Sequence[str]) -> None:
        self.evaluator = Evaluator(Project(folder), Options(folder / "cache"))
        find = self.evaluator.resolver
        p, q = find.model(original), find.model(candidate)
        self.corpus = find.corpus(list(texts))
        self.hybrids = Hybrids(p, q, self.evaluator.together(p, q), by="group")
        self.places = {text: place for place, text in enumerate(texts)}
        self.request = DivergenceRequest(original, PROTOCOL)

    def statistics(self, *parts: Part, healed: bool = True) -> DivergenceStatistics:
        model = self.hybrids.model(*parts, healed=healed)
        return self.evaluator.measurements.get_or_measure(  # type: ignore[no-any-return]
            lambda: Divergences("compare", model, self.corpus, self.request, self.hybrids.reference)
        ).statistics

    def halves(self, rows: int, random: np.random.Generator) -> tuple[list[int], list[int]]:
        """Draw twice as many rows and return the places of the search's and of the proof's."""
        drawn = random.choice(len(self.corpus.rows), 2 * rows, replace=False)
        corpus = replace(self.corpus, rows=tuple(self.corpus.rows[place] for place in drawn))
        halves = split(corpus, by_document=True, seed=int(random.integers(2**31)))
        return tuple([self.places[row] for row in half.rows] for half in halves)  # type: ignore[return-value]


def of_rows(whole: DivergenceStatistics, places: Sequence[int]) -> DivergenceStatistics:
    """Return the statistics of some rows."""
    assert whole.row_targets is not None
    ends = np.cumsum(whole.row_targets)
    chosen = np.concatenate([np.arange(ends[place] - whole.row_targets[place], ends[place]) for place in places])
    sizes = whole.row_targets[list(places)]
    values = {name: getattr(whole, name)[chosen] for name in ("kl", "dp", "same_top", "nll_p", "nll_q")}
    return DivergenceStatistics(
        window_targets=sizes[sizes > 0], window_document=np.flatnonzero(sizes > 0), running_text=False,
        row_targets=sizes, **values,
    )  # fmt: skip


def limits_at(whole: DivergenceStatistics) -> dict[str, Limit]:
    """Return limits that a model is exactly at."""
    q, p = float(whole.nll_q.mean()), float(whole.nll_p.mean())
    return {
        "KL": Limit("kl", float(whole.kl.mean()), 0.95, PROTOCOL),
        "ppl": Limit("ppl", q, 0.95, PROTOCOL),
        "ppl +%": Limit("ppl ratio", q - p, 0.95, PROTOCOL),
        "ppl +": Limit("ppl ratio", None, 0.95, PROTOCOL, tolerance=math.exp(q) - math.exp(p)),
    }


def written_by(model: Any, tokenizer: Any, rows: int) -> list[str]:
    """Let a model write rows of 10 to 250 tokens."""
    torch.manual_seed(0)
    lengths, found = np.random.default_rng(0).integers(10, 250, 2 * rows), dict[str, None]()
    for first in range(0, len(lengths), 250):
        begin = torch.full((min(250, len(lengths) - first), 1), tokenizer.bos_token_id)
        mask = torch.ones_like(begin)
        ids = model.generate(
            begin, attention_mask=mask, do_sample=True, max_new_tokens=250, min_new_tokens=250, top_k=0, pad_token_id=0
        )
        some = (tokenizer.decode(row[1 : 1 + lengths[first + at]]).strip() for at, row in enumerate(ids.tolist()))
        found |= dict.fromkeys(text for text in some if text)
        if len(found) >= rows:
            break
    return list(found)[:rows]


def rarely_damaged(model: Any, tokenizer: Any, texts: Sequence[str]) -> Any:
    """Return a model in 8 bits of which the embedding of a token that 3 to 6 rows of 100 have is halved."""
    found = rounded_by(model, 8, None)
    counts = Counter(token for text in texts for token in set(tokenizer(text)["input_ids"]))
    rare = next(token for token, count in counts.most_common() if count <= 0.06 * len(texts))
    assert counts[rare] >= 0.03 * len(texts)
    with torch.no_grad():
        found.get_input_embeddings().weight[rare] *= 0.5
    return found


def share(count: int, runs: int) -> str:
    return f"{100 * count / runs:.1f} +- {100 * math.sqrt(max(count, 1) * max(runs - count, 1) / runs**3):.1f}%"


def run_splits(folder: Path, file: Path | None, splits: int, rows: int) -> None:
    import transformers

    model = transformers.AutoModelForCausalLM.from_pretrained(folder).eval()
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    pools = {"written": written_by(model, tokenizer, rows)}
    if file is not None:
        lines = file.read_text().splitlines()
        lines = [json.loads(line)["text"] for line in lines] if file.suffix == ".jsonl" else lines
        pools[file.name] = list(dict.fromkeys(line for line in lines if line.strip()))[:rows]
    print(f"PASS of {splits} proofs of a model exactly at the limit, and the skewness of its rows' KL", flush=True)
    for name, texts in pools.items():
        damage = {"3 bits": rounded_by(model, 3, None), "a rare token": rarely_damaged(model, tokenizer, texts)}
        for kind, candidate in damage.items():
            with tempfile.TemporaryDirectory() as temporary:
                pool = Pool(Path(temporary), (model, tokenizer), (candidate, tokenizer), texts)
                kept = [part for part in pool.hybrids.parts if kind == "3 bits" and part.kind in ("down", "o")]
                at_limit(pool, pool.statistics(*kept), f"{name}, {kind}", splits)


def at_limit(pool: Pool, whole: DivergenceStatistics, name: str, splits: int) -> None:
    assert whole.row_targets is not None
    sums, counts = of_rows(whole, range(len(whole.row_targets))).of_targets(whole.kl)
    odd = skewness(sums - whole.kl.mean() * counts)
    for rows in (20, 40, 100):
        random, passed = np.random.default_rng(rows), Counter[str]()
        for _ in range(splits):
            found = of_rows(whole, pool.halves(rows, random)[1])
            passed.update(kind for kind, limit in limits_at(whole).items() if limit.judge(found).outcome == "pass")
        cells = "  ".join(f"{kind} {share(passed[kind], splits)}" for kind in limits_at(whole))
        print(f"{name}, {len(pool.places)} rows, skewness {odd:.1f}, {rows:3} rows of proof: {cells}", flush=True)


def main() -> None:
    """Print what was asked for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--planted", action="store_true")
    parser.add_argument("--counts", type=int, nargs="+", default=[0, 1, 3, 5], help="planted: groups that are damaged")
    parser.add_argument("--runs", type=int, default=20, help="planted: runs of each number of groups")
    parser.add_argument("--rows", type=int, default=120, help="rows of the text")
    parser.add_argument("--real", type=Path, help="folder of a checkpoint")
    parser.add_argument("--text", type=Path, help="JSON Lines with the column text, or a text with long lines")
    parser.add_argument("--characters", type=int, default=300, help="real: characters of each row")
    parser.add_argument("--bits", type=int, nargs="+", default=[3, 4], help="real: bits of the candidates")
    parser.add_argument("--splits", type=int, help="proofs of each kind, of models that are at the limit")
    parser.add_argument("--model", type=Path, help="folder of a checkpoint, for --splits")
    parser.add_argument("--pool", type=int, default=2400, help="rows to draw from, for --splits")
    given = parser.parse_args()
    if given.planted:
        run_planted(given.counts, given.runs, given.rows)
    if given.real:
        run_real(given.real, given.text, given.rows, given.characters, given.bits)
    if given.splits:
        run_splits(given.model, given.text, given.splits, given.pool)


if __name__ == "__main__":
    main()
