"""Protocol lm-eval against lm-evaluation-harness 0.4.13 itself: its tokens and its rolling log-likelihoods."""

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pytest_lmgate.data.corpus import Corpus
from pytest_lmgate.engines.checkpoints import open_checkpoint
from pytest_lmgate.engines.transformers.loading import load_checkpoint, tokenizer_facts
from pytest_lmgate.settings.requests import Protocol
from pytest_lmgate.windows.protocols import plan_windows, tokenize
from tests.end_to_end.projects import environment as plain_environment
from tests.engines.transformers.measuring import measure_nll
from tests.models.encoders import framed_tokenizer
from tests.models.zoo import CONTEXT, build, words
from tests.warm import warm_python

TEMPLATES = {"neither": "$A", "bos": "<s> $A", "eos": "$A </s>", "both": "<s> $A </s>"}
OPTIONS = (None, True, False)
WORDS = words(80)
# Short; opened by either special token; longer than the context, and longer than it with the special tokens only.
TEXTS = (
    "w1 w2 w3",
    "<s> w4 w5 w6",
    "</s> w7 w8",
    " ".join(WORDS * 2),
    " ".join(WORDS[: CONTEXT - 1]),
    " ".join(WORDS[:CONTEXT]),
)
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
    cache = tmp_path_factory.mktemp("cache")
    environment = os.environ | {"HF_HOME": str(cache), "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [warm_python(plain_environment(), "torch"), "-c", _RUN, json.dumps(TEXTS), *map(str, folders.values())],
        capture_output=True, text=True, env=environment, check=False,
    )  # fmt: skip
    (line,) = [line for line in done.stdout.splitlines() if line.startswith("found:")] or [done.stderr]
    found: dict[str, Any] = json.loads(line.removeprefix("found:"))
    return found


@pytest.mark.parametrize("option", OPTIONS)
@pytest.mark.parametrize("name", [*TEMPLATES, "no bos"])
def test_tokens_and_rolling_log_likelihoods_are_the_harnesss(
    name: str, option: bool | None, folders: dict[str, Path], theirs: dict[str, Any]
) -> None:
    folder = folders[name]
    loaded = load_checkpoint(
        open_checkpoint(folder, name="m"), tokenizer_folder=folder, adapter_folder=None, load={}, dtype="float32",
        device="cpu", trust_remote_code=False, pickle_weights=False,
    )  # fmt: skip
    windowing = Protocol("lm-eval", add_bos_token=option).windowing(CONTEXT, model="m")

    streams = tokenize(Corpus("t", TEXTS), windowing, tokenizer_facts(loaded.tokenizer), model="m")
    plan = plan_windows(windowing, streams.lengths)
    nll = measure_nll(loaded, streams, plan, dataset="t").astype(np.float64)

    expected = theirs[f"{folder} {option}"]
    assert [ids.tolist() for ids in streams.ids] == expected["tokens"]
    by_text = np.bincount(np.repeat(plan.document, plan.targets), weights=nll)
    np.testing.assert_allclose(-by_text, expected["log_likelihood"], rtol=1e-5)
