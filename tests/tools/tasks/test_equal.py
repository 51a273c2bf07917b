"""``lmgate import``: gates on what it writes measure what lm-evaluation-harness measures, for a task of each kind."""

import importlib.util
import json
import string
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pytest_lmgate.measure.evaluator import Evaluator
from pytest_lmgate.settings.file import load_project
from pytest_lmgate.settings.session import Options
from tests.end_to_end.projects import environment
from tests.models.tiny import made_once, tiny_llama, word_level
from tests.tools.tasks.comparing import TEMPLATE, compare, run_harness
from tests.tools.tasks.documents import NEEDS, TASKS
from tests.warm import warm_python

SUBJECTS = ["mmlu_anatomy", "mmlu_astronomy", "mmlu_virology"]
GROUPS: dict[str, Any] = {
    "by_code": {
        "task": ["hendrycks_math_algebra", "hendrycks_math_geometry"],
        "aggregate_metric_list": [{"metric": "exact_match", "weight_by_size": True}],
    },
    "by_size": {"task": SUBJECTS, "aggregate_metric_list": [{"metric": "acc", "weight_by_size": True}]},
    "by_task": {
        "task": [*SUBJECTS[:1], {"group": "others", "task": SUBJECTS[1:]}],
        "aggregate_metric_list": [{"metric": "acc", "weight_by_size": False}],
    },
}
SHOTS = ["hellaswag", "arc_easy", "winogrande", "lambada_openai", "gsm8k", "mmlu_pro_biology", "by_size"]
CHAT = ["arc_easy", "gsm8k", "wmt16-en-de", "asdiv"]
ASKED = {"plain": [*TASKS, *GROUPS], "shots": SHOTS, "chat": CHAT}


def make(folder: Path) -> None:
    """Save a model whose tokens are characters, with weights so large that it answers what no other would."""
    import tokenizers
    import torch

    torch.manual_seed(0)
    letters = ["<s>", *string.printable[:95], "\n"]
    sizes = {"hidden_size": 16, "intermediate_size": 16, "max_position_embeddings": 4096}
    # The harness stops at the tokenizer's end, but keeps what a batch wrote behind it where the model goes on.
    sizes |= {"bos_token_id": 0, "eos_token_id": 0}
    tiny_llama(len(letters), **sizes, initializer_range=0.6).save_pretrained(folder)
    tokenizer = word_level(letters, letters=True, bos_token="<s>", eos_token="<s>", unk_token="<s>")
    tokenizer.chat_template = TEMPLATE
    tokenizer.backend_tokenizer.decoder = tokenizers.decoders.Fuse()  # no space between characters
    tokenizer.save_pretrained(folder)


@pytest.fixture(scope="module")
def ran(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder of what the harness found, and of the projects that ``lmgate import`` wrote: all of it in one process."""
    base = tmp_path_factory.getbasetemp()
    model = made_once(base, "answering", make)
    plain = [task for task in ASKED["plain"] if not lacking(task)]
    asked = {"groups": GROUPS, **ASKED, "plain": plain, "documents": 6}
    python = warm_python(environment(), "torch")
    return made_once(base, "tasks", lambda folder: run_harness(folder, model, asked, python))


@pytest.fixture(scope="module")
def evaluator_of(ran: Path) -> Callable[[str, str], Evaluator]:
    """What measures a task that was imported in some way: it loads the model and looks at the session's code once."""
    session = Evaluator(load_project(ran / "plain" / CHAT[0]), Options(cache=ran / "cache"))
    session.forget(share=True)
    return lambda way, task: session.for_project(load_project(ran / way / task))


@pytest.fixture(scope="module")
def found(ran: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((ran / "found.json").read_text())
    return found


@pytest.mark.parametrize(("way", "task"), [(way, task) for way, tasks in ASKED.items() for task in tasks])
def test_a_gate_measures_what_the_harness_does(
    evaluator_of: Callable[[str, str], Evaluator], found: dict[str, Any], way: str, task: str
):
    if libraries := lacking(task):
        pytest.skip(f"{task} was NOT compared with the harness: its scoring code needs {', '.join(libraries)}")
    theirs = found[way][task]
    if task in NEEDS:  # no text is changed so that it is right
        assert len({row["prompt_level_loose_acc"] for row in theirs["rows"]}) == 2
    compare(evaluator_of(way, task), theirs, task, model="tiny", rel=1e-6)


def lacking(task: str) -> list[str]:
    return [library for library in NEEDS.get(task, ()) if importlib.util.find_spec(library) is None]
