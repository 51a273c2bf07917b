"""Lets lm-evaluation-harness write ``--log_samples`` files of a small model and of a damaged copy.

``python -m tests.tools.judge_results.write_lm_eval FOLDER DOCUMENTS`` fills the folder with ``old`` and ``new``, each
the ``--output_path`` of one call of the harness's own command; with the tasks, a folder for each; and with both models.
The files in ``data/lm_eval`` were written so by lm-eval 0.4.13, with 4 documents a task and more.
"""

import json
import os
import sys
from pathlib import Path
from typing import Any

import yaml

from tests.tools.tasks.harness_run import make_task

TASKS = ("arc_easy", "gsm8k", "mmlu_anatomy", "mmlu_astronomy")
GROUP = "sciences"


def main() -> None:
    folder, number = Path(sys.argv[1]), int(sys.argv[2])
    os.environ |= {"HF_HOME": str(folder / "cache"), "HF_HUB_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1"}
    import torch

    torch.set_num_threads(1)
    make_models(folder)
    tasks = folder / "tasks"
    tasks.mkdir()
    for name in TASKS:
        make_task(tasks / name, name, number)
    group = {"group": GROUP, "task": ["mmlu_anatomy", "mmlu_astronomy"],
             "aggregate_metric_list": [{"metric": "acc", "weight_by_size": True}]}  # fmt: skip
    (tasks / f"{GROUP}.yaml").write_text(yaml.safe_dump(group))
    run(folder, "old", "first")
    for name in TASKS:  # the model is right in four documents of five
        file = next((tasks / name).glob(f"{name}-test.jsonl"))
        answered(file, name, next(folder.glob(f"first/*/samples_{name}_*.jsonl")))
    for model in ("old", "new"):
        run(folder, model, model)


def make_models(folder: Path) -> None:
    """Save the model, and a copy whose weights have noise."""
    import torch
    import transformers

    from tests.tools.tasks.test_equal import make

    (folder / "models").mkdir()
    make(folder / "models" / "old")
    model = transformers.AutoModelForCausalLM.from_pretrained(folder / "models" / "old", dtype=torch.float32)
    torch.manual_seed(1)
    with torch.no_grad():
        for weight in model.parameters():
            weight += 0.05 * weight.std() * torch.randn_like(weight)
    make(folder / "models" / "new")  # for the tokenizer
    model.save_pretrained(folder / "models" / "new")


def run(folder: Path, model: str, output: str) -> None:
    from lm_eval import evaluator
    from lm_eval._cli import HarnessCLI
    from lm_eval.tasks._index import TaskIndex

    files = TaskIndex._iter_yaml_files
    # Its own tasks are 13,000 files, which it reads in each run.
    TaskIndex._iter_yaml_files = staticmethod(lambda root: files(root) if root == folder / "tasks" else [])
    evaluator.add_env_info = lambda results: None  # asks pip, for seconds
    checkpoint = folder / "models" / model
    sys.argv = ["lm_eval", "run", "--model", "hf", "--model_args", f"pretrained={checkpoint},dtype=float32",
                "--tasks", f"arc_easy,gsm8k,{GROUP}", "--include_path", str(folder / "tasks"), "--device", "cpu",
                "--batch_size", "8", "--num_fewshot", "1", "--gen_kwargs", "max_gen_toks=16",
                "--log_samples", "--output_path", str(folder / output)]  # fmt: skip
    parser = HarnessCLI()
    parser.execute(parser.parse_args())


def answered(file: Path, name: str, samples: Path) -> None:
    """Change four documents of five so that the model's answer is right."""
    documents = [json.loads(line) for line in file.read_text().splitlines()]
    for line in samples.read_text().splitlines():
        sample: dict[str, Any] = json.loads(line)
        index = sample["doc_id"]
        if index % 5 == 4:
            continue
        if name == "gsm8k":
            if sample["filter"] == "flexible-extract" and sample["filtered_resps"] != ["[invalid]"]:
                documents[index]["answer"] = f"So it is.\n#### {sample['filtered_resps'][0]}"
            continue
        likely = [float(choice[0]) for choice in sample["filtered_resps"]]
        best = likely.index(max(likely))
        documents[index]["answerKey" if name == "arc_easy" else "answer"] = (
            documents[index]["choices"]["label"][best] if name == "arc_easy" else best
        )
    file.write_text("".join(json.dumps(row) + "\n" for row in documents))


if __name__ == "__main__":
    main()
