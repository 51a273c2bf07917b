"""Which control variate a KL divergence by sampling should have: coverage and bias of each rule. See README.md.

    python benchmarks/sampled_kl.py                                   # the example's model
    python benchmarks/sampled_kl.py --model FOLDER --text FILE        # another one, with a text that it knows

A reference p writes continuations. Candidates q are p rounded to fewer bits, p with one damaged layer, and p with tails
planted: at some positions most of q is on a token that p never writes. With ``r = log q - log p`` of the sampled tokens
a rule estimates the KL divergence by the mean of ``-r + lambda (exp(r) - 1)``. The truth is the mean of the exact
divergence, by whole distributions, over all tokens of all rows that were written, not over those of a split. So the
column "exact" has noise, too: that between rows, without that of sampling. Each split draws rows from the pool.
"""

from __future__ import annotations

import argparse
import copy
import math
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from pytest_lmgate.stats.means import clustered_mean

ROOT = Path(__file__).resolve().parents[1]
PROMPT_TOKENS, BATCH = 8, 256
Floats = NDArray[np.float64]


def terms(r: Floats, weight: float) -> Floats:
    return -r + weight * np.expm1(r)


def is_small(r: Floats, bound: float) -> bool:
    return bool(np.nanmax(np.abs(r)) < bound)


def t_of_control(r: Floats) -> float:
    """How many standard errors the mean of ``exp(r) - 1``, which should be 0, is away from it."""
    control, counts = np.nansum(np.expm1(r), 1), (~np.isnan(r)).sum(1)
    noise = clustered_mean(control, counts)
    return abs(noise.mean) / max(noise.stderr or 0.0, 1e-12)


RULES: dict[str, Callable[[Floats], Floats]] = {
    "0": lambda r: terms(r, 0.0),
    "1": lambda r: terms(r, 1.0),
    "1 if r<2": lambda r: terms(r, float(is_small(r, 2))),
    "1 if r<2, t<3": lambda r: terms(r, float(is_small(r, 2) and t_of_control(r) < 3)),
}


def rounded(model: Any, bits: int) -> Any:
    """Round the matrices to the nearest of so many bits, with a scale for each output channel."""
    found, largest = copy.deepcopy(model), 2 ** (bits - 1) - 1
    for weight in found.parameters():
        if weight.ndim == 2:
            scale = weight.data.abs().amax(1, keepdim=True).clamp(min=1e-12) / largest
            weight.data = (weight.data / scale).round() * scale
    return found


def damaged(model: Any, noise: float) -> Any:
    found = copy.deepcopy(model)
    generator = torch.Generator().manual_seed(1)
    for weight in found.model.layers[len(found.model.layers) // 2].parameters():
        weight.data += noise * weight.std() * torch.randn(weight.shape, generator=generator) if weight.ndim == 2 else 0
    return found


def planted(share: float, moved: float) -> Callable[[torch.Tensor, torch.Tensor], torch.Tensor]:
    """Move so much of the mass to p's least likely token, at a share of the positions that the last token decides."""

    def tail(log_p: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
        position = torch.arange(ids.shape[1]).expand_as(ids)
        hit = (ids * 7919 + position * 104729) % 1000 < 1000 * share
        log_q = log_p + math.log1p(-moved) * hit[..., None]
        least = log_p.argmin(-1, keepdim=True)
        mass = torch.logaddexp(log_q.gather(-1, least), torch.tensor(moved).log().expand_as(least))
        return torch.where(hit[..., None], log_q.scatter(-1, least, mass), log_q)

    return tail


@torch.no_grad()
def written(model: Any, prompts: torch.Tensor, tokens: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Sample continuations at temperature 1; return all ids, and which of the new ones are up to the end token."""
    ids, past, ended = prompts, None, torch.zeros(len(prompts), dtype=torch.bool)
    mask = []
    for _ in range(tokens):
        out = model(ids if past is None else ids[:, -1:], past_key_values=past, use_cache=True)
        past = out.past_key_values
        new = out.logits[:, -1].double().softmax(-1).multinomial(1)
        mask.append(~ended)
        ended = ended | (new[:, 0] == model.config.eos_token_id)
        ids = torch.cat([ids, new], 1)
    return ids, torch.stack(mask, 1)


@torch.no_grad()
def log_probabilities(model: Any, ids: torch.Tensor, prompt: int) -> torch.Tensor:
    return model(ids[:, :-1]).logits[:, prompt - 1 :].double().log_softmax(-1)


def measured(
    model: Any, candidates: dict[str, Any], prompts: torch.Tensor, tokens: int
) -> dict[str, tuple[Floats, Floats]]:
    """Return ``r`` and the exact divergence of each candidate at each sampled token, shape ``[rows, tokens]``."""
    found: dict[str, list[tuple[Floats, Floats]]] = {name: [] for name in candidates}
    torch.manual_seed(0)  # once, so that no two batches share their noise
    for some in prompts.split(BATCH):
        ids, mask = written(model, some, tokens)
        new, log_p = ids[:, some.shape[1] :, None], log_probabilities(model, ids, some.shape[1])
        for name, candidate in candidates.items():
            is_tail = not isinstance(candidate, torch.nn.Module)
            before = ids[:, some.shape[1] - 1 : -1]
            log_q = candidate(log_p, before) if is_tail else log_probabilities(candidate, ids, some.shape[1])
            r = (log_q - log_p).gather(-1, new)[..., 0]
            kl = (log_p.exp() * (log_p - log_q)).sum(-1)
            found[name].append(tuple(each.masked_fill(~mask, math.nan).numpy() for each in (r, kl)))
    return {name: tuple(map(np.concatenate, zip(*parts, strict=True))) for name, parts in found.items()}


def judged(r: Floats, kl: Floats, rule: Callable[[Floats], Floats], rows: int, splits: int) -> str:
    """Return coverage, half width over the divergence, bias over it, and the bias in standard errors, in words."""
    truth, rng = float(np.nansum(kl) / (~np.isnan(kl)).sum()), np.random.default_rng(rows)
    covered, widths, means = [], [], []
    for _ in range(splits):
        some = r[rng.choice(len(r), rows, replace=False)]
        made, counts = rule(some), (~np.isnan(some)).sum(1)
        noise = clustered_mean(np.nansum(made, 1), counts)
        bounds = noise.bounds(0.975)
        assert bounds is not None
        covered.append(bounds.lower <= truth <= bounds.upper)
        widths.append((bounds.upper - bounds.lower) / 2)
        means.append(noise.mean)
    # Splits share the rows of one pool, so that their mean has the noise of the pool at least.
    error = float(np.std(means)) / math.sqrt(min(splits, len(r) / rows))
    bias = float(np.mean(means)) - truth
    t = bias / max(error, 1e-12)
    return f"{np.mean(covered):.1%} ±{np.mean(widths) / truth:.2g} {bias / truth:+.1%} ({t:+.1f})"


def prompts_of(tokenizer: Any, text: str, count: int) -> torch.Tensor:
    ids = np.array(tokenizer(text, add_special_tokens=False)["input_ids"])
    begins = np.random.default_rng(0).integers(0, len(ids) - PROMPT_TOKENS, count)
    return torch.from_numpy(np.stack([ids[at : at + PROMPT_TOKENS] for at in begins]))


def lines(results: dict[str, tuple[Floats, Floats]], splits: int) -> Iterator[str]:
    yield "| candidate (exact KL, largest abs r) | rows | exact | " + " | ".join(RULES) + " |"
    yield "|---|---|---|" + "---|" * len(RULES)
    for name, (r, kl) in results.items():
        for rows in (20, 50, 100):
            cells = [judged(kl, kl, lambda each: each, rows, splits)]
            cells += [judged(r, kl, rule, rows, splits) for rule in RULES.values()]
            yield f"| {name} ({np.nanmean(kl):.2g}, {np.nanmax(np.abs(r)):.2g}) | {rows} | {' | '.join(cells)} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path, default=ROOT / "example_project/models/float")
    parser.add_argument("--text", type=Path, default=ROOT / "example_project/data/bulletins.jsonl")
    parser.add_argument("--rows", type=int, default=8000, help="rows that are written")
    parser.add_argument("--tokens", type=int, default=96, help="tokens of each, at most")
    parser.add_argument("--splits", type=int, default=500)
    parser.add_argument("--threads", type=int, default=1)
    asked = parser.parse_args()
    from transformers import AutoModelForCausalLM, AutoTokenizer

    torch.set_num_threads(asked.threads)
    model = AutoModelForCausalLM.from_pretrained(asked.model).float().eval()
    candidates = {
        **{f"{bits} bits": rounded(model, bits) for bits in (8, 6, 4, 3)},
        "one layer, noise 0.1": damaged(model, 0.1),
        "one layer, noise 1": damaged(model, 1.0),
        "tail: 0.9 of 2%": planted(0.02, 0.9),
        "tail: 0.5 of 5%": planted(0.05, 0.5),
        "tail: 0.5 of 0.5%": planted(0.005, 0.5),
    }
    tokenizer = AutoTokenizer.from_pretrained(asked.model)
    prompts = prompts_of(tokenizer, asked.text.read_text(encoding="utf-8"), asked.rows)
    results = measured(model, candidates, prompts, asked.tokens)
    for line in lines(results, asked.splits):
        print(line, flush=True)


if __name__ == "__main__":
    main()
