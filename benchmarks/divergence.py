"""Extra memory of a KL divergence between two models with a large vocabulary. See README.md.

    python benchmarks/divergence.py                    # 128,000 tokens in the vocabulary, 20,000 in the text
    python benchmarks/divergence.py --tokens 5000      # a shorter text: the same memory

Each measurement runs in a process of its own. Exits with 1 if a requirement is broken, unless --no-check is given.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from comparison import Row, machine, print_rows

EXTRA_BYTES = 300 * 10**6
CONTEXT, WIDTH, LAYERS, HEADS = 1024, 256, 2, 4


def make_pair(folder: Path, vocabulary: int) -> None:
    """Save a Llama-shaped model with random weights, and the same with a little noise on them."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    from pytest_lmgate.engines.transformers.loading import quiet

    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=vocabulary,
        hidden_size=WIDTH,
        intermediate_size=2 * WIDTH,
        num_hidden_layers=LAYERS,
        num_attention_heads=HEADS,
        max_position_embeddings=CONTEXT,
    )
    model = LlamaForCausalLM(config)
    for name in ("reference", "candidate"):
        with quiet():
            model.save_pretrained(folder / name)
        with torch.no_grad():
            for weight in model.parameters():
                weight += 0.05 * weight.std() * torch.randn_like(weight) if weight.ndim == 2 else 0


def measure(folder: Path, tokens: int, threads: int, way: str) -> None:
    """Measure in this process, and print seconds, extra bytes at the peak, the mean divergence and the targets.

    Linux: the high-water mark of the resident set is reset once both models are loaded, also by way of the disk.
    """
    import numpy as np
    import torch
    from processes import _status_bytes
    from transformers import LlamaForCausalLM

    from pytest_lmgate.engines.transformers.loading import LoadedModel
    from pytest_lmgate.engines.transformers.runner import TransformersRunner
    from pytest_lmgate.measure.divergence import ModelPair, compare
    from pytest_lmgate.measure.loop import Job
    from pytest_lmgate.settings.requests import Protocol
    from pytest_lmgate.windows.protocols import plan_windows
    from pytest_lmgate.windows.requests import window_requests
    from pytest_lmgate.windows.tokens import Streams

    torch.set_num_threads(threads)

    def load(name: str) -> Any:
        model = LlamaForCausalLM.from_pretrained(folder / name).eval()
        for parameter in model.parameters():
            parameter.sum()  # weights are mapped from the file; read them now
        tokenizer = lambda text, **_: {"input_ids": [0] * len(text)}  # noqa: E731 - the tokens are drawn below
        return TransformersRunner(LoadedModel(name, model, tokenizer, torch.device("cpu")), None)

    windowing = Protocol(max_length=CONTEXT).windowing(CONTEXT, model="reference")
    plan = plan_windows(windowing, [tokens])
    kept = {name: load(name) for name in ("reference", "candidate")}
    vocabulary = kept["reference"].loaded.vocabulary_size
    streams = Streams((np.random.default_rng(0).integers(0, vocabulary, tokens),), None)
    pair = ModelPair(
        ("reference", "candidate"), lambda: kept["reference"], lambda: kept["candidate"], side_by_side=way == "memory"
    )
    Path("/proc/self/clear_refs").write_text("5")
    before, begun = _status_bytes("VmHWM"), time.perf_counter()
    found = compare(pair, window_requests(streams, plan, "text"), Job(model="candidate", dataset="text"))
    print(time.perf_counter() - begun, _status_bytes("VmHWM") - before, found[:, 0].mean(), len(found))


def run(folder: Path, tokens: int, threads: int, way: str) -> tuple[float, int, float, int]:
    """Measure in a process of its own."""
    command = [sys.executable, __file__, "--measure", way, "--folder", str(folder), "--tokens", str(tokens)]
    env = {**os.environ, "OMP_NUM_THREADS": str(threads), "HF_HUB_OFFLINE": "1"}
    done = subprocess.run(
        [*command, "--threads", str(threads)], env=env, capture_output=True, text=True, check=False
    )  # fmt: skip
    if done.returncode != 0:
        raise SystemExit(f"{' '.join(command)}\nended with {done.returncode}:\n{done.stdout}\n{done.stderr}")
    seconds, extra, kl, targets = done.stdout.splitlines()[-1].split()
    return float(seconds), int(extra), float(kl), int(targets)


def main() -> int:
    """Measure in memory and by way of the disk; compare."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tokens", type=int, default=20_000, help="length of the text (default 20000)")
    parser.add_argument("--vocabulary", type=int, default=128_000)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--no-check", action="store_true", help="only print; always exit 0")
    parser.add_argument("--measure", choices=("memory", "disk"), help=argparse.SUPPRESS)
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.measure:
        measure(args.folder, args.tokens, args.threads, args.measure)
        return 0
    print(machine(args.threads))
    with tempfile.TemporaryDirectory(prefix="lmgate-benchmark-") as name:
        folder = Path(name)
        make_pair(folder, args.vocabulary)
        found = {way: run(folder, args.tokens, args.threads, way) for way in ("memory", "disk")}
        short = run(folder, max(2 * CONTEXT, args.tokens // 4), args.threads, "memory")
    whole = 8 * args.vocabulary * found["memory"][3]
    rows = [
        Row(f"extra peak memory, {way}", f"{extra / 2**20:.0f} MiB", f"<= {EXTRA_BYTES / 1e6:.0f} MB",
            extra <= EXTRA_BYTES, f"{seconds:.0f} s, mean KL {kl:.6f} nats")
        for way, (seconds, extra, kl, _) in found.items()
    ]  # fmt: skip
    rows.append(Row("the same on a quarter of the text", f"{short[1] / 2**20:.0f} MiB"))
    rows.append(Row("both models' logits in float32 would be", f"{whole / 2**30:.1f} GiB"))
    same = abs(found["memory"][2] / found["disk"][2] - 1) < 1e-6
    rows.append(Row("the disk's divergence is memory's", f"{found['disk'][2]:.6f}", "equal", same))
    holds = print_rows(
        f"KL divergence, vocabulary {args.vocabulary:,}, {found['memory'][3]:,} targets, over both loaded models", rows
    )
    return 0 if holds or args.no_check else 1


if __name__ == "__main__":
    sys.exit(main())
