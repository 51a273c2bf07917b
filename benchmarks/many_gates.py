"""What cached gates cost: whole pytest sessions with 1,000 and 10,000 gates of lmgate.yaml, and the growth.

    python benchmarks/many_gates.py
    python benchmarks/many_gates.py --reports --gates 1000   # with a report of each format, and how large it is

Every gate judges a measurement that is in the cache: the sessions run no model and load no torch. Exits with 1 if a
requirement is broken, unless --no-check is given. The requirements are for a quiet machine with two cores.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from pytest_lmgate.report.formats import FORMATS

SECONDS = {1_000: 4.0, 10_000: 40.0}
SECONDS_WITH_REPORTS = {1_000: 6.0}
PAGE_BYTES = 3_000_000  # of the HTML report of 1,000 gates
_MODELS, _TEXTS = 4, 5
_WORDS = 60


def main() -> None:
    """Measure once, then time sessions in which everything is cached."""
    cli = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    cli.add_argument("--gates", type=int, nargs="+", default=list(SECONDS))
    cli.add_argument("--runs", type=int, default=3, help="sessions of each size; the fastest counts")
    cli.add_argument("--reports", action="store_true", help="write a report of each format")
    cli.add_argument("--no-check", action="store_true")
    arguments = cli.parse_args()
    required_seconds = SECONDS_WITH_REPORTS if arguments.reports else SECONDS
    reports = tuple(f"--lmgate-report={name}:report.{name}" for name in FORMATS) if arguments.reports else ()
    taken: dict[int, float] = {}
    broken = False
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        _write_models(folder)
        _write_gates(folder, _MODELS * _TEXTS)
        _run(folder)  # measures, and compiles what pytest compiles
        time.sleep(2.5)  # digests of files that have just changed are not remembered
        for gates in arguments.gates:
            _write_gates(folder, gates)
            taken[gates] = min(_run(folder, *reports) for _ in range(arguments.runs))
            allowed = required_seconds.get(gates)
            required = f"; required: at most {allowed:.0f} s" if allowed else ""
            print(
                f"{gates:>6,} cached gates: {taken[gates]:.2f} s, {taken[gates] / gates * 1000:.2f} ms each{required}"
            )
            for file in sorted(folder.glob("report.*")):
                print(f"       {file.name}: {file.stat().st_size:,} bytes")
                broken |= file.suffix == ".html" and gates <= 1_000 and file.stat().st_size > PAGE_BYTES
                file.unlink()
    sizes = sorted(taken)
    if len(sizes) > 1:
        growth = (taken[sizes[-1]] - taken[sizes[0]]) / (sizes[-1] - sizes[0])
        print(f"growth: {growth * 1000:.2f} ms for each further gate")
    broken |= any(seconds > required_seconds.get(gates, seconds) for gates, seconds in taken.items())
    if broken and not arguments.no_check:
        raise SystemExit(1)


def _write_gates(folder: Path, count: int) -> None:
    gates = [
        f"  - ppl_max: {{model: m{index % _MODELS}, dataset: t{index // _MODELS % _TEXTS}, limit: {1000 + index}}}"
        for index in range(count)
    ]
    models = "".join(f"  m{index}: {{path: models/m{index}}}\n" for index in range(_MODELS))
    texts = "".join(f"  t{index}: {{path: t{index}.txt}}\n" for index in range(_TEXTS))
    (folder / "lmgate.yaml").write_text(f"models:\n{models}datasets:\n{texts}gates:\n" + "\n".join(gates) + "\n")
    (folder / "pytest.ini").write_text("[pytest]\n")


def _write_models(folder: Path) -> None:
    import tokenizers
    import torch
    import transformers

    vocabulary = {"<s>": 0, **{f"w{index}": index for index in range(1, _WORDS)}}
    backend = tokenizers.Tokenizer(tokenizers.models.WordLevel(vocabulary, unk_token="<s>"))
    backend.pre_tokenizer = tokenizers.pre_tokenizers.WhitespaceSplit()
    tokenizer = transformers.PreTrainedTokenizerFast(tokenizer_object=backend, bos_token="<s>", unk_token="<s>")
    sizes = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2}
    config = transformers.LlamaConfig(vocab_size=_WORDS, max_position_embeddings=64, **sizes)
    for index in range(_MODELS):
        torch.manual_seed(index)
        transformers.LlamaForCausalLM(config).save_pretrained(folder / "models" / f"m{index}")
        tokenizer.save_pretrained(folder / "models" / f"m{index}")
    for index in range(_TEXTS):
        words = torch.randint(1, _WORDS, (400,), generator=torch.Generator().manual_seed(index)).tolist()
        (folder / f"t{index}.txt").write_text(" ".join(f"w{word}" for word in words))


def _run(folder: Path, *options: str) -> float:
    """Return the seconds that a session takes."""
    kept = {key: value for key, value in os.environ.items() if key != "PYTHONDONTWRITEBYTECODE"}
    environment = {**kept, "OMP_NUM_THREADS": "1", "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    command = [sys.executable, "-m", "pytest", "-q", "-p", "pytest_lmgate.plugin", *options]
    before = os.times()
    started = time.perf_counter()
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)
    seconds = time.perf_counter() - started
    after = os.times()
    processor = after.children_user + after.children_system - before.children_user - before.children_system
    print(f"       a session of {seconds:.2f} s, of which the processor worked {processor:.2f} s", flush=True)
    if done.returncode != 0:
        raise SystemExit(done.stdout[-2000:] + done.stderr)
    return seconds


if __name__ == "__main__":
    main()
