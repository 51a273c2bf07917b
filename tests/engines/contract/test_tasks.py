"""Tasks of lm-evaluation-harness, imported: every engine has the harness's numbers of the same weights.

The harness runs the same float32 weights by transformers, in the engine's own environment, so that a difference is the
engine's. The model has learned how the tasks' documents look, and writes another text for each, with an answer in most.
"""

import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from pytest_lmgate.errors import EngineError
from pytest_lmgate.measure.evaluator import Evaluator
from pytest_lmgate.settings.file import parse_project
from pytest_lmgate.settings.session import Options
from tests.engines.contract.bench import Bench
from tests.engines.projects import CONTEXT, trained_tokenizer
from tests.models.tiny import made_once, tiny_llama
from tests.tools.tasks.comparing import TEMPLATE, compare, run_harness
from tests.tools.tasks.documents import documents
from tests.tools.tasks.harness_run import WAYS

Case = tuple[str, str]  # a way of asking, see `WAYS`, and a task
ROLLING = ("plain", "paloma_c4_en")  # words, bytes, and bits per byte
CASES: list[Case] = [
    ("shots", "hellaswag"),  # acc and acc_norm
    ("plain", "winogrande"),  # a question for each choice, with one continuation for all
    ("chat", "arc_easy"),
    ("shots", "gsm8k"),  # texts, with two extractions each
    ("chat", "gsm8k"),
    ("plain", "lambada_openai"),  # a perplexity, and the share of targets that greedy decoding writes
    ROLLING,
]
# Float32 sums in another order: likelihoods differ by 2.6e-6 at most on llama.cpp, 1.6e-6 on ONNX, 1.3e-6 on vLLM.
_REL = 1e-5
_DOCUMENTS, _SHOWN, _STEPS, _ROWS, _LENGTH = 16, 24, 200, 8, 64


def _write_model(folder: Path) -> None:
    """Write a Llama that has read some sums, as a text and as a chat, and its tokenizer."""
    import torch

    sums = documents("gsm8k", _SHOWN, 9)
    shown = ("Question: {question}\nAnswer: {answer}", "user: Question: {question}\nAnswer:\nassistant: {answer}")
    texts = [template.format(**each) for template in shown for each in sums]
    texts += [each["text"] for each in documents("paloma_c4_en", _SHOWN, 9)]
    tokenizer = trained_tokenizer(texts=texts * 5)
    tokenizer.chat_template = "{{ bos_token }}" + TEMPLATE  # the harness would add one that a template leaves out
    torch.manual_seed(0)
    # Weights that begin large keep their own mind: after this, no two prompts have the same text.
    sizes = {"hidden_size": 64, "num_key_value_heads": 1, "intermediate_size": 128, "initializer_range": 0.1}
    special = {f"{each}_token_id": getattr(tokenizer, f"{each}_token_id") for each in ("bos", "eos", "pad")}
    model = tiny_llama(len(tokenizer), **sizes, **special, max_position_embeddings=CONTEXT)
    ids = torch.tensor([id_ for text in texts for id_ in tokenizer(f"{text}\n\n", add_special_tokens=False).input_ids])
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    for _ in range(_STEPS):
        begins = torch.randint(0, len(ids) - _LENGTH, (_ROWS, 1))
        rows = ids[begins + torch.arange(_LENGTH)]
        model(input_ids=rows, labels=rows).loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)


@pytest.fixture(scope="module")
def require_same(bench: Bench, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[Case], None]]:
    """Requires of what ``lmgate import`` wrote the harness's numbers, none trivial, and its rows; see `compare`."""
    import transformers

    base = tmp_path_factory.getbasetemp()
    model = made_once(base, "reader", _write_model)
    asked: dict[str, Any] = {way: [task for each, task in CASES if each == way] for way in WAYS}
    asked |= {"groups": {}, "documents": _DOCUMENTS}
    folder = made_once(base, "harness", lambda folder: run_harness(folder, model, asked, sys.executable))
    theirs = json.loads((folder / "found.json").read_text())
    loaded = (kind.from_pretrained(model) for kind in (transformers.AutoModelForCausalLM, transformers.AutoTokenizer))
    entry, evaluators = bench.entry_of("reader", *loaded), dict[Case, Evaluator]()
    for way, task in CASES:
        file = folder / way / task / "lmgate.yaml"
        written = yaml.safe_load(file.read_text())
        project = parse_project(yaml.safe_dump({**written, "models": {"m": dict(entry)}}), file)
        first = next(iter(evaluators.values()), None)  # the others use its model
        evaluator = first.for_project(project) if first else Evaluator(project, Options(cache=folder / "measured"))
        evaluators[way, task] = evaluator

    def require(case: Case) -> None:
        way, task = case
        values = compare(evaluators[case], theirs[way][task], task, model="m", rel=_REL)
        assert all(values), case
        assert task != "gsm8k" or min(values) < 1, case

    yield require
    evaluators[CASES[0]].measurements._pool.drop("")  # the model may be a process


@pytest.mark.needs("tasks")
@pytest.mark.parametrize("case", CASES, ids="-".join)
def test_a_gate_on_an_imported_task_has_the_numbers_of_the_harness(
    bench: Bench, require_same: Callable[[Case], None], case: Case
) -> None:
    if case == ROLLING and "bos" in bench.engine.lacks:  # its protocol scores the token after a BOS
        with pytest.raises(EngineError, match="the first token after a BOS"):
            require_same(case)
    else:
        require_same(case)
