"""`lmgate drill`: whether its word comes true, what verdicts promise to see, other rules, its cost, and kills.

    python benchmarks/drill.py defects       # published defects, planted by code that is not the drill's
    python benchmarks/drill.py power         # what verdicts state that they see, against what they see
    python benchmarks/drill.py picture       # docs/figures/drill.svg: rules of other projects on the same table
    python benchmarks/drill.py kills         # 20 kills at random moments

Defects: small models get five typical sets of gates. The drill says beforehand which gates its usual faults turn red.
Then defects that were published are planted in checkpoints, tokenizers, data and kernels, and pytest runs the gates.
A pair of a gate and a defect comes true if the gate is red where the drill had caught the fault that corresponds, at
the defect's size or below, and green elsewhere.

Exits with 1 if a requirement is broken, unless --no-check is given.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
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
  int8: {{path: int8{more}}}
datasets:
  rows: {{path: rows.jsonl, text: text}}
  quiz: {{path: quiz.jsonl, question: question, choices: choices, answer: answer}}
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
    "perplexity": ["ppl_max: {model: int8, dataset: rows, limit: %(ppl).4g, protocol: document}"],
    "quantization": [
        "no_regression: {metric: ppl, model: int8, dataset: rows, against: float, tolerance: 2%%, protocol: document}",
        "kl_max: {model: int8, reference: float, dataset: rows, limit: 0.01, protocol: document}",
    ],
    "choices": ["accuracy_min: {model: int8, dataset: quiz, limit: 0.9}"],
    "chat task": [
        "exact_min: {model: int8, dataset: chats, limit: 0.8}",
        "invalid_max: {model: int8, dataset: chats, limit: 0.1}",
    ],
    "texts": [
        "chrf_min: {model: int8, dataset: texts, limit: 75}",
        "self_kl_max: {model: int8, dataset: texts, limit: 1.0e-4, max_new_tokens: 12}",
    ],
}
"""The gates of five usual files, by what people gate."""
Gates = Mapping[str, Sequence[str]]


def make_model(kind: str, seed: int) -> Any:
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
    config = (
        transformers.Gemma2Config(**sizes, sliding_window=16, final_logit_softcapping=3.0, attn_logit_softcapping=5.0)
        if kind == "gemma2"
        else transformers.LlamaConfig(**sizes, rope_parameters=rope)
    )
    model = transformers.AutoModelForCausalLM.from_config(config, attn_implementation="eager").eval()
    model.requires_grad_(False)
    for name, parameter in model.named_parameters():
        if parameter.ndim == 1:
            parameter.normal_(0.0 if kind == "gemma2" else 1.0, 0.5)
        elif name != "lm_head.weight":
            parameter.mul_(7)
    spread = model(input_ids=torch.arange(VOCABULARY - 4)[None, :32]).logits.std()
    if kind == "gemma2":
        model.lm_head.weight.mul_(30)  # soft caps bound the spread
    else:
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


def round_rows(layer: Any, bits: int) -> None:
    most = 2 ** (bits - 1) - 1
    step = layer.weight.abs().amax(1, keepdim=True) / most
    layer.weight.copy_((layer.weight / step).round() * step)


def round_blocks(blocks: Any, bits: int) -> None:
    """Round all linear layers of blocks, row by row."""
    import torch

    for module in blocks.modules():
        if isinstance(module, torch.nn.Linear):
            round_rows(module, bits)


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


def losses(model: Any, ids: Any) -> Any:
    said = model(input_ids=ids).logits.double().log_softmax(-1)
    return -said[:, :-1].gather(-1, ids[:, 1:, None])[..., 0]


def make_project(
    folder: Path, kind: str, seed: int = 0, *, rows: int = ROWS, typical: Gates = TYPICAL, bits: int = 8
) -> None:
    """Write a model, its rounding, data that the model wrote, and the typical gates."""
    import torch
    import transformers

    transformers.utils.logging.disable_progress_bar()
    with torch.inference_mode():
        model, tokenizer = make_model(kind, seed), make_tokenizer()
        torch.manual_seed(seed)
        if kind == "adapter":
            make_adapted(folder, model, tokenizer)
            model = load_adapted(folder / "float")
        begun = torch.randint(3, VOCABULARY, (rows, 1))
        texts = continued(model, begun, TOKENS - 1, sampled=True)  # read without special tokens
        write(folder / "rows.jsonl", [{"text": tokenizer.decode(ids)} for ids in texts])
        ppl = losses(model, texts).mean().exp()
        begun = continued(model, torch.cat([torch.ones_like(begun), begun], 1), 14, sampled=True)
        write(folder / "quiz.jsonl", list(questions(model, tokenizer, begun)))
        texts = continued(model, begun[:, :PROMPT], NEW, sampled=False)
        write(folder / "written.jsonl", list(written(tokenizer, texts.tolist())))
        if kind != "adapter":
            model.save_pretrained(folder / "float")
            tokenizer.save_pretrained(folder / "float")
            round_blocks(model.model.layers, bits)
            model.save_pretrained(folder / "int8")
            tokenizer.save_pretrained(folder / "int8")
    more = ", adapter: adapter" if kind == "adapter" else ""
    head = _YAML.format(new=NEW, answer=ANSWER, more=more)
    lines = [gate % {"ppl": 1.05 * ppl} for gates in typical.values() for gate in gates]
    (folder / "lmgate.yaml").write_text(head + "".join(f"  - {gate}\n" for gate in lines))
    (folder / "pytest.ini").write_text("[pytest]\n")


def make_adapted(folder: Path, model: Any, tokenizer: Any) -> None:
    """Write a base as `int8`, an adapter for it, and what the two are together as `float`."""
    import peft

    model.save_pretrained(folder / "int8")
    settings: dict[str, Any] = {"r": 4, "lora_alpha": 16, "init_lora_weights": False, "task_type": "CAUSAL_LM"}
    adapted = peft.get_peft_model(model, peft.LoraConfig(**settings, target_modules=["q_proj", "v_proj"]))
    adapted.save_pretrained(folder / "adapter")
    adapted.merge_and_unload().save_pretrained(folder / "float")
    for name in ("int8", "float"):
        tokenizer.save_pretrained(folder / name)


def load_adapted(folder: Path) -> Any:
    import transformers

    return transformers.AutoModelForCausalLM.from_pretrained(folder, attn_implementation="eager").eval()


def questions(model: Any, tokenizer: Any, begun: Any) -> Iterator[dict[str, Any]]:
    """Yield questions with four ways to go on that the model drew; the right one is what it finds likeliest."""
    import torch

    drawn = [continued(model, begun, 6, sampled=True) for _ in range(4)]
    right = torch.stack([losses(model, each)[:, -6:].sum(1) for each in drawn]).argmin(0)
    for at, question in enumerate(begun):
        choices = [tokenizer.decode(each[at, begun.shape[1] :]) for each in drawn]
        if len(set(choices)) == len(choices):
            yield {"question": tokenizer.decode(question[1:]), "choices": choices, "answer": int(right[at])}


def written(tokenizer: Any, texts: Sequence[list[int]]) -> Iterator[dict[str, str]]:
    """Yield the prompts, texts and answers of texts that have an answer."""
    for ids in texts:
        ids = ids[: ids.index(2)] if 2 in ids else ids
        prompt, text = tokenizer.decode(ids[1:PROMPT]), tokenizer.decode(ids[PROMPT:])
        if (answer := re.search(ANSWER, text)) is not None:
            yield {"prompt": prompt, "text": text, "answer": answer[1]}


def write(path: Path, rows: Sequence[Any]) -> None:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))


# The defects: how each was published, and how it is planted in the files of a project.


@dataclass(frozen=True)
class Defect:
    """A defect that happened.

    Attributes:
        name: In the table.
        kind: The model that can have it.
        fault: The drill's fault that corresponds.
        level: Its level of the same size, or the next below.
        plant: Changes the files of a project.
    """

    name: str
    kind: str
    fault: str
    level: float
    plant: Callable[[Path], object]


def edited(file: str, **changes: Any) -> Callable[[Path], object]:
    """Return what changes keys of a JSON file of the candidate."""

    def plant(folder: Path) -> None:
        path = folder / "int8" / file
        path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))

    return plant


def tensors(change: Callable[[dict[str, Any]], object]) -> Callable[[Path], object]:
    """Return what changes the tensors of the candidate."""

    def plant(folder: Path) -> None:
        from safetensors.torch import load_file, save_file

        path = folder / "int8" / "model.safetensors"
        held = load_file(path)
        change(held)
        save_file(held, path, metadata={"format": "pt"})

    return plant


def without_norms(held: dict[str, Any]) -> None:
    for name in [name for name in held if name.endswith("post_attention_layernorm.weight")]:
        held[name].fill_(1.0)  # what a module is made with


def without_last_block(folder: Path) -> None:
    tensors(lambda held: [held.pop(name) for name in list(held) if name.startswith("model.layers.3.")])(folder)
    edited("config.json", num_hidden_layers=3)(folder)


def permuted_keys(held: dict[str, Any]) -> None:
    """Exchange the query heads that share a key, as a conversion that permutes them by the wrong number of heads."""
    for name in [name for name in held if name.endswith("q_proj.weight")]:
        heads = held[name].view(4, 8, -1)
        held[name] = heads[[0, 2, 1, 3]].reshape(held[name].shape).contiguous()


def coarse_block(held: dict[str, Any]) -> None:
    for name in held:
        if name.startswith("model.layers.3.") and held[name].ndim == 2:
            step = held[name].abs().amax(1, keepdim=True)
            held[name] = (held[name] / step).round() * step


def in_bfloat16(held: dict[str, Any]) -> None:
    for name in held:
        held[name] = held[name].bfloat16().float()


def doubled_bos(folder: Path) -> None:
    """Let the chat template write the token that the tokenizer adds, too: both do."""
    path = folder / "int8" / "tokenizer.json"
    held = json.loads(path.read_text())
    held["post_processor"]["single"].insert(0, held["post_processor"]["single"][0])
    path.write_text(json.dumps(held))
    template = folder / "int8" / "chat_template.jinja"
    template.write_text("{{ bos_token }} " + template.read_text())


def of_another(folder: Path) -> None:
    turns = "{% for message in messages %}[INST] {{ message.content }} [/INST]{% endfor %}"
    (folder / "int8" / "chat_template.jinja").write_text(turns)


def without_end(folder: Path) -> None:
    edited("generation_config.json", eos_token_id=None)(folder)
    edited("config.json", eos_token_id=None)(folder)
    edited("tokenizer_config.json", eos_token=None)(folder)


def of_the_row_before(folder: Path) -> None:
    """Join the answers to the wrong rows, as where one of two files has lost its first line."""
    for name, columns in (("quiz", ["answer"]), ("written", ["answer", "text"])):
        path = folder / f"{name}.jsonl"
        rows = [json.loads(line) for line in path.read_text().splitlines()]
        before = [rows[-1], *rows]
        write(path, [row | {key: other[key] for key in columns} for row, other in zip(rows, before, strict=False)])


def by_kernel(body: str) -> Callable[[Path], object]:
    """Return what gives the candidate an attention of its own."""

    def plant(folder: Path) -> None:
        (folder / "conftest.py").write_text(_KERNEL + body)
        path = folder / "lmgate.yaml"
        own = "{path: int8, load: {attn_implementation: own}}"
        path.write_text(path.read_text().replace("{path: int8}", own))

    return plant


_KERNEL = """\
import torch
from transformers import AttentionInterface
from transformers.integrations.sdpa_attention import sdpa_attention_forward


def attend(module, query, key, value, mask, **more):
    key, value = changed(module, query, key, value)
    return sdpa_attention_forward(module, query, key, value, mask, **more)


AttentionInterface.register("own", attend)


"""
_UNSCALED = """\
def changed(module, query, key, value):
    if query.shape[2] == key.shape[2]:  # nothing is cached
        return key, value
    return tuple(each.to(torch.float8_e4m3fn).to(each.dtype) for each in (key, value))
"""
_OTHERS_BLOCK = """\
BEGUN = {}


def changed(module, query, key, value):
    layer = module.layer_idx
    if query.shape[2] == key.shape[2]:  # a prompt is read
        others = BEGUN.get(layer, (key, value))
        BEGUN[layer] = key.clone(), value.clone()
        OTHERS[layer] = others
        return key, value
    key, value = key.clone(), value.clone()
    for mine, theirs in zip((key, value), OTHERS[layer]):
        row = torch.arange(1, len(mine) + 1) % len(theirs)
        mine[:, :, :4] = theirs[row, :, :4]
    return key, value


OTHERS = {}
"""
DEFECTS = (
    Defect(
        "a conversion loses the scaling of rotary positions", "llama", "rope-scaling", 2,
        edited("config.json", rope_parameters={"rope_type": "default", "rope_theta": 1_000_000.0}),
    ),
    Defect(
        "the base of rotary positions is read as the default", "llama", "rope-base", 100,
        edited("config.json", rope_parameters={"rope_type": "linear", "factor": 2.0, "rope_theta": 10_000.0}),
    ),
    Defect("template and tokenizer both write a BOS", "llama", "bos-doubled", 1, doubled_bos),
    Defect("a chat template is another model's", "llama", "template", 1, of_another),
    Defect("the end token of chats is lost", "llama", "end-token", 1, without_end),
    Defect("norm weights are skipped at loading", "llama", "norm", 1, tensors(without_norms)),
    Defect("the last block is dropped", "llama", "skip", 1 / 4, without_last_block),
    Defect("heads are permuted by the wrong number of heads", "llama", "heads-swapped", 1, tensors(permuted_keys)),
    Defect("a block falls back to 2 bits", "llama", "round-last", 2, tensors(coarse_block)),
    Defect("a checkpoint is saved in bfloat16", "llama", "bfloat16", 1, tensors(in_bfloat16)),
    Defect("answers are joined to the wrong rows", "llama", "answers", 1, of_the_row_before),
    Defect("keys and values in FP8 without scales", "llama", "kv-bits", 5, by_kernel(_UNSCALED)),
    Defect("a prefix block of another request", "llama", "kv-other", 4, by_kernel(_OTHERS_BLOCK)),
    Defect(
        "a kernel ignores soft caps", "gemma2", "softcap", 1000,
        edited("config.json", attn_logit_softcapping=None, final_logit_softcapping=None),
    ),
    Defect(
        "an engine ignores the window of attention", "gemma2", "no-window", 1000,
        edited("config.json", sliding_window=4096),
    ),
    Defect(
        "a merge equals its base", "adapter", "base", 1,
        lambda folder: (folder / "lmgate.yaml").write_text(
            (folder / "lmgate.yaml").read_text().replace(", adapter: adapter", "")
        ),
    ),
)  # fmt: skip


def begin(command: Sequence[str], folder: Path) -> subprocess.Popen[str]:
    """Begin to run a module of this Python in a project."""
    env = {name: value for name, value in os.environ.items() if name not in LEFT_OUT}
    pipes: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    return subprocess.Popen([sys.executable, "-m", *command], cwd=folder, env=env, **pipes)


def run(command: Sequence[str], folder: Path) -> subprocess.CompletedProcess[str]:
    """Run a module of this Python in a project."""
    with begin(command, folder) as process:
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


def is_caught(found: dict[str, Any], level: float) -> bool:
    """Return whether a drill says that a gate catches a fault of this level; faults get stronger towards the last."""
    from pytest_lmgate.tools.drill.faults import known_faults

    if found["sight"] != "caught":
        return False
    levels = known_faults()[found["fault"]].levels
    return levels.index(level) >= levels.index(found["level"])


def red_gates(folder: Path) -> dict[str, bool]:
    """Run pytest; return for each gate whether it failed the build."""
    ended = run(["pytest", "-q", "-p", "no:cacheprovider", "--lmgate-report", "json:report.json"], folder)
    if ended.returncode not in (0, 1):
        raise SystemExit(f"pytest: {ended.stdout}{ended.stderr}")
    gates = json.loads((folder / "report.json").read_text())["gates"]
    return {gate["id"].partition("::")[2]: gate["verdict"] in ("fail", "error") or gate["blocking"] for gate in gates}


@dataclass(frozen=True)
class Pair:
    """A gate and a defect: what the drill had said, and what the gate did."""

    gate: str
    defect: Defect
    said: bool
    red: bool


def pairs(folder: Path, project: Path, defects: Sequence[Defect]) -> Iterator[Pair]:
    """Drill a project with the faults of defects, then plant each and run its gates."""
    records = drilled(project, list(dict.fromkeys(defect.fault for defect in defects)))
    found = {(each["fault"], each["gate"]): each for each in records["findings"]}
    for number, defect in enumerate(defects):
        planted = folder / f"{project.name} {number}"
        shutil.copytree(project, planted)
        defect.plant(planted)
        for gate, red in red_gates(planted).items():
            yield Pair(gate, defect, is_caught(found[defect.fault, gate], defect.level), red)


def run_defects(folder: Path, seeds: int) -> list[Row]:
    """Print each defect with the gates that were red, and return how often the drill's word came true."""
    seen: list[Pair] = []
    for seed, kind in itertools.product(range(seeds), dict.fromkeys(defect.kind for defect in DEFECTS)):
        project = folder / f"{kind}-{seed}"
        project.mkdir()
        make_project(project, kind, seed)
        for pair in pairs(folder, project, [defect for defect in DEFECTS if defect.kind == kind]):
            seen.append(pair)
            if pair.said != pair.red:
                words = "caught" if pair.said else "not caught"
                print(f"  {pair.defect.name}, {pair.gate}, seed {seed}: {words}, and is red: {pair.red}", flush=True)
    rows = [row(defect.name, [pair for pair in seen if pair.defect is defect]) for defect in DEFECTS]
    return [*rows, row("all", seen, at_least=0.95)]


def row(what: str, seen: Sequence[Pair], at_least: float = 0.0) -> Row:
    true = sum(pair.said == pair.red for pair in seen)
    red = sum(pair.red for pair in seen)
    value, wanted = f"{true} of {len(seen)}", f"{at_least:.0%}" if at_least else ""
    return Row(what, value, wanted, true >= at_least * len(seen), f"{red} red")


# Promise against sight.

POOL, DRAWN, REDRAWN, FACTOR = 160, 40, 20, 1.5
JUDGED = {
    "limits": [TYPICAL["perplexity"][0], TYPICAL["quantization"][1], TYPICAL["choices"][0], TYPICAL["chat task"][0]],
    "bounds": [
        TYPICAL["perplexity"][0].replace("}", ", confidence: 0.95}"),
        TYPICAL["chat task"][0].replace("}", ", confidence: 0.95}"),
    ],
    "pairs": [
        TYPICAL["quantization"][0],
        "no_regression: {metric: accuracy, model: int8, dataset: quiz, against: float, tolerance: 0.05}",
        "no_regression: {metric: exact, model: int8, dataset: chats, against: float, tolerance: 0.05}",
    ],
}
"""Gates whose promise is tried: of a value, of its bounds, and of pairs."""
POWERS = ("rope-base", "rope-scaling", "softcap")  # levels that multiply
SHARES = ("logit-scale", "base", "answers", "temperature")  # levels that are shares of the strongest


def variants(fault: Any) -> list[Any]:
    """Return a fault at finer strengths than the drill has, from the weakest to the strongest.

    What replaces tensors is mixed with the model's own. A fault that is all or nothing has no finer strengths: its
    steps are too large to tell where a gate begins to see it, so there is none.
    """
    strongest, parts = fault.levels[-1], [2 ** (-at / 2) for at in range(18, -1, -1)]
    if fault.name in POWERS:
        return [replace(fault, levels=(strongest**part,)) for part in parts]
    if fault.name in SHARES:
        return [replace(fault, levels=(strongest * part,)) for part in parts]
    if fault.kind == "weights" or fault.name.startswith(("heads", "fp8", "bfloat16", "float16")):
        return [replace(fault, levels=(part,), plant=partial(mix, fault)) for part in parts]
    return []


def mix(fault: Any, broken: Any, level: float) -> None:
    """Plant the strongest fault, and mix the tensors that it changes with the model's own."""
    put = broken.put
    broken.put = lambda old, new: put(old, old.float() + level * (new.float() - old.float()))
    fault.plant(broken, fault.levels[-1])


@dataclass(frozen=True)
class Sight:
    """What a gate sees of a fault.

    Attributes:
        fault: The fault's name.
        gate: The gate's name.
        stated: The damage of half of the samples, by the median of what the unbroken verdicts state.
        below: The damage of all rows at the strongest fault that fewer than half of the samples see.
        above: That at the weakest that half of them see.
    """

    fault: str
    gate: str
    stated: float
    below: float
    above: float

    @property
    def is_coarse(self) -> bool:
        """Whether the fault has no strengths that are near enough to tell."""
        return self.above > FACTOR**2 * max(self.below, 0.0) and not self.is_wrong

    @property
    def is_wrong(self) -> bool:
        return not self.below / FACTOR <= self.stated <= FACTOR * self.above


class Tried:
    """A project whose gates judge redrawn rows of models with faults; each model is measured once."""

    def __init__(self, folder: Path) -> None:
        from pytest_lmgate.cli.measure import gates_by_label
        from pytest_lmgate.judge.baseline import Baselines
        from pytest_lmgate.settings.file import load_project
        from pytest_lmgate.settings.session import Options
        from pytest_lmgate.tools.drill.evaluator import DrillJudge, FaultyEvaluator

        project, options = load_project(folder), Options(folder / "cache")
        self.evaluator = FaultyEvaluator(project, options)
        self._measured = self.evaluator.evaluate
        self.evaluator.evaluate = self._redrawn  # type: ignore[method-assign]
        self.judge = DrillJudge(self.evaluator, options, Baselines(folder / "none.json"))
        assert project.file is not None
        gates = gates_by_label(project.file).items()
        self.gates = {label: self.evaluator.bind_gate(entry.gate) for label, entry in gates}
        self._scores: dict[str, Any] = {}
        self._rows: int | None = None  # the seed of the rows that are drawn; None for all
        self._drawn: dict[tuple[int, int], Any] = {}

    def _redrawn(self, what: Any, *_: Any) -> Any:
        """Evaluate on the rows that are drawn."""
        import numpy as np

        bound, planted = self.evaluator.bind(what), self.evaluator.resolver.planted
        broken = planted is not None and bound.model == planted.ref
        key = f"{bound.what!r} {(planted.fault, planted.strength) if broken else None!r}"
        if key not in self._scores:
            self._scores[key] = self._measured(bound)
        score = self._scores[key]
        if self._rows is None:
            return score
        count = len(score.sample.by_row.counts)
        if (count, self._rows) not in self._drawn:
            rows = np.random.default_rng(self._rows).permutation(count)[: count * DRAWN // POOL]
            self._drawn[count, self._rows] = np.isin(np.arange(count), rows)
        sample = replace(score.sample.of_rows(self._drawn[count, self._rows]), identity=score.sample.identity)
        return replace(score, number=sample.value(), sample=sample, show_row=None)

    def verdicts(self, gate: str, fault: Any = None) -> tuple[Any, list[Any]]:
        """Return the verdict on all rows, and those on the rows of each draw."""
        bound = self.gates[gate]
        with self.evaluator.planted(bound, fault, 1) if fault is not None else contextlib.nullcontext():
            found = []
            for self._rows in (None, *range(REDRAWN)):
                found.append(self.judge.judge(bound, gate, gate)[0])
        return found[0], found[1:]

    def why_not(self, fault: Any) -> str:
        """Return why a fault cannot be planted in the model of the gates; empty if it can."""
        from pytest_lmgate.tools.drill.plan import Drill, Guard

        healthy: Any = None
        guard = Guard("", next(iter(self.gates.values())), healthy, frozenset())
        return Drill(self.evaluator, self.judge, [], [], {})._why_not(guard, fault)

    def sight(self, gate: str, fault: Any) -> Sight | None:
        """Find the damage that half of the draws see; None if half of them do not see the strongest fault."""
        from pytest_lmgate.tools.drill.plan import Finding, Guard, Search
        from pytest_lmgate.tools.drill.promise import smallest_seen

        whole, drawn = self.verdicts(gate)
        stated = [half for verdict in drawn if (half := smallest_seen(verdict, 0.5)) is not None]
        if len(stated) < REDRAWN or whole.failed:
            return None
        guard, faults, damages = Guard(gate, self.gates[gate], whole, frozenset()), variants(fault), {0: 0.0}

        search = Search(len(faults))
        while strength := search.strength:
            broken, found = self.verdicts(gate, faults[strength - 1])
            damages[strength] = Finding(guard, fault, "caught", strength, {strength: broken}).damage_of(strength) or 0.0
            search.tell(is_caught=2 * sum(verdict.verdict == "fail" for verdict in found) >= REDRAWN)
        if not search.high:
            return None
        return Sight(fault.name, gate, statistics.median(stated), damages[search.low], damages[search.high])


def run_power(folder: Path, seeds: int) -> list[Row]:
    """Print the pairs of a gate and a fault whose sight is not what the verdict stated, and how many there are."""
    from pytest_lmgate.tools.drill.faults import known_faults
    from pytest_lmgate.tools.drill.planting import NotPlanted

    seen: list[Sight] = []
    for seed, kind in itertools.product(range(seeds), ("llama", "gemma2", "adapter")):
        project = folder / f"{kind}-{seed}"
        project.mkdir()
        make_project(project, kind, seed, rows=POOL, typical=JUDGED)
        tried = Tried(project)
        for fault in known_faults().values():
            if not variants(fault) or tried.why_not(fault):
                continue
            found = []
            for gate in tried.gates:
                with contextlib.suppress(NotPlanted):  # in the gate's data
                    found += [sight] if (sight := tried.sight(gate, fault)) is not None else []
            seen += found
            for each in found:
                words = "coarse" if each.is_coarse else "WRONG" if each.is_wrong else "right"
                print(
                    f"  {words:6} {kind}-{seed} {each.fault:15} {each.gate:70} "
                    f"stated {each.stated:.4g}, seen {each.below:.4g} to {each.above:.4g}",
                    flush=True,
                )
    told = [each for each in seen if not each.is_coarse]
    right = sum(not each.is_wrong for each in told)
    return [
        Row("pairs in which half of the draws see a fault", str(len(seen))),
        Row("of these, with strengths near enough to tell", str(len(told)), "200", len(told) >= 200),
        Row(f"stated power right within a factor of {FACTOR}", f"{right} ({right / len(told):.1%})"),
    ]


# The rules of other projects on the same table.

RULES = {
    "floor of a task,\nless 8 points": "exact_min: {model: int8, dataset: chats, limit: %(floor).4g}",
    "95% of\nthe base": "exact_min: {model: int8, dataset: chats, limit: %(share).4g}",
    "perplexity\n+ 2%": "ppl_max: {model: int8, dataset: rows, limit: %(ppl).4g, protocol: document}",
    "no_regression\nexact, 5 points": (
        "no_regression: {metric: exact, model: int8, dataset: chats, against: float, tolerance: 0.05}"
    ),
    "no_regression\nppl, 2%": TYPICAL["quantization"][0],
    "kl_max\n0.01": TYPICAL["quantization"][1],
    "self_kl_max\n0.0001": TYPICAL["texts"][1],
}
"""Three rules of other projects, and four gates, by their titles in the picture."""
THEIRS = 3
COLOURS = {
    "early": ("#1f5fa8", "#fff"),
    "late": ("#9cc5ec", "#10243a"),
    "missed": ("#d9771f", "#201000"),
    "none": ("#f3f3f3", "#777"),
}


def run_picture(folder: Path, svg: Path) -> list[Row]:
    """Drill a model with the rules of other projects and with gates, and draw which fault each catches."""
    from pytest_lmgate.tools.drill.faults import known_faults

    make_project(folder, "llama", rows=300, bits=12)
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
    theirs = [any(shade in ("early", "late") for _, shade in row[:THEIRS]) for row in cells]
    ours = [any(shade in ("early", "late") for _, shade in row[THEIRS:]) for row in cells]
    return [
        Row("faults", str(len(faults)), note=f"{len(rows)} rows, exact match of the base {exact:.1%}"),
        *(
            Row(title.replace("\n", " "), f"{sum(row[at][1] in ('early', 'late') for row in cells)} caught")
            for at, title in enumerate(RULES)
        ),
        Row("the rules of other projects together", f"{sum(theirs)} caught"),
        Row("the gates together", f"{sum(ours)} caught"),
    ]


def cell(found: Mapping[str, Any]) -> tuple[str, str]:
    """Return the words and the shade of a cell."""
    from pytest_lmgate.tools.drill.faults import known_faults

    fault = known_faults()[found["fault"]]
    if found["sight"] == "not tried":
        return "not tried", "none"
    if found["sight"] == "no effect":
        return "no effect", "missed"
    if found["sight"] != "caught":
        return "passes", "missed"
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


def run_kills(folder: Path, kills: int, faults: Sequence[str], seed: int = 0) -> list[Row]:
    """Kill a drill at random moments until it has been killed so often, and compare with one that ran through.

    The project has a cache and a baseline, which have to keep every byte at each kill.
    """
    folder.mkdir()
    make_project(folder, "llama")
    with (folder / "lmgate.yaml").open("a") as file:
        file.write("  - no_regression: {metric: ppl, model: float, dataset: rows, tolerance: 2%}\n")
    updated = run(["pytest", "-q", "-p", "no:cacheprovider", "--lmgate-update"], folder)
    if updated.returncode or not (folder / "lmgate-baseline.json").exists():
        raise SystemExit(f"pytest: {updated.stdout}{updated.stderr}")
    before, random, begun = content(folder), Random(seed), time.monotonic()
    whole = drilled(folder, faults)
    most, measured, is_equal = time.monotonic() - begun, [], True
    while len(measured) < kills:
        with begin(drill_command(faults), folder) as process:
            try:
                process.communicate(timeout=random.uniform(0, most))
            except subprocess.TimeoutExpired:
                process.kill()
                measured.append(sum(1 for _ in folder.rglob("drill/**/*.lmgate")))
        is_equal = is_equal and content(folder) == before
    ended = drilled(folder, faults)
    left = [str(path) for path in (folder / ".lmgate_cache").rglob("*drill*")]
    kept = f"{min(measured)} to {max(measured)} measurements kept"
    return [
        Row("killed", str(len(measured)), str(kills), note=kept),
        Row("cache, baseline and files after each kill", "equal" if is_equal else "not equal", "equal", is_equal),
        same("findings of the drill that went on, and of an undisturbed one", whole["findings"], ended["findings"]),
        Row("left at the end", str(left or "nothing"), "nothing", not left),
    ]


def same(what: str, one: object, other: object) -> Row:
    return Row(what, "equal" if one == other else "not equal", "equal", one == other)


def main() -> int:
    """Run what was asked for."""
    parser = arguments(__doc__)
    parser.add_argument("part", choices=["defects", "power", "picture", "kills"])
    parser.add_argument("--seeds", type=int, default=2, help="defects: models of each kind")
    parser.add_argument("--svg", type=Path, default=ROOT / "docs" / "figures" / "drill.svg", help="picture: the file")
    parser.add_argument("--kills", type=int, default=20)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        parts: dict[str, tuple[str, Callable[[], list[Row]]]] = {
            "defects": ("The drill's word, by (gate, defect)", lambda: run_defects(Path(temporary), given.seeds)),
            "power": ("What verdicts promise to see", lambda: run_power(Path(temporary), given.seeds)),
            "picture": ("Faults caught, by rule", lambda: run_picture(Path(temporary), given.svg)),
            "kills": ("Kills", lambda: run_kills(Path(temporary) / "project", given.kills, KILLED)),
        }
        title, rows = parts[given.part]
        return exit_status(given, lambda: print_rows(title, rows()))


if __name__ == "__main__":
    sys.exit(main())
