"""Models that write what one can say by hand, and a project that names them.

The words stand in chains. `counter` is a Llama that writes whichever word is next in its chain until the chain ends:
"three" is continued by "four five six seven". `backward` writes the one before, `silent` nothing at all. Each is as
sure as float32 lets it be, so that `counter` is never wrong about which of two words is next; to `even` all words are
equally likely, so that every choice of one word is a tie. `translator` is an encoder-decoder (T5) that writes the
chain of numbers for any prompt. To `masked`, a BERT, all words are equally likely: its pseudo-perplexity is the size
of its vocabulary, MASKED_WORDS.
"""

import itertools
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tests.end_to_end.projects import Project
from tests.models.tiny import made_once, tiny_llama, word_level

CHAINS = (
    ("one", "two", "three", "four", "five", "six", "seven"),
    ("류현진이", "공을", "힘껏", "던졌다."),
    ("今天", "天气", "很", "好"),
)
OTHERS = ("thirteen", "naïve")
CONTEXT = 160
MASKED_WORDS = 40

ROWS = [
    {"start": chain[at], "rest": " ".join(chain[at + 1 :]), "group": f"chain {number}"}
    for number, chain in enumerate(CHAINS)
    for at in range(3)
]
"""Rows that `counter` continues without a fault: 3 of each chain."""

YAML = """
    models:
      counter: {{path: {models}/counter}}
      backward: {{path: {models}/backward}}
      silent: {{path: {models}/silent}}
      even: {{path: {models}/even}}
      translator: {{path: {models}/translator}}
      masked: {{path: {models}/masked}}
    datasets:
      chains: {{path: chains.jsonl, prompt: "{{start}}", references: rest}}
"""


def written(model: str, prompt: str, tokens: int = 128) -> str:
    """Say what `counter`, `backward` or `silent` writes, by hand."""
    chain = next(chain for chain in CHAINS if prompt.split()[-1] in chain)
    at = chain.index(prompt.split()[-1])
    words = {"counter": chain[at + 1 :], "backward": chain[:at][::-1], "silent": []}[model]
    return " ".join(words[:tokens])


def models_that_write(base: Path) -> Path:
    """Return the folder of the models, which are made once under the test session's own folder."""
    return made_once(base, "writers", _make)


def writing_project(folder: Path, base: Path, *, with_models: bool = True) -> Project:
    """Make a project that names the models."""
    models = models_that_write(base) if with_models else base / "writers"
    project = Project(folder).write(pytest_ini="[pytest]\n", lmgate_yaml=YAML.format(models=models))
    write_rows(project, "chains", ROWS)
    return project


def write_rows(project: Project, name: str, rows: Sequence[object]) -> None:
    """Write a ``.jsonl`` file."""
    lines = [json.dumps(row, ensure_ascii=False) + "\n" for row in rows]
    (project.folder / f"{name}.jsonl").write_text("".join(lines), encoding="utf-8")


def _make(folder: Path) -> None:
    import transformers

    transformers.utils.logging.disable_progress_bar()
    words = ["<unk>", "<s>", "</s>", *OTHERS, *(word for chain in CHAINS for word in chain)]
    ids = {word: index for index, word in enumerate(words)}
    ends = dict.fromkeys(words, "</s>")
    after = ends | {word: then for chain in CHAINS for word, then in itertools.pairwise(chain)}
    before = ends | {then: word for word, then in after.items() if then != "</s>"}
    for name, successors in {"counter": after, "backward": before, "silent": ends, "even": None}.items():
        make_writer(folder / name, words, successors)
    translator = _t5(len(words))
    # Its head is its embedding. A decoder's first token is padding, which is id 0.
    _teach(translator.decoder.block[0].layer[2].DenseReluDense.wo, ids, after | {"<unk>": "one"})
    translator.save_pretrained(folder / "translator")
    _tokenizer(words, pad_token="<unk>").save_pretrained(folder / "translator")
    _masked(folder / "masked")


def make_writer(
    folder: Path, words: Sequence[str], successors: Mapping[str, str] | None, sure: float = 10.0, context: int = CONTEXT
) -> None:
    """Save a Llama that writes the successor of each word, and so on; to None all are equally likely."""
    size = -(-len(words) // 32) * 32
    model = tiny_llama(len(words), hidden_size=size, intermediate_size=8, max_position_embeddings=context)
    layer = model.model.layers[0]
    _pass_on(model.model.embed_tokens, [layer.self_attn.o_proj, layer.mlp.down_proj])
    _teach(model.lm_head, {word: index for index, word in enumerate(words)}, successors, sure)
    model.save_pretrained(folder)
    _tokenizer(words).save_pretrained(folder)


def _teach(layer: Any, ids: Mapping[str, int], successors: Mapping[str, str] | None, sure: float = 10.0) -> None:
    """Make a layer that goes from a word, one-hot, to its successor; to nothing where there are none."""
    import torch

    with torch.no_grad():
        layer.weight.zero_()
        for word, then in (successors or {}).items():
            layer.weight[ids[then], ids[word]] = sure


def _t5(words: int) -> Any:
    import transformers

    size = {"vocab_size": words, "d_model": 32, "d_kv": 8, "d_ff": 32, "num_layers": 1, "num_heads": 2}
    config = transformers.T5Config(**size, decoder_start_token_id=0, pad_token_id=0, eos_token_id=2)
    model = transformers.T5ForConditionalGeneration(config).eval()
    own, cross, feed = model.decoder.block[0].layer
    _pass_on(model.shared, [own.SelfAttention.o, cross.EncDecAttention.o])
    _pass_on(feed.DenseReluDense.wi, [])
    return model


def _pass_on(embedding: Any, writers: Sequence[Any]) -> None:
    """Embed each word as itself, one-hot, and let none of the layers that write add to it."""
    import torch

    with torch.no_grad():
        embedding.weight.copy_(torch.eye(*embedding.weight.shape))
        for writer in writers:
            writer.weight.zero_()


def _masked(folder: Path) -> None:
    import torch
    import transformers

    words = ["[UNK]", "[CLS]", "[SEP]", "[MASK]", "[PAD]", *(f"w{index}" for index in range(MASKED_WORDS - 5))]
    size = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
    known = {"vocab_size": MASKED_WORDS, "max_position_embeddings": CONTEXT, "pad_token_id": 4}
    config = transformers.BertConfig(**size, **known, tie_word_embeddings=False)
    model = transformers.BertForMaskedLM(config).eval()
    with torch.no_grad():
        model.cls.predictions.decoder.weight.zero_()
        model.cls.predictions.decoder.bias.zero_()
    model.save_pretrained(folder)
    special = {"unk_token": "[UNK]", "cls_token": "[CLS]", "sep_token": "[SEP]", "mask_token": "[MASK]"}
    frame = {"template": "[CLS] $A [SEP]", "framed_by": {"[CLS]": 1, "[SEP]": 2}}
    word_level(words, **frame, **special, pad_token="[PAD]").save_pretrained(folder)


def _tokenizer(words: Sequence[str], **special: str) -> Any:
    return word_level(words, unk_token="<unk>", bos_token="<s>", eos_token="</s>", **special)
