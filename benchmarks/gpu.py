"""Speed, memory and rounding on a GPU, side by side with what people would otherwise run. See docs/gpu.md.

    python benchmarks/gpu.py                          # Llamas of 0.1, 1 and 8 billion random weights, bfloat16
    python benchmarks/gpu.py --only speed --sizes 1B  # one part, one size
    python benchmarks/gpu.py --small                  # seconds, on any device: proves the script, says nothing of speed

Exits with 1 if a requirement is broken, unless --no-check or --small is given.
"""

from __future__ import annotations

import argparse
import itertools
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from comparison import Row, machine, print_rows, run_rounds
from contestants import Job, ours, published_loop

from pytest_lmgate.engines.logits import TileShape
from pytest_lmgate.engines.tokenizers import quiet
from pytest_lmgate.engines.transformers.loading import LoadedModel
from pytest_lmgate.engines.transformers.runner import TransformersRunner
from pytest_lmgate.measure import loop
from pytest_lmgate.measure.divergence import ModelPair, compare
from pytest_lmgate.settings.gate_options import WindowProtocol
from pytest_lmgate.windows.protocols import plan_windows
from pytest_lmgate.windows.requests import window_requests
from pytest_lmgate.windows.tokens import Streams

TIMES_LOOP, TIMES_LM_EVAL, SHARE_OF_PEAK, EXTRA_BYTES = 2.0, 1.3, 0.5, 2**30
_PARTS = ("speed", "divergence", "dtypes", "tiles", "process")
_TILES = tuple(itertools.product((1024, 4096, 8192), (512, 2048, 8192, 32768)))


@dataclass(frozen=True)
class Shape:
    """A Llama: width, width of its MLP, layers, heads, heads of keys and values, vocabulary, context."""

    width: int
    inner: int
    layers: int
    heads: int
    keys: int
    vocabulary: int = 128_256
    context: int = 2048


SHAPES = {
    "0.1B": Shape(512, 2048, 8, 8, 8),
    "1B": Shape(2048, 8192, 16, 32, 8),
    "8B": Shape(4096, 14336, 32, 32, 8),
    "small": Shape(32, 64, 2, 2, 2, vocabulary=500, context=64),
}


def make_model(shape: Shape, device: torch.device, dtype: torch.dtype = torch.bfloat16, seed: int = 0) -> LoadedModel:
    """Draw a Llama's weights on the device; its input and output embeddings are its own."""
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(seed)
    config = LlamaConfig(
        vocab_size=shape.vocabulary,
        hidden_size=shape.width,
        intermediate_size=shape.inner,
        num_hidden_layers=shape.layers,
        num_attention_heads=shape.heads,
        num_key_value_heads=shape.keys,
        max_position_embeddings=shape.context,
        dtype=dtype,
    )
    with quiet(), device:
        model = LlamaForCausalLM(config).to(dtype).eval()
    tokenizer = lambda text, **_: {"input_ids": [0] * len(text)}  # noqa: E731 - the tokens are drawn
    return LoadedModel("subject", model, tokenizer, device)


def make_job(loaded: LoadedModel, shape: Shape, tokens: int, stride: int) -> Job:
    """Draw a stream of tokens, and plan its windows as a gate does."""
    streams = Streams((np.random.default_rng(0).integers(0, shape.vocabulary, tokens),), None)
    windowing = WindowProtocol(max_length=shape.context, stride=stride).windowing(shape.context, model="subject")
    return Job(loaded, streams, plan_windows(windowing, [tokens]), shape.context, stride)


def harness(what: Job, batch: int, softmax: str | None = None) -> Callable[[], object]:
    """Return lm-eval's HFLM on the disjoint windows of the same tokens; its softmax is in the model's dtype or this."""
    from lm_eval.models.huggingface import HFLM
    from transformers import PreTrainedTokenizerFast

    lm = HFLM(
        pretrained=what.loaded.model, tokenizer=PreTrainedTokenizerFast(tokenizer_object=_words()),
        batch_size=batch, max_length=what.max_length, device=str(what.loaded.device), softmax_dtype=softmax,
    )  # fmt: skip
    ids = what.streams.ids[0].tolist()
    windows = [ids[begin : begin + what.max_length + 1] for begin in range(0, len(ids) - 1, what.max_length)]
    requests = [(("", ""), window[:1], window[1:]) for window in windows]
    return lambda: lm._loglikelihood_tokens(requests, disable_tqdm=True)


def _words() -> Any:
    from tokenizers import Tokenizer, models

    return Tokenizer(models.WordLevel({"w": 0}, unk_token="w"))


def peak_flops(device: torch.device, dtype: torch.dtype, size: int) -> float:
    """Measure the matrix product's speed, the best of five: floating-point operations a second."""
    one, other = (torch.randn(size, size, device=device).to(dtype) for _ in range(2))
    return max(2 * size**3 / _seconds(device, lambda: one @ other) for _ in range(5))


def flops(shape: Shape, what: Job) -> float:
    """Return what no method can leave out: weights times each token read, attention, the head times each target."""
    read, targets = float(what.plan.reads.sum()), float(what.plan.targets.sum())
    attention = shape.width * (2 + 2 * shape.keys / shape.heads) * shape.width
    weights = shape.layers * (attention + 3 * shape.width * shape.inner)
    pairs = float((what.plan.reads.astype(np.float64) ** 2).sum()) / 2
    return 2 * weights * read + 4 * shape.layers * shape.width * pairs + 2 * shape.width * shape.vocabulary * targets


def speed(name: str, shape: Shape, device: torch.device, tokens: int, rounds: int) -> bool:
    """Compare tokens a second, extra memory and the share of the matrix product's peak."""
    loaded, holds = make_model(shape, device), True
    peak = peak_flops(device, torch.bfloat16, 8192 if device.type == "cuda" else 512)
    for overlap in (1, 4):  # each token is read so many times, so that both read the same
        stride = shape.context // overlap
        what = make_job(loaded, shape, tokens // overlap, stride)
        contestants = {"ours": lambda what=what: ours(what), "loop": lambda what=what: published_loop(what)}
        if stride == shape.context:
            contestants["lm-eval"] = harness(what, 8)
            contestants["lm-eval, softmax in float32"] = harness(what, 8, "float32")
        extras = {key: extra_bytes(device, _waited(device, run)) for key, run in contestants.items()}
        extra = extras["ours"]
        timed = run_rounds({key: _waited(device, run) for key, run in contestants.items()}, rounds)
        share = flops(shape, what) / timed.median("ours") / peak
        targets, faster = int(what.plan.targets.sum()), timed.ratio("loop", "ours")
        is_apart = stride < shape.context
        rows = [Row(key, f"{targets / timed.median(key):,.0f} tokens/s", note=_mib(extras[key])) for key in contestants]
        required = f">= {TIMES_LOOP}x" if is_apart and name == "1B" else ""
        rows.append(Row("speed-up over the published loop", f"{faster:.2f}x", required, faster >= TIMES_LOOP))
        if not is_apart:
            faster = timed.ratio("lm-eval", "ours")
            required = f">= {TIMES_LM_EVAL}x" if name == "1B" else ""
            rows.append(Row("speed-up over lm-eval, batch 8", f"{faster:.2f}x", required, faster >= TIMES_LM_EVAL))
            exact = timed.ratio("lm-eval, softmax in float32", "ours")
            rows.append(Row("speed-up over lm-eval, softmax in float32", f"{exact:.2f}x"))
        required = f">= {SHARE_OF_PEAK:.0%}" if name == "8B" and not is_apart else ""
        rows.append(Row("share of the matrix product's peak", f"{share:.0%}", required, share >= SHARE_OF_PEAK))
        if extra is not None:
            rows.append(Row("extra peak memory", f"{extra / 2**20:.0f} MiB", "<= 1024 MiB", extra <= EXTRA_BYTES))
        holds &= print_rows(f"{name}, stride {stride}: {targets:,} targets, peak {peak / 1e12:.1f} Tflop/s", rows)
    return holds


def divergence(name: str, shape: Shape, device: torch.device, tokens: int) -> bool:
    """Measure the extra memory of a KL divergence between two models in one pass."""
    pair = [TransformersRunner(make_model(shape, device, seed=seed), None) for seed in (0, 1)]
    what = make_job(pair[0].loaded, shape, tokens, shape.context)
    both = ModelPair(("p", "q"), lambda: pair[0], lambda: pair[1], side_by_side=True)
    run = lambda: compare(  # noqa: E731
        both, window_requests(what.streams, what.plan, "text"), loop.Job(model="q", dataset="text")
    )
    begun = time.perf_counter()
    extra = extra_bytes(device, run)
    rows = [Row("both models", f"{tokens / (time.perf_counter() - begun):,.0f} tokens/s")]
    if extra is not None:
        rows.append(Row("extra peak memory", f"{extra / 2**20:.0f} MiB", "<= 1024 MiB", extra <= EXTRA_BYTES))
    whole = 4 * tokens * shape.vocabulary / 2**30
    return print_rows(f"{name}: KL divergence; the logits of one model would be {whole:,.1f} GiB", rows)


def dtypes(name: str, shape: Shape, device: torch.device, tokens: int) -> bool:
    """Print how far half precision, attention and batch sizes move a perplexity, all on the same weights."""
    exact, rows = make_model(shape, device, torch.float32), []
    reference = ours(make_job(exact, shape, tokens, shape.context))
    for dtype, attention in itertools.product((torch.float32, torch.bfloat16, torch.float16), ("sdpa", "eager")):
        loaded = make_model(shape, device, torch.float32)
        loaded.model.load_state_dict(exact.model.state_dict())
        loaded.model.to(dtype).set_attn_implementation(attention)
        what = make_job(loaded, shape, tokens, shape.context)
        nll = ours(what)
        alone = ours(what, batch_size=1)
        moved = np.expm1(nll.mean() - reference.mean())
        batch = np.expm1(alone.mean() - nll.mean())
        note = f"tokens by {np.abs(nll - reference).mean():.1e} nats; batch size 1 by {batch:+.1e}"
        rows.append(Row(f"{str(dtype).removeprefix('torch.')}, {attention}", f"{moved:+.1e}", note=note))
    return print_rows(f"{name}: change of the perplexity from float32, {len(reference):,} targets", rows)


def tiles(name: str, shape: Shape, device: torch.device) -> bool:
    """Print how long the head takes with tiles of several shapes, of which `tile_shape` has chosen one."""
    from pytest_lmgate.engines.logits import VocabularyHead
    from pytest_lmgate.engines.transformers.head import launch_nll

    weight = torch.randn(shape.vocabulary, shape.width, device=device).bfloat16() / shape.width**0.5
    head, positions = VocabularyHead(weight, None, None), 4 * shape.context
    hidden = torch.randn(positions, shape.width, device=device).bfloat16()
    targets = torch.randint(0, shape.vocabulary, (positions,))
    exact = -(hidden[:64].double() @ weight.double().t()).log_softmax(-1).cpu()
    exact = exact.gather(1, targets[:64, None])[:, 0]
    rows = []
    for tile in (TileShape(*each) for each in _TILES):
        run = lambda tile=tile: launch_nll(hidden, targets, head, tile)()  # noqa: E731
        error = (run()[:64] - exact).abs().max()
        seconds = min(_seconds(device, run) for _ in range(5))
        rows.append(Row(f"{tile.rows} x {tile.tokens}", f"{1000 * seconds:.1f} ms", note=f"error {error:.1e} nats"))
    return print_rows(f"{name}: NLLs of {positions:,} positions by tile, bfloat16 products", rows)


def process(name: str, device: torch.device, tokens: int) -> bool:
    """Print the stages of a whole process: imports, the model, the first batch, all batches."""
    command = [sys.executable, __file__, "--stages", name, "--device", str(device), "--tokens", str(tokens)]
    begun = time.perf_counter()
    output = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    rows = [Row(*line.split("\t")) for line in output.splitlines() if "\t" in line]
    rows.append(Row("the whole process", f"{time.perf_counter() - begun:.1f} s"))
    return print_rows(f"{name}: seconds from the start of the process", rows)


def stages(shape: Shape, device: torch.device, tokens: int) -> None:
    """Print when each stage of this process has ended, counted from the process's own start."""
    print(f"Python, torch, transformers and this package imported\t{time.process_time():.1f} s of processor time")
    begun = time.perf_counter()
    what = make_job(make_model(shape, device), shape, tokens, shape.context)
    print(f"model made on the device\t{time.perf_counter() - begun:.1f} s")
    begun, ends = time.perf_counter(), []
    ours(what, log=loop.Log(progress=lambda _: ends.append(time.perf_counter() - begun)))
    print(f"first batch, all proofs included\t{ends[0]:.2f} s\nall {len(ends)} batches\t{ends[-1]:.2f} s")


def extra_bytes(device: torch.device, run: Callable[[], object]) -> int | None:
    """Return the peak of the device's memory over what is there before; None where the device does not tell."""
    if device.type != "cuda":
        run()
        return None
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats(device)
    before = torch.cuda.memory_allocated(device)
    run()
    return torch.cuda.max_memory_allocated(device) - before


def _mib(extra: int | None) -> str:
    return "" if extra is None else f"{extra / 2**20:,.0f} MiB over the model"


def _waited(device: torch.device, run: Callable[[], object]) -> Callable[[], None]:
    def waited() -> None:
        with torch.inference_mode():
            run()
        if device.type == "cuda":
            torch.cuda.synchronize(device)

    return waited


def _seconds(device: torch.device, run: Callable[[], object]) -> float:
    run = _waited(device, run)
    run()
    begun = time.perf_counter()
    run()
    return time.perf_counter() - begun


def _run(part: str, name: str, given: argparse.Namespace, device: torch.device) -> bool:
    shape, tokens = SHAPES[name], given.tokens
    if part == "speed":
        return speed(name, shape, device, tokens, given.rounds)
    if part == "divergence":
        return divergence(name, shape, device, tokens)
    if part == "dtypes":
        return dtypes(name, shape, device, tokens)
    return tiles(name, shape, device) if part == "tiles" else process(name, device, tokens)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run what was asked for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", choices=_PARTS, nargs="+", default=_PARTS)
    parser.add_argument("--sizes", choices=SHAPES, nargs="+", default=["0.1B", "1B", "8B"])
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--tokens", type=int, default=200_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--small", action="store_true", help="a tiny model and text, on the CPU unless told")
    parser.add_argument("--stages", choices=SHAPES, help=argparse.SUPPRESS)
    parser.add_argument("--no-check", action="store_true")
    given = parser.parse_args(arguments)
    if given.small:
        given.sizes, given.tokens, given.rounds = ["small"], 2000, 1
        given.device = "cuda" if torch.cuda.is_available() else "cpu"
    device = torch.device(given.device)
    if device.type == "cuda" and not torch.cuda.is_available():
        print("no GPU here: NOTHING was measured; --small proves the script on the CPU", file=sys.stderr)
        return 1
    if given.stages:
        stages(SHAPES[given.stages], device, given.tokens)
        return 0
    where = torch.cuda.get_device_name(device) if device.type == "cuda" else "CPU"
    print(f"{where}, torch {torch.__version__}; {machine(torch.get_num_threads())}")
    holds = [_run(part, name, given, device) for name in given.sizes for part in given.only]
    return 0 if all(holds) or given.no_check or given.small else 1


if __name__ == "__main__":
    sys.exit(main())
