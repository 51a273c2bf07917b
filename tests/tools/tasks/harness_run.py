"""Runs lm-evaluation-harness and ``lmgate import`` on the same tasks, in one process that the tests start.

Tasks are the installed harness's own YAML files, read through an ``include:`` that names local data. What the harness
measures goes to ``found.json``; what ``lmgate import`` writes goes to a project of its own for each way and task, since
it reads and checks the whole of an lmgate.yaml each time.
"""

import contextlib
import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml
from typer.testing import CliRunner

from tests.tools.tasks.documents import ANSWERED, OTHERS, TASKS, documents

MOST = 16
"""Tokens of a text."""
WAYS = {"plain": {}, "shots": {"shots": 5}, "chat": {"shots": 2, "chat": True}}
"""Ways of asking: what ``lmgate import`` is told."""


def main() -> None:
    base, model = Path(sys.argv[1]), sys.argv[2]
    asked = json.loads(sys.argv[3])
    import datasets
    import torch
    from lm_eval.models.huggingface import HFLM
    from lm_eval.tasks import TaskManager

    datasets.disable_progress_bars()
    torch.set_num_threads(1)
    harness_model = HFLM(pretrained=model, dtype="float32", batch_size=8, device="cpu")
    folder = base / "tasks"
    folder.mkdir()
    wanted = [name for name in TASKS if any(name in asked[way] for way in WAYS)]
    for name in wanted:
        make_task(folder / name, name, asked["documents"])
    for name, group in asked["groups"].items():
        (folder / f"{name}.yaml").write_text(yaml.safe_dump({"group": name, **group}))
    manager = TaskManager(include_path=str(folder), include_defaults=False)
    answered = [name for name in wanted if name in ANSWERED]
    for name, each in (measured(manager, answered, harness_model, {}) if answered else {}).items():
        answer(folder / name / f"{name}-{each['split']}.jsonl", name, each["rows"])
    found: dict[str, Any] = {}
    for way, how in WAYS.items():
        names = asked[way]
        manager = TaskManager(include_path=str(folder), include_defaults=False)
        found[way] = {}
        for several in ([name for name in names if name in TASKS], *([name] for name in names if name not in TASKS)):
            found[way] |= measured(manager, several, harness_model, how)
        for name in names:
            project = base / way / name
            project.mkdir(parents=True)
            (project / "lmgate.yaml").write_text(f"models:\n  tiny: {{path: {model}, dtype: float32, device: cpu}}\n")
            found[way][name]["imported"] = import_(
                project, folder if name in asked["groups"] else folder / name, name, how
            )
    (base / "found.json").write_text(json.dumps(found))


def make_task(folder: Path, name: str, number: int = 6) -> None:
    """Write a task's local data, and its YAML file with an include of the real one."""
    import lm_eval.tasks
    from lm_eval.tasks._yaml_loader import load_yaml

    real = Path(lm_eval.tasks.__file__).parent / {**TASKS, **OTHERS}[name][0]
    config = load_yaml(real, resolve_func=False)
    folder.mkdir()
    splits = {config.get(key) for key in ("training_split", "validation_split", "test_split", "fewshot_split")}
    shots = config.get("fewshot_config")
    splits |= {shots.get("split")} if isinstance(shots, dict) else set()
    data = {}
    for seed, split in enumerate(sorted(filter(None, splits))):
        path = folder / f"{name}-{split}.jsonl"
        drawn = documents(name, number + len(name) % 3 + 2 * seed, seed)
        path.write_text("".join(json.dumps(row) + "\n" for row in drawn))
        data[split] = str(path)
    local = {"include": str(real), "task": name, "dataset_path": "json", "dataset_name": None,
             "dataset_kwargs": {"data_files": data}}  # fmt: skip
    (folder / f"{name}.yaml").write_text(yaml.safe_dump(local))


def answer(file: Path, name: str, rows: list[dict[str, Any]]) -> None:
    """Change every other document so that the model's text for it is right."""
    written = [json.loads(line) for line in file.read_text().splitlines()]
    for index, row in enumerate(rows[: len(written)]):
        if index % 2 == 0:
            written[index] = ANSWERED[name](written[index], row["resps"][0][0])
    file.write_text("".join(json.dumps(row) + "\n" for row in written))


def measured(manager: Any, names: list[str], model: Any, how: Mapping[str, Any]) -> dict[str, Any]:
    from lm_eval import evaluator

    evaluator.add_env_info = lambda results: None  # asks pip, for seconds
    evaluator.add_tokenizer_info = lambda *_: None
    done = evaluator.simple_evaluate(
        model=model, tasks=names, task_manager=manager, log_samples=True, bootstrap_iters=0,
        gen_kwargs={"max_gen_toks": MOST}, num_fewshot=how.get("shots"), apply_chat_template=how.get("chat", False),
    )  # fmt: skip
    found = {}
    for name in names:
        results = {key: value for key, value in done["results"][name].items() if isinstance(value, int | float)}
        samples = sorted(done["samples"].get(name, []), key=lambda each: (each["filter"], each["doc_id"]))
        rows = [
            {"filter": each["filter"], "resps": each["resps"], "read": each["filtered_resps"]}
            | {key: each[key] for key in each["metrics"]}
            for each in samples
        ]
        config = done["configs"].get(name, {})
        split = config.get("test_split") or config.get("validation_split")
        found[name] = {"results": results, "rows": rows, "split": split}
    return json.loads(json.dumps(found, default=float))


def import_(project: Path, folder: Path, name: str, how: Mapping[str, Any]) -> dict[str, Any]:
    """Run the command, and return what it prints for programs, or its error."""
    from pytest_lmgate.cli.app import app

    words = ["import", name, "--include-path", str(folder), "--json", *["--chat"] * how.get("chat", False)]
    words += ["--shots", str(how["shots"])] if "shots" in how else []
    with contextlib.chdir(project):
        done = CliRunner().invoke(app, words)
    return json.loads(done.stdout) if done.exception is None else {"error": str(done.exception)}


if __name__ == "__main__":
    main()
