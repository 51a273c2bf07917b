"""Seconds and memory of a KL divergence by sampling with vLLM, and of the exact one of the same tokens by transformers.

The model is the GPT-2-shaped one of `subject.py`, its candidate is rounded to 6 bits. Both ways are measured in turns,
each round on the same tokens, with all models loaded::

    make install-vllm && .venv-vllm/bin/python benchmarks/sampled_cost.py
"""

from __future__ import annotations

import argparse
import os
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from sampled_kl import rounded
from subject import load_model, make_subject

from pytest_lmgate.data.corpus import Corpus
from pytest_lmgate.engines.base import COLUMNS, Entry, Model
from pytest_lmgate.engines.transformers.runner import TransformersRunner
from pytest_lmgate.engines.vllm import Vllm
from pytest_lmgate.measure.divergence import ModelPair, compare
from pytest_lmgate.measure.loop import Job
from pytest_lmgate.measure.measurement import MeasurementContext
from pytest_lmgate.measure.sampled import SelfDivergences, requests_of
from pytest_lmgate.measure.scoring import score
from pytest_lmgate.settings.entries import ModelSpec
from pytest_lmgate.settings.requests import SelfDivergenceRequest

PROMPT_TOKENS = 32
JOB = Job(model="m", dataset="d")


def measured(what: Callable[[], Any], *runners: Any) -> tuple[float, float, Any]:
    """Return seconds, by how many MiB this process and those of vLLM rose above what they held, and what came out."""
    processes = ["self", *(runner._process._process.pid for runner in runners)]
    for each in processes:
        Path(f"/proc/{each}/clear_refs").write_text("5")  # the high-water mark falls to what is held now
    before, begin = sum(map(peak, processes)), time.perf_counter()
    found = what()
    return time.perf_counter() - begin, sum(map(peak, processes)) - before, found


def peak(process: object) -> float:
    status = Path(f"/proc/{process}/status").read_text()
    return int(status.partition("VmHWM:")[2].split()[0]) / 1024


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=100)
    parser.add_argument("--tokens", type=int, default=128, help="tokens that the reference writes for each row")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=1, help="of each engine")
    asked = parser.parse_args()
    os.environ["OMP_NUM_THREADS"] = str(asked.threads)  # of vLLM
    with tempfile.TemporaryDirectory() as folder:
        run(Path(folder), asked)


def run(folder: Path, asked: argparse.Namespace) -> None:
    length = PROMPT_TOKENS + asked.tokens
    subject = make_subject(folder, tokens=asked.rows * length)
    loaded = load_model(subject, asked.threads)
    candidate = rounded(loaded.model, 6)
    candidate.save_pretrained(folder / "candidate")
    loaded.tokenizer.save_pretrained(folder / "candidate")
    words = subject.text.read_text().split()
    corpus = Corpus("d", tuple(" ".join(words[at : at + length]) for at in range(0, len(words), length)))

    def opened(path: Path) -> Any:
        spec = ModelSpec(path=str(path), backend="vllm", load={"max_model_len": length})
        entry = Entry(name="m", spec=spec, path=Path, hub_id=lambda _: None, digest=str)
        return Vllm().describe(entry).open()

    p, q = opened(subject.model), opened(folder / "candidate")
    model = Model("m", lambda: p, context=length, offers=frozenset({"score", "sample"}))
    context = MeasurementContext(Path(), lambda _: p, lambda *_: True, lambda *_: JOB, None, lambda _: None)
    writes = SelfDivergences("self_kl", model, corpus, SelfDivergenceRequest(asked.tokens))
    exactly = TransformersRunner(loaded, length), TransformersRunner(replace(loaded, model=candidate), length)
    pair = ModelPair(("p", "q"), lambda: exactly[0], lambda: exactly[1])
    rounds = []
    for _ in range(asked.rounds + 1):
        write, more_p, found = measured(lambda: writes.measure(context), p)
        texts = np.split(found.ids, np.cumsum(found.prompt_tokens + found.window_targets)[:-1])
        requests = requests_of(texts, found.prompt_tokens, p.tokenizer, "d")
        read, more_q, scored = measured(partial(score, q, requests, JOB), q)
        exact, more, table = measured(partial(compare, pair, requests, JOB))
        rounds.append((write, read, exact))
        print(
            f"{len(found.nll_q):,} tokens: the reference writes and reads {write:.1f} s (+{more_p:.0f} MiB), the "
            f"candidate reads {read:.1f} s (+{more_q:.0f} MiB), exactly {exact:.1f} s (+{more:.0f} MiB); "
            f"KL {(scored.nll - found.nll_q).mean():.4f} and {table[:, COLUMNS.index('kl')].mean():.4f}",
            flush=True,
        )
    kept = np.array(rounds[1:])  # the first round is slower
    write, read, exact = np.median(kept, 0)
    print(f"median: reference {write:.1f} s, candidate {read:.1f} s, exactly {exact:.1f} s")
    first, next_ = np.median((kept[:, 0] + kept[:, 1]) / kept[:, 2]), np.median(kept[:, 1] / kept[:, 2])
    print(f"by sampling {next_:.2f} times as long as exactly, {first:.2f} times with the reference's texts")
    for runner in (p, q):
        runner.close()


if __name__ == "__main__":
    torch.set_grad_enabled(False)
    main()
