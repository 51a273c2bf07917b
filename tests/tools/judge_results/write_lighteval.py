"""Lets lighteval write details of a small model and of a damaged copy: ``python write_lighteval.py FOLDER MODELS``.

MODELS holds both, in ``old`` and ``new``, as `write_lm_eval` makes them. It needs lighteval alone, in an environment of
its own; lighteval imports this file for its tasks. Whatever the task, it asks the hub for a judge and for a file of
weights when it starts: `_CALL` answers the one, an empty ``tasks/tasks/tinyBenchmarks.pkl`` in its folder the other.
The files in ``data/lighteval`` were written so by lighteval 0.13.0.
"""

import json
import os
import random
import subprocess
import sys
from pathlib import Path

from lighteval.metrics.metrics import Metrics
from lighteval.tasks.lighteval_task import LightevalTaskConfig
from lighteval.tasks.requests import Doc

ROWS = 8
_CALL = (
    "import huggingface_hub; huggingface_hub.HfApi.list_models = lambda *_, **__: ['any']; "
    "from lighteval.__main__ import app; app()"
)
_DATA = os.environ.get("TINY_DATA", "tiny_data")


def choice(line: dict, task_name: str = "") -> Doc:
    return Doc(task_name=task_name, query=f"Question: {line['question']}\nAnswer:", choices=line["choices"],
               gold_index=line["gold"], specific={"subject": line["subject"]})  # fmt: skip


def text(line: dict, task_name: str = "") -> Doc:
    return Doc(task_name=task_name, query=f"Question: {line['question']}\nAnswer:", choices=[line["choices"][0]],
               gold_index=0)  # fmt: skip


_COMMON = {"hf_repo": _DATA, "hf_subset": "default", "hf_avail_splits": ["test"], "evaluation_splits": ["test"],
           "few_shots_split": "test", "version": 1}  # fmt: skip
TASKS_TABLE = [
    LightevalTaskConfig(name="tiny_choice", prompt_function=choice, metrics=[Metrics.loglikelihood_acc], **_COMMON),
    LightevalTaskConfig(name="tiny_text", prompt_function=text, metrics=[Metrics.exact_match], generation_size=8,
                        stop_sequence=["\n"], **_COMMON),
]  # fmt: skip


def main() -> None:
    folder, models = Path(sys.argv[1]), Path(sys.argv[2])
    words = ["cat", "sat", "mat", "dog", "ran", "log", "red", "barn"]
    drawn = random.Random(0)
    rows = [
        {"question": " ".join(drawn.choices(words, k=5)), "choices": drawn.sample(words, 4), "gold": at % 4,
         "subject": "pets" if at % 2 else "farms"}
        for at in range(ROWS)
    ]  # fmt: skip
    data = folder / "tiny_data"
    data.mkdir(parents=True)
    (data / "test.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    variables = os.environ | {"TINY_DATA": str(data), "HF_HUB_OFFLINE": "1", "HF_HOME": str(folder / "cache")}
    for side in ("old", "new"):
        subprocess.run(
            [sys.executable, "-c", _CALL, "accelerate", f"model_name={models / side},dtype=float32,batch_size=4",
             "tiny_choice|1,tiny_text|0", "--custom-tasks", str(Path(__file__).resolve()), "--save-details",
             "--output-dir", str(folder / side)],
            env=variables, check=True,
        )  # fmt: skip


if __name__ == "__main__":
    main()
