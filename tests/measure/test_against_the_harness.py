"""Protocol lm-eval against lm-evaluation-harness 0.4.13 itself: its tokens and its rolling log-likelihoods."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pytest_lmgate.data.corpus import Corpus
from pytest_lmgate.engines.tokenizers import tokenizer_facts
from pytest_lmgate.settings.gate_options import WindowProtocol
from pytest_lmgate.windows.protocols import plan_windows, tokenize
from tests.engines.transformers.measuring import load, measure_nll
from tests.measure.entries import by_the_harness
from tests.models.encoders import framed_tokenizer
from tests.models.zoo import CONTEXT, build, words

TEMPLATES = {"neither": "$A", "bos": "<s> $A", "eos": "$A </s>", "both": "<s> $A </s>"}
OPTIONS = (None, True, False)
WORDS = words(80)
# Short; opened by either special token; longer than the context, and longer than it with the special tokens only.
LONG = (" ".join(words) for words in (WORDS * 2, WORDS[: CONTEXT - 1], WORDS[:CONTEXT]))
TEXTS = ("w1 w2 w3", "<s> w4 w5 w6", "</s> w7 w8", *LONG)
_RUN = """
import json, sys

import torch
from lm_eval.api.instance import Instance
from lm_eval.models.huggingface import HFLM

torch.set_num_threads(1)
texts, folders = json.loads(sys.argv[1]), sys.argv[2:]
found = {}
for folder in folders:
    for option in (None, True, False):
        model = HFLM(pretrained=folder, add_bos_token=option, dtype="float32", device="cpu", batch_size=1)
        requests = [Instance("loglikelihood_rolling", {}, (text,), number) for number, text in enumerate(texts)]
        found[f"{folder} {option}"] = {
            "tokens": [model.tok_encode(text) for text in texts],
            "log_likelihood": model.loglikelihood_rolling(requests, disable_tqdm=True),
        }
print("found:" + json.dumps(found))
"""


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Checkpoints of one model with tokenizers that add no special token, a BOS, an EOS, both, or know no BOS."""
    made = {}
    model = build("llama")
    for name in [*TEMPLATES, "no bos"]:
        folder = made[name] = tmp_path_factory.mktemp("harness") / name.replace(" ", "-")
        model.save_pretrained(folder)
        framed_tokenizer(TEMPLATES.get(name, "$A </s>")).save_pretrained(folder)
        if name == "no bos":
            file = folder / "tokenizer_config.json"
            config = json.loads(file.read_text())
            del config["bos_token"]
            file.write_text(json.dumps(config))
    return made


@pytest.fixture(scope="module")
def theirs(folders: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What the harness finds, by folder and option."""
    return by_the_harness(_RUN, tmp_path_factory.mktemp("cache"), json.dumps(TEXTS), *map(str, folders.values()))


@pytest.mark.parametrize("option", OPTIONS)
@pytest.mark.parametrize("name", [*TEMPLATES, "no bos"])
def test_tokens_and_rolling_log_likelihoods_are_the_harnesss(
    name: str, option: bool | None, folders: dict[str, Path], theirs: dict[str, Any]
) -> None:
    folder = folders[name]
    loaded = load(folder, dtype="float32")
    windowing = WindowProtocol("lm-eval", add_bos_token=option).windowing(CONTEXT, model="m")
    streams = tokenize(Corpus("t", TEXTS), windowing, tokenizer_facts(loaded.tokenizer), model="m")
    plan = plan_windows(windowing, streams.lengths)
    nll = measure_nll(loaded, streams, plan, dataset="t").astype(np.float64)
    expected = theirs[f"{folder} {option}"]
    assert [ids.tolist() for ids in streams.ids] == expected["tokens"]
    by_text = np.bincount(np.repeat(plan.document, plan.targets), weights=nll)
    np.testing.assert_allclose(-by_text, expected["log_likelihood"], rtol=1e-5)
