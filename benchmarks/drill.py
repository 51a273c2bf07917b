"""`lmgate drill`: its cost and memory, rules of other projects on the same table, and kills.

    python benchmarks/drill.py cost          # processor seconds of a drill of the example, in those of one measurement
    python benchmarks/drill.py memory        # peak memory of a drill, in that of measuring the same gates
    python benchmarks/drill.py picture       # docs/figures/drill.svg: rules of other projects on the same table
    python benchmarks/drill.py kills         # 20 kills at random moments

Exits with 1 if a requirement is broken, unless --no-check is given.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from random import Random
from typing import Any

from comparison import Row, arguments, exit_status, print_rows

from pytest_lmgate.plugin.options import CI_VARIABLES

ROOT = Path(__file__).resolve().parents[1]
KILLED = ("round-last", "kv-lost", "answers")
VOCABULARY, ROWS, TOKENS, PROMPT, NEW = 97, 60, 40, 9, 12
LEFT_OUT = {"PYTHONDONTWRITEBYTECODE", "PYTEST_VERSION", "PYTEST_CURRENT_TEST", *CI_VARIABLES}
ANSWER = r"\b(w[1-3]\d?)\b"  # the first such word of a text is its answer
_YAML = """\
defaults: {{device: cpu, dtype: float32}}
models:
  float: {{path: float}}
  int8: {{path: int8}}
datasets:
  rows: {{path: rows.jsonl, text: text}}
  chats:
    path: written.jsonl
    prompt: "{{prompt}}"
    references: answer
    chat: true
    max_new_tokens: {new}
    extract: [regex: {{pattern: '{answer}'}}, take_first]
  texts: {{path: written.jsonl, prompt: "{{prompt}}", references: text, max_new_tokens: {new}}}
gates:
"""
TYPICAL = {
    "ppl": "ppl_max: {model: int8, dataset: rows, limit: %(ppl).4g, protocol: document}",
    "paired ppl": (
        "no_regression: {metric: ppl, model: int8, dataset: rows, against: float, tolerance: 2%%, protocol: document}"
    ),
    "kl": "kl_max: {model: int8, reference: float, dataset: rows, limit: 0.01, protocol: document}",
    "exact": "exact_min: {model: int8, dataset: chats, limit: 0.8}",
    "invalid": "invalid_max: {model: int8, dataset: chats, limit: 0.1}",
    "chrf": "chrf_min: {model: int8, dataset: texts, limit: 75}",
    "self_kl": "self_kl_max: {model: int8, dataset: texts, limit: 1.0e-4, max_new_tokens: 12}",
}
"""The gates of usual files."""


def make_model(seed: int = 0) -> Any:
    """Draw a model of four blocks whose logits depend on their context, with norms that are not those of a new one."""
    import torch
    import transformers

    torch.manual_seed(seed)
    sizes: dict[str, Any] = {
        "vocab_size": VOCABULARY, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 4,
        "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 8, "max_position_embeddings": 64,
        "tie_word_embeddings": False, "bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0,
    }  # fmt: skip
    rope = {"rope_type": "linear", "factor": 2.0, "rope_theta": 1_000_000.0}
    config = transformers.LlamaConfig(**sizes, rope_parameters=rope)
    model = transformers.AutoModelForCausalLM.from_config(config, attn_implementation="eager").eval()
    model.requires_grad_(False)
    for name, parameter in model.named_parameters():
        if parameter.ndim == 1:
            parameter.normal_(1.0, 0.5)
        elif name != "lm_head.weight":
            parameter.mul_(7)
    spread = model(input_ids=torch.arange(VOCABULARY - 4)[None, :32]).logits.std()
    model.lm_head.weight.mul_(3 / spread)
    model.lm_head.weight[:2] = 0  # no text has <unk> or <s>
    model.lm_head.weight[2] *= 1.5
    return model


def make_tokenizer() -> Any:
    import tokenizers
    import transformers

    words = {word: at for at, word in enumerate(["<unk>", "<s>", "</s>", *(f"w{at}" for at in range(3, VOCABULARY))])}
    backend = tokenizers.Tokenizer(tokenizers.models.WordLevel(words, unk_token="<unk>"))
    backend.pre_tokenizer = tokenizers.pre_tokenizers.WhitespaceSplit()
    backend.post_processor = tokenizers.processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 1)])
    special = {"unk_token": "<unk>", "bos_token": "<s>", "eos_token": "</s>"}
    tokenizer = transformers.PreTrainedTokenizerFast(tokenizer_object=backend, **special)
    tokenizer.chat_template = "{% for message in messages %}{{ bos_token }} {{ message.content }} {% endfor %}"
    return tokenizer


def round_blocks(blocks: Any, bits: int) -> None:
    """Round all linear layers of blocks, row by row."""
    import torch

    for layer in blocks.modules():
        if isinstance(layer, torch.nn.Linear):
            step = layer.weight.abs().amax(1, keepdim=True) / (2 ** (bits - 1) - 1)
            layer.weight.copy_((layer.weight / step).round() * step)


def continued(model: Any, ids: Any, tokens: int, *, sampled: bool) -> Any:
    """Append tokens, the likeliest or drawn from words alone."""
    import torch

    for _ in range(tokens):
        likely = model(input_ids=ids).logits[:, -1].softmax(-1)
        if sampled:
            likely[:, :3] = 0
        after = torch.multinomial(likely, 1) if sampled else likely.argmax(-1, keepdim=True)
        ids = torch.cat([ids, after], 1)
    return ids


def save(folder: Path, model: Any, tokenizer: Any, bits: int = 8) -> None:
    """Write a model as `float`, and its rounding as `int8`."""
    for name in ("float", "int8"):
        if name == "int8":
            round_blocks(model.model.layers, bits)
        model.save_pretrained(folder / name)
        tokenizer.save_pretrained(folder / name)
    (folder / "pytest.ini").write_text("[pytest]\n")


def make_project(folder: Path, *, rows: int = ROWS, bits: int = 8, gates: Sequence[str] = tuple(TYPICAL)) -> None:
    """Write a model, its rounding, data that the model wrote, and some of the typical gates."""
    import torch
    import transformers

    transformers.utils.logging.disable_progress_bar()
    with torch.inference_mode():
        model, tokenizer = make_model(), make_tokenizer()
        torch.manual_seed(0)
        begun = torch.randint(3, VOCABULARY, (rows, 1))
        texts = continued(model, begun, TOKENS - 1, sampled=True)  # read without special tokens
        write(folder / "rows.jsonl", [{"text": tokenizer.decode(ids)} for ids in texts])
        said = model(input_ids=texts).logits.log_softmax(-1)[:, :-1]
        ppl = (-said.gather(-1, texts[:, 1:, None])).mean().exp()
        begun = continued(model, torch.cat([torch.ones_like(begun), begun], 1), 14, sampled=True)
        texts = continued(model, begun[:, :PROMPT], NEW, sampled=False)
        write(folder / "written.jsonl", list(written(tokenizer, texts.tolist())))
        save(folder, model, tokenizer, bits)
    lines = "".join(f"  - {TYPICAL[gate] % {'ppl': 1.05 * ppl}}\n" for gate in gates)
    (folder / "lmgate.yaml").write_text(_YAML.format(new=NEW, answer=ANSWER) + lines)


def written(tokenizer: Any, texts: Sequence[list[int]]) -> Iterator[dict[str, str]]:
    """Yield the prompts, texts and answers of texts that have an answer."""
    for ids in texts:
        ids = ids[: ids.index(2)] if 2 in ids else ids
        prompt, text = tokenizer.decode(ids[1:PROMPT]), tokenizer.decode(ids[PROMPT:])
        if (answer := re.search(ANSWER, text)) is not None:
            yield {"prompt": prompt, "text": text, "answer": answer[1]}


def write(path: Path, rows: Sequence[Any]) -> None:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))


def begin(command: Sequence[str], folder: Path, output: int = subprocess.PIPE) -> subprocess.Popen[str]:
    """Begin to run this Python in a project."""
    env = {name: value for name, value in os.environ.items() if name not in LEFT_OUT}
    return subprocess.Popen([sys.executable, *command], cwd=folder, env=env, stdout=output, stderr=output, text=True)


def run(command: Sequence[str], folder: Path) -> subprocess.CompletedProcess[str]:
    """Run a module of this Python in a project."""
    with begin(["-m", *command], folder) as process:
        output, error = process.communicate()
    return subprocess.CompletedProcess(process.args, process.returncode, output, error)


def drill_command(faults: Sequence[str]) -> list[str]:
    return ["pytest_lmgate.cli", "drill", "--json", *(["--faults", ",".join(faults)] if faults else [])]


def drilled(folder: Path, faults: Sequence[str] = ()) -> dict[str, Any]:
    """Return the records of a drill."""
    ended = run(drill_command(faults), folder)
    if ended.returncode:
        raise SystemExit(f"lmgate drill: {ended.stderr}")
    records: dict[str, Any] = json.loads(ended.stdout)
    return records


# Cost and memory.

EXAMPLE = {
    "kl int8 few-bulletins --reference float": "limit: 0.01",
    "ppl int8 few-bulletins": "limit: 2.2",
    "accuracy writer quiz": "limit: 0.95",
    "bleu writer records": "limit: 80",
}
"""What gates measure, as arguments of `lmgate measure`."""
ALL_BLOCKS = ("noise", "fp8-e5m2", "skip")
# Runs commands of lmgate one after the other, and prints the processor seconds of each but what the first one loads.
_TIMED = """
import contextlib, io, json, shutil, sys, time
from pytest_lmgate.cli.app import app
seconds = []
for command in json.loads(sys.argv[1]):
    shutil.rmtree(".lmgate_cache", ignore_errors=True)
    begun = time.process_time()
    with contextlib.redirect_stdout(io.StringIO()) as said, contextlib.suppress(SystemExit):
        app(command)
    seconds.append(time.process_time() - begun)
print(json.dumps([seconds, said.getvalue()]))
"""


def run_cost(folder: Path, gates: Mapping[str, str] = EXAMPLE, *more: str) -> list[Row]:
    """Print what a drill of each gate of the example costs, by one measurement of the gate."""
    shutil.copytree(ROOT / "example_project", folder, ignore=shutil.ignore_patterns(".lmgate_cache"))
    file, rows, once, drill = folder / "lmgate.yaml", list[Row](), 0.0, 0.0
    head = file.read_text()
    for measured, limit in gates.items():
        metric, model, dataset, *reference = measured.split()
        marker = f"{metric}_{'max' if metric in ('kl', 'ppl') else 'min'}"
        given = f"model: {model}, dataset: {dataset}, {limit}" + (f", reference: {reference[1]}" if reference else "")
        file.write_text(f"{head}gates:\n  - {marker}: {{{given}}}\n")
        measure = ["measure", *measured.split()]
        commands = json.dumps([measure, measure, ["drill", "--json", "--seconds", "36000", *more]])
        with begin(["-c", _TIMED, commands], folder) as process:
            output, error = process.communicate()
        if process.returncode:
            raise SystemExit(f"{marker}: {error}")
        (_, one, whole), said = json.loads(output)
        trials = [len(each["trials"]) for each in json.loads(said)["findings"]]
        once, drill = once + one, drill + whole
        note = f"{one:.1f} s once; {sum(map(bool, trials))} faults reach it, {sum(trials)} broken models"
        rows.append(Row(marker, f"{whole / one:.1f} times", note=note))
    return [*rows, Row("all gates", f"{drill / once:.1f} times", "12", drill <= 12 * once, f"{drill:.0f} s")]


def run_memory(folder: Path, width: int = 1024, faults: Sequence[str] = ALL_BLOCKS) -> list[Row]:
    """Print the peak memory of a drill with faults of all blocks, against that of measuring its two gates."""
    import torch
    import transformers

    folder.mkdir()
    tokenizer, sizes = make_tokenizer(), {"num_hidden_layers": 8, "num_attention_heads": 8, "num_key_value_heads": 4}
    sizes |= {"vocab_size": VOCABULARY, "hidden_size": width, "intermediate_size": 3 * width}
    torch.manual_seed(0)
    config = transformers.LlamaConfig(**sizes, tie_word_embeddings=False)
    model = transformers.LlamaForCausalLM(config).eval().requires_grad_(False)
    size = sum(each.nbytes for each in model.parameters())
    save(folder, model, tokenizer)
    drawn = torch.randint(3, VOCABULARY, (6, 80)).tolist()
    write(folder / "rows.jsonl", [{"text": tokenizer.decode(ids)} for ids in drawn])
    gates = ("{kl_max: {model: int8, reference: float, limit: 0.001, ", "{ppl_max: {model: int8, limit: 1000, ")
    text = "models: {float: {path: float}, int8: {path: int8}}\ndatasets: {rows: {path: rows.jsonl, text: text}}\n"
    lines = "".join(f"  - {gate}dataset: rows, protocol: document}}}}\n" for gate in gates)
    (folder / "lmgate.yaml").write_text(f"defaults: {{device: cpu, dtype: float32}}\n{text}gates:\n{lines}")
    once = peak(["-m", "pytest", "-q", "-p", "no:cacheprovider"], folder)
    drill = peak(["-m", *drill_command(faults)], folder)
    note = f"{drill / 1e6:.0f} MB of {once / 1e6:.0f} MB; a model has {size / 1e6:.0f} MB"
    return [
        Row("a drill, by measuring its gates", f"{drill / once:.2f} times", "1.3", drill <= 1.3 * once, note),
        Row("what it has more, by the model", f"{(drill - once) / size:.2f}"),
    ]


def peak(command: Sequence[str], folder: Path) -> int:
    """Return the most memory that a command of this Python had, in bytes."""
    process = begin(command, folder, output=subprocess.DEVNULL)
    _, status, used = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise SystemExit(f"{' '.join(command)}: ended with {process.returncode}")
    return used.ru_maxrss * (1 if sys.platform == "darwin" else 1024)


# The rules of other projects on the same table.

RULES = {
    "floor of a task,\nless 8 points": "exact_min: {model: int8, dataset: chats, limit: %(floor).4g}",
    "95% of\nthe base": "exact_min: {model: int8, dataset: chats, limit: %(share).4g}",
    "perplexity\n+ 2%": TYPICAL["ppl"],
    "no_regression\nexact, 5 points": (
        "no_regression: {metric: exact, model: int8, dataset: chats, against: float, tolerance: 0.05}"
    ),
    "no_regression\nppl, 2%": TYPICAL["paired ppl"],
    "kl_max\n0.01": TYPICAL["kl"],
    "self_kl_max\n0.0001": TYPICAL["self_kl"],
}
"""Three rules of other projects, and four gates, by their titles in the picture."""
THEIRS = 3
COLOURS = {"early": ("#1f5fa8", "#fff"), "late": ("#9cc5ec", "#10243a"), "missed": ("#d9771f", "#201000")}
COLOURS["none"] = ("#f3f3f3", "#777")


def run_picture(folder: Path, svg: Path) -> list[Row]:
    """Drill a model with the rules of other projects and with gates, and draw which fault each catches."""
    from pytest_lmgate.tools.drill.faults import known_faults

    folder.mkdir()
    make_project(folder, rows=300, bits=12)
    file, path = folder / "lmgate.yaml", folder / "written.jsonl"
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    write(path, [row | ({"answer": "none"} if at % 3 == 0 else {}) for at, row in enumerate(rows)])
    head = file.read_text().partition("gates:\n")[0] + "gates:\n"
    base = {"floor": 0.01, "share": 0.01, "ppl": 1e9}
    floor, *_, paired, _, _ = RULES.values()
    file.write_text(f"{head}  - {paired % base}\n  - {floor % base}\n")
    measured = run(["pytest", "-q", "-p", "no:cacheprovider", "--lmgate-report", "json:report.json"], folder)
    gates = {gate["metric"]: gate for gate in json.loads((folder / "report.json").read_text())["gates"]}
    if measured.returncode:
        raise SystemExit(measured.stdout)
    exact, ppl = gates["exact"]["value"], gates["ppl"]["comparison"]["reference"]
    base = {"floor": exact - 0.08, "share": 0.95 * exact, "ppl": 1.02 * ppl}
    file.write_text(head + "".join(f"  - {rule % base}\n" for rule in RULES.values()))
    records = drilled(folder)
    labels = list(records["gates"])
    found = {(each["fault"], each["gate"]): each for each in records["findings"]}
    faults = [name for name in known_faults() if found[name, labels[0]]["sight"] != "not tried"]
    cells = [[cell(found[fault, label]) for label in labels] for fault in faults]
    svg.write_text(drawn(faults, cells), encoding="utf-8")
    groups = {title.replace("\n", " "): slice(at, at + 1) for at, title in enumerate(RULES)}
    groups |= {"the rules of other projects together": slice(THEIRS), "the gates together": slice(THEIRS, None)}
    caught = {
        title: sum(any(shade in ("early", "late") for _, shade in row[group]) for row in cells)
        for title, group in groups.items()
    }
    note = f"{len(rows)} rows, exact match of the base {exact:.1%}"
    return [Row("faults", str(len(faults)), note=note), *(Row(title, f"{n} caught") for title, n in caught.items())]


def cell(found: Mapping[str, Any]) -> tuple[str, str]:
    """Return the words and the shade of a cell."""
    from pytest_lmgate.tools.drill.faults import known_faults

    fault, unseen = known_faults()[found["fault"]], {"not tried": "none", "no effect": "missed"}
    if (sight := found["sight"]) != "caught":
        return (sight, unseen[sight]) if sight in unseen else ("passes", "missed")
    strength = fault.levels.index(found["level"]) + 1
    return fault.shown(strength), "early" if 2 * strength <= len(fault.levels) + 1 else "late"


def drawn(faults: Sequence[str], cells: Sequence[Sequence[tuple[str, str]]]) -> str:
    """Return the table as SVG: blue is caught, orange passes; each cell says so in words, too."""
    left, width, height, top = 110, 118, 17, 64
    right = left + width * len(RULES)
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {right + 6} {top + height * len(faults) + 30}" '
        'font-family="sans-serif" font-size="10.5">',
        "<title>Which rule catches which fault, and from which strength on</title>",
        "<style>" + "".join(f".{name}{{fill:{fill}}}.{name}-t{{fill:{ink}}}" for name, (fill, ink) in COLOURS.items()),
        "text{text-anchor:middle}.l{text-anchor:start}.b{font-weight:bold}</style>",
        f'<rect width="{right + 6}" height="{top + height * len(faults) + 30}" fill="#fff"/>',
        f'<text class="b" x="{left + width * THEIRS / 2}" y="16">rules of other projects</text>',
        f'<text class="b" x="{(left + width * THEIRS + right) / 2}" y="16">gates of pytest-lmgate</text>',
    ]
    for at, title in enumerate(RULES):
        for row, part in enumerate(title.split("\n")):
            lines.append(f'<text x="{left + width * (at + 0.5)}" y="{34 + 14 * row}">{part}</text>')
    for row, (fault, shown) in enumerate(zip(faults, cells, strict=True)):
        y = top + height * row
        lines.append(f'<text class="l" x="4" y="{y + 12}">{fault}</text>')
        for at, (words, shade) in enumerate(shown):
            x = left + width * at + (6 if at >= THEIRS else 0)
            lines.append(f'<rect class="{shade}" x="{x}" y="{y}" width="{width - 2}" height="{height - 2}"/>')
            lines.append(f'<text class="{shade}-t" x="{x + width / 2 - 1}" y="{y + 11.5}">{words}</text>')
    y, x = top + height * len(faults) + 8, left
    for shade, words in (("early", "caught when weak"), ("late", "only when strong"), ("missed", "never caught")):
        lines.append(f'<rect class="{shade}" x="{x}" y="{y}" width="14" height="14"/>')
        lines.append(f'<text class="l" x="{x + 20}" y="{y + 11}">{words}</text>')
        x += 150
    return "\n".join([*lines, "</svg>", ""])


# Kills.


def content(folder: Path) -> dict[str, bytes]:
    """Return all files of a project but those of a drill that is not over."""
    kept = (path for path in folder.rglob("*") if path.is_file() and "drill" not in path.relative_to(folder).parts)
    return {str(path.relative_to(folder)): path.read_bytes() for path in kept}


def run_kills(folder: Path, kills: int, faults: Sequence[str], gates: Sequence[str] = tuple(TYPICAL)) -> list[Row]:
    """Kill a drill at random moments until it has been killed so often, and compare with one that ran through.

    The project has a cache and a baseline, which have to keep every byte at each kill.
    """
    folder.mkdir()
    make_project(folder, gates=gates)
    with (folder / "lmgate.yaml").open("a") as file:
        file.write("  - no_regression: {metric: ppl, model: float, dataset: rows, tolerance: 2%}\n")
    updated = run(["pytest", "-q", "-p", "no:cacheprovider", "--lmgate-update"], folder)
    if updated.returncode or not (folder / "lmgate-baseline.json").exists():
        raise SystemExit(f"pytest: {updated.stdout}{updated.stderr}")
    before, random, begun = content(folder), Random(0), time.monotonic()
    whole = drilled(folder, faults)
    most, measured, is_equal = time.monotonic() - begun, [], True
    while len(measured) < kills:
        with begin(["-m", *drill_command(faults)], folder) as process:
            try:
                process.communicate(timeout=random.uniform(0, most))
            except subprocess.TimeoutExpired:
                process.kill()
                measured.append(sum(1 for _ in folder.rglob("drill/**/*.lmgate")))
        is_equal = is_equal and content(folder) == before
    ended = drilled(folder, faults)
    left = [str(path) for path in (folder / ".lmgate_cache").rglob("*drill*")]
    is_same = whole["findings"] == ended["findings"]
    kept = f"{min(measured)} to {max(measured)} measurements kept"
    return [
        Row("killed", str(len(measured)), str(kills), note=kept),
        Row("cache, baseline and files after each kill", "equal" if is_equal else "not equal", "equal", is_equal),
        Row("findings, by a drill that ran through", "equal" if is_same else "not equal", "equal", is_same),
        Row("left at the end", str(left or "nothing"), "nothing", not left),
    ]


def main() -> int:
    """Run what was asked for."""
    parser = arguments(__doc__)
    parser.add_argument("part", choices=["cost", "memory", "picture", "kills"])
    parser.add_argument("--svg", type=Path, default=ROOT / "docs" / "figures" / "drill.svg", help="picture: the file")
    parser.add_argument("--kills", type=int, default=20)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary) / "project"
        parts: dict[str, tuple[str, Callable[[], list[Row]]]] = {
            "cost": ("Processor seconds of a drill, by those of one measurement", lambda: run_cost(folder)),
            "memory": ("Peak memory", lambda: run_memory(folder)),
            "picture": ("Faults caught, by rule", lambda: run_picture(folder, given.svg)),
            "kills": ("Kills", lambda: run_kills(folder, given.kills, KILLED)),
        }
        title, rows = parts[given.part]
        return exit_status(given, lambda: print_rows(title, rows()))


if __name__ == "__main__":
    sys.exit(main())
