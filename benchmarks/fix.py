"""`lmgate fix`: whether it names planted damage, and how many bytes it needs for real rounding.

Planted: a Llama of 12 blocks with random weights is rounded to 8 bits; one, three or five groups of its linear layers,
drawn at random, to 2 bits or 3, or get noise instead. The gate allows 1.5 times the KL of the 8 bits alone. The groups
that are kept have to be the planted ones, and none where nothing was planted.

Real: a checkpoint is rounded to nearest, with a scale for each row or for each 32 weights. At several limits the bytes
of the smallest model that passes on the searched rows are compared, and its KL on rows that no choice has read: `fix`,
whole blocks by their KL for a byte as `lmgate why` measures it, groups by their weight error for a byte, and uniform
precision. What is kept has 16 bits.

Splits: how often the proof passes a model whose mean over a pool of rows is exactly the limit. The rows are written by
the checkpoint, and those of --text are a second pool. Each model is measured once; then rows are drawn, split by the
package and judged by it. The last part searches and proves: sets that pass the search's half by luck meet the proof.

Time: `why` and `fix` in turns, each on so many tokens; those of the proof come on top of what `fix` searches.

    python benchmarks/fix.py --planted --runs 20
    python benchmarks/fix.py --real FOLDER --text FILE.jsonl
    python benchmarks/fix.py --time 3
    python benchmarks/fix.py --splits 2000 --model FOLDER --text FILE.txt
"""

from __future__ import annotations

import argparse
import copy
import json
import math
import random
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent.parent))

import numpy as np
import torch

from pytest_lmgate.engines.transformers.hybrids import By, Hybrids, Part
from pytest_lmgate.judge.fix import LEAST_ROWS, Limit, Tried, fix, search_sets, split
from pytest_lmgate.measure.divergence import Divergences
from pytest_lmgate.measure.evaluator import Evaluator
from pytest_lmgate.measure.why import why
from pytest_lmgate.metrics.divergence import DivergenceStatistics
from pytest_lmgate.settings.file import Project
from pytest_lmgate.settings.requests import DivergenceRequest, Protocol
from pytest_lmgate.settings.session import Options
from pytest_lmgate.stats.means import skewness
from tests.measure.conftest import make_model, make_tokenizer
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
        return self.evaluator.measurements.once(  # type: ignore[no-any-return]
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
    print(f"PASS of {splits} proofs of a model exactly at the limit, and the skewness of its rows' KL")
    for name, texts in pools.items():
        damage = {"3 bits": rounded_by(model, 3, None), "a rare token": rarely_damaged(model, tokenizer, texts)}
        for kind, candidate in damage.items():
            with tempfile.TemporaryDirectory() as temporary:
                pool = Pool(Path(temporary), (model, tokenizer), (candidate, tokenizer), texts)
                kept = [part for part in pool.hybrids.parts if kind == "3 bits" and part.kind in ("down", "o")]
                whole = pool.statistics(*kept)
                at_limit(pool, whole, f"{name}, {kind}", splits)
                if kind == "3 bits":
                    search_and_prove(pool, f"{name}, {kind}", min(splits, 200))


def at_limit(pool: Pool, whole: DivergenceStatistics, name: str, splits: int) -> None:
    assert whole.row_targets is not None
    sums, counts = of_rows(whole, range(len(whole.row_targets))).of_targets(whole.kl)
    odd = skewness(sums - whole.kl.mean() * counts)
    for rows in (LEAST_ROWS, 40, 100):
        random, passed = np.random.default_rng(rows), Counter[str]()
        for _ in range(splits):
            found = of_rows(whole, pool.halves(rows, random)[1])
            passed.update(kind for kind, limit in limits_at(whole).items() if limit.judge(found).outcome == "pass")
        cells = "  ".join(f"{kind} {share(passed[kind], splits)}" for kind in limits_at(whole))
        print(f"{name}, {len(pool.places)} rows, skewness {odd:.1f}, {rows:3} rows of proof: {cells}", flush=True)


def search_and_prove(pool: Pool, name: str, splits: int) -> None:
    """Search for real on one half: how often is the chosen set truly above the limit, and how often does it pass?"""
    parts = pool.hybrids.parts
    sizes = [pool.hybrids.size(part).matrices[0] for part in parts]
    alone = [pool.statistics(part, healed=False) for part in parts]
    composed: dict[tuple[int, ...], DivergenceStatistics] = {(): pool.statistics()}
    for share_of in (0.5, 0.2):
        limit = Limit("kl", share_of * float(composed[()].kl.mean()), 0.95, PROTOCOL)
        for rows in (LEAST_ROWS, 40):
            random, above, passed, proven = np.random.default_rng(rows), 0, 0, 0
            for _ in range(splits):
                search, proof = pool.halves(rows, random)

                def attempt(kept: Sequence[int], search: Sequence[int] = search, limit: Limit = limit) -> Tried:
                    if tuple(kept) not in composed:
                        composed[tuple(kept)] = pool.statistics(*(parts[index] for index in kept))
                    found = of_rows(composed[tuple(kept)], search)
                    extra = sum(sizes[index] for index in kept)
                    return Tried(tuple(kept), extra, float(found.kl.mean()), limit.judge(found))

                costs = np.array([float(of_rows(each, search).kl.mean()) for each in alone])
                tried = search_sets(costs, np.array(sizes), attempt(()), attempt)
                passing = [each for each in tried if each.judged.outcome == "pass"]
                if not passing:
                    continue
                chosen = composed[min(passing, key=lambda each: (each.extra, each.kl)).kept]
                is_above = float(chosen.kl.mean()) > limit.size
                outcome = limit.judge(of_rows(chosen, proof)).outcome
                above, passed = above + is_above, passed + (is_above and outcome == "pass")
                proven += outcome == "pass"
            print(
                f"{name}, search and proof at {share_of} of the candidate's KL, {rows} rows each: {proven} of {splits} "
                f"PASS; chosen sets truly above the limit {above}, of them PASS {passed} ({len(composed)} sets seen)",
                flush=True,
            )


def run_time(width: int, tokens: int, runs: int) -> None:
    """Time `why` and `fix` in turns on a Llama of 12 blocks in 4 bits, each with a cache of its own."""
    reference = make_model(
        0, num_hidden_layers=12, initializer_range=0.2, hidden_size=width, intermediate_size=2 * width
    )
    candidate, tokenizer = copy.deepcopy(reference), make_tokenizer()
    quantize(candidate, bits=4)
    rows = [text(40, seed) for seed in range(tokens // 20)]
    ratios = []
    for number in range(runs):
        took: dict[str, tuple[float, float]] = {}
        for name in ("why", "fix", "why")[number % 2 :][:2]:
            with tempfile.TemporaryDirectory() as folder:
                evaluator = Evaluator(Project(Path(folder)), Options(Path(folder) / "cache"))
                models = (candidate, tokenizer), (reference, tokenizer)
                begun = time.monotonic(), time.process_time()
                if name == "why":
                    why(evaluator, *models, rows, protocol=PROTOCOL, tokens=tokens, seconds=1e9)
                else:
                    limit = Limit("kl", 0.05, 0.95, PROTOCOL)
                    found = fix(evaluator, *models, rows, limit=limit, budget=None, tokens=tokens, bits=4)
                took[name] = time.monotonic() - begun[0], time.process_time() - begun[1]
        (wall, used), (least, own) = took["fix"], took["why"]
        assert found.chosen is not None
        ratios.append((wall / least, used / own))
        print(
            f"  {len(found.groups)} groups, {len(found.tried) - 1} sets: fix {wall:.1f} s, why {least:.1f} s, "
            f"{wall / least:.2f} times; of processor {used:.1f} and {own:.1f} s, {used / own:.2f} times",
            flush=True,
        )
    wall, used = np.median(np.array(ratios), axis=0)
    print(f"width {width}, {tokens:,} tokens: fix takes {wall:.2f} times as long as why, {used:.2f} of processor time")


def main() -> None:
    """Print what was asked for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--planted", action="store_true")
    parser.add_argument("--counts", type=int, nargs="+", default=[0, 1, 3, 5], help="planted: groups that are damaged")
    parser.add_argument("--runs", type=int, default=20, help="planted: runs of each number of groups")
    parser.add_argument("--rows", type=int, default=120, help="rows of the text")
    parser.add_argument("--real", type=Path, help="folder of a checkpoint")
    parser.add_argument("--text", type=Path, help="JSON Lines with the column text")
    parser.add_argument("--splits", type=int, help="proofs of each kind, of models that are at the limit")
    parser.add_argument("--model", type=Path, help="folder of a checkpoint, for --splits")
    parser.add_argument("--pool", type=int, default=2400, help="rows to draw from, for --splits")
    parser.add_argument("--time", type=int, metavar="RUNS", help="compare the time with that of why")
    parser.add_argument("--width", type=int, default=64, help="of the model, for --time")
    parser.add_argument("--tokens", type=int, default=4000, help="that each reads, for --time")
    given = parser.parse_args()
    if given.planted:
        run_planted(given.counts, given.runs, given.rows)
    if given.real:
        run_real(given.real, given.text, given.rows)
    if given.splits:
        run_splits(given.model, given.text, given.splits, given.pool)
    if given.time:
        run_time(given.width, given.tokens, given.time)


if __name__ == "__main__":
    main()
