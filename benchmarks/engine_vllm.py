"""The engine vllm against a bare loop over vLLM's own prompt scoring: tokens per second of both, and their ratio.

Both read the same windows of random tokens with one model, each in a process of vLLM of its own::

    make install-vllm && .venv-vllm/bin/python benchmarks/engine_vllm.py FOLDER --tokens 16384 --window 512
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import time
from pathlib import Path

import numpy as np

from pytest_lmgate.data.corpus import Corpus
from pytest_lmgate.engines.base import Entry
from pytest_lmgate.engines.vllm import Vllm
from pytest_lmgate.measure.loop import Job
from pytest_lmgate.measure.scoring import score
from pytest_lmgate.settings.entries import ModelSpec
from pytest_lmgate.settings.requests import Protocol
from pytest_lmgate.windows.protocols import plan_windows
from pytest_lmgate.windows.requests import window_requests
from pytest_lmgate.windows.tokens import Streams

# The loop that a user would write. It gets arguments as JSON, answers each line on standard input by its seconds.
BARE = """
import json, os, sys, time
os.environ.update(VLLM_ENABLE_V1_MULTIPROCESSING="0", VLLM_LOGGING_LEVEL="ERROR", VLLM_ALLOW_LONG_MAX_MODEL_LEN="1")
answers = os.fdopen(os.dup(1), "w"); os.dup2(2, 1)
from vllm import LLM, SamplingParams
arguments, rows = json.loads(sys.stdin.readline())
llm = LLM(**arguments)
how = SamplingParams(temperature=0, max_tokens=1, prompt_logprobs=0, detokenize=False)
for _ in sys.stdin:
    begin = time.perf_counter()
    outputs = llm.generate([{"prompt_token_ids": ids} for ids in rows], how, use_tqdm=False)
    nll = [[-next(iter(each.values())).logprob for each in output.prompt_logprobs[1:]] for output in outputs]
    print(time.perf_counter() - begin, sum(map(len, nll)), file=answers, flush=True)
os._exit(0)
"""


def main() -> None:
    """Print a line for each round, and the median ratio."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path, help="folder of a causal model")
    parser.add_argument("--tokens", type=int, default=16384)
    parser.add_argument("--window", type=int, default=512)
    parser.add_argument("--rounds", type=int, default=5)
    chosen = parser.parse_args()

    spec = ModelSpec(path=str(chosen.model.resolve()), backend="vllm", load={"max_model_len": chosen.window})
    entry = Entry(name="m", spec=spec, path=Path, hub_id=lambda _: None, digest=str)
    runner = Vllm().describe(entry).open()
    vocabulary = json.loads((chosen.model / "config.json").read_text())["vocab_size"]
    ids = np.random.default_rng(0).integers(0, vocabulary, chosen.tokens)
    windowing = Protocol("disjoint", chosen.window).windowing(chosen.window, model="m")
    streams = Streams((ids,), None)
    requests = window_requests(streams, plan_windows(windowing, streams.lengths), Corpus("d", ("",)).name)

    arguments = {
        "model": spec.path, "dtype": "float32", "max_model_len": chosen.window + 1, "enforce_eager": True,
        "enable_prefix_caching": False, "kv_cache_memory_bytes": 2**31, "seed": 0,
    }  # fmt: skip
    rows = [ids[at : at + chosen.window].tolist() for at in range(0, chosen.tokens, chosen.window)]
    bare = subprocess.Popen(
        [sys.executable, "-c", BARE],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    assert bare.stdin is not None
    assert bare.stdout is not None
    print(json.dumps([arguments, rows]), file=bare.stdin, flush=True)

    ratios = []
    for number in range(chosen.rounds + 1):
        begin = time.perf_counter()
        ours = len(score(runner, requests, Job(model="m", dataset="d")).nll) / (time.perf_counter() - begin)
        print("again", file=bare.stdin, flush=True)
        seconds, targets = bare.stdout.readline().split()
        theirs = int(targets) / float(seconds)
        if number == 0:
            continue  # the first is slower
        ratios.append(ours / theirs)
        print(f"ours {ours:,.0f} tokens/s, bare {theirs:,.0f} tokens/s, ratio {ratios[-1]:.2f}")
    print(f"median ratio {statistics.median(ratios):.2f}")
    runner.close()
    bare.stdin.close()
    bare.wait()


if __name__ == "__main__":
    main()
