"""How many tasks of the installed lm-evaluation-harness `lmgate import` takes, by kind, and why not the others.

    python benchmarks/tasks_coverage.py              # all tasks, with made-up documents
    python benchmarks/tasks_coverage.py --seconds 300   # as many as that, in a random order

Each task is imported as the command does it, with its own code, templates and examples; only its dataset is made up.
Where no documents are found that a task accepts, and for the tasks that are left when the seconds are over, the YAML
alone decides: the columns "by YAML" and "not by YAML".
"""

from __future__ import annotations

import argparse
import collections
import os
import random
import re
import sys
import time
from pathlib import Path
from typing import Any

sys.path.append(str(Path(__file__).parents[1]))
# Anything a task would fetch; the library evaluate tries again and again for minutes.
os.environ |= {"HF_HUB_OFFLINE": "1", "HF_EVALUATE_OFFLINE": "1"}

import datasets
import pyarrow
from fake_documents import Shape, fitting

from pytest_lmgate.errors import LmgateError
from pytest_lmgate.tools.tasks import harness
from pytest_lmgate.tools.tasks.freeze import freeze

_ROWS, _TRIES, _AGAIN, _WANTED = 8, 60, 4, 0.95


class AnySplit(dict[str, Any]):
    def __missing__(self, split: str) -> Any:
        return self["all"]


def main() -> int:
    asked = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    asked.add_argument("--seconds", type=float, default=float("inf"), help="Import no more then: their YAML decides.")
    asked.add_argument("--only", help="Only tasks whose names match.")
    given = asked.parse_args()
    datasets.disable_progress_bars()
    datasets.disable_caching()  # which hashes each function that documents go through, and its module
    with harness.quietly():
        from lm_eval.tasks import TaskManager
        from lm_eval.tasks._index import Kind

        index = TaskManager().task_index
    entries = [each for each in index.values() if each.kind is Kind.TASK]
    if given.seconds < float("inf"):
        random.Random(0).shuffle(entries)
    if given.only:
        entries = [each for each in entries if re.search(given.only, each.name)]
    outcomes: dict[str, collections.Counter[str]] = collections.defaultdict(collections.Counter)
    reasons: collections.Counter[str] = collections.Counter()
    by_reading: collections.Counter[str] = collections.Counter()
    unrun: collections.Counter[str] = collections.Counter()
    known: dict[str, dict[str, Shape]] = {}
    tried: set[str] = set()
    begun = time.monotonic()
    for number, entry in enumerate(entries):
        config = entry.cfg
        own = ", own code" * bool(config.get("process_results"))
        kind = f"{config.get('output_type', 'generate_until')}{own}"
        in_time = time.monotonic() - begun < given.seconds
        outcome, why = imported(entry, known, tried) if in_time else ("not run", "")
        outcomes[kind][outcome] += 1
        if outcome == "refused":
            reasons[_general(why)] += 1
        elif outcome == "not run":
            lacking = refused_by_yaml(config)
            outcomes[kind]["by YAML"] += not lacking
            by_reading[lacking] += 1
            unrun[f"{Path(entry.yaml_path).parts[-2]}: {_general(why)}"] += in_time
        if given.only:
            print(entry.name, outcome, why)
        if number % 500 == 499:
            print(f"{number + 1:,} of {len(entries):,}, {time.monotonic() - begun:.0f} s", file=sys.stderr)
    columns = ("imported", "refused", "by YAML", "not by YAML")
    print(f"{'kind':34}{'tasks':>8}" + "".join(f"{column:>13}" for column in columns))
    total: collections.Counter[str] = sum(outcomes.values(), collections.Counter())
    for kind, counts in [*sorted(outcomes.items(), key=lambda each: -sum(each[1].values())), ("all", total)]:
        counts["not by YAML"] = counts["not run"] - counts["by YAML"]
        number = sum(counts[outcome] for outcome in ("imported", "refused", "not run"))
        print(f"{kind:34}{number:8,}" + "".join(f"{counts[column]:13,}" for column in columns))
    share = (total["imported"] + total["by YAML"]) / max(1, number)
    print(
        f"\nlm-evaluation-harness {harness.installed()}, {number:,} task files: {share:.1%} can be imported; "
        f"{total['imported'] + total['refused']:,} were run with made-up documents"
    )
    del by_reading[""]
    for title, counted in (
        ("refused, because", reasons),
        ("not by YAML, because", by_reading),
        ("no documents found that the task accepts", +unrun),
    ):
        print(f"\n{title}")
        for reason, times in counted.most_common(25):
            print(f"{times:7,}  {reason:.150}")
    return 0 if share >= _WANTED or given.only else 1


def imported(entry: Any, known: dict[str, dict[str, Shape]], tried: set[str]) -> tuple[str, str]:
    """Import one task, and return what came of it with the reason."""
    from lm_eval.api.task import ConfigurableTask
    from lm_eval.tasks._factory import TaskFactory
    from lm_eval.tasks._yaml_loader import load_yaml

    def load(rows: list[dict[str, Any]]) -> Any:
        dataset = AnySplit(all=datasets.Dataset(pyarrow.Table.from_pylist(rows), fingerprint="made-up"))
        ConfigurableTask.download = lambda self, *_, **__: setattr(self, "dataset", dataset)
        harness.seed()
        with harness.quietly():
            task = TaskFactory().build(entry, overrides={"custom_dataset": None}, registry={})
        harness.prepare(task, shots=None, seed=1234, split=None)
        documents = harness.documents(task, rows=_ROWS, chat=False)
        try:
            return freeze(task, documents, chat=False, file="task.yaml")
        except LmgateError as error:
            if type(error).__name__ == "ConfigError" and "its scoring code fails" not in str(error):
                return error  # the code may fail because of the documents
            raise

    folder = str(Path(entry.yaml_path).parent)
    try:
        config = load_yaml(entry.yaml_path)
        # Where documents were sought in vain for one task of a folder, they are not for its hundreds of others.
        found, known[folder] = fitting(config, load, _ROWS, known.get(folder), _AGAIN if folder in tried else _TRIES)
    except (Exception, SystemExit) as error:  # slr_bench ends Python if a program lacks
        tried.add(folder)
        return "not run", f"{type(error).__name__}: {error}"
    if isinstance(found, LmgateError):
        return "refused", str(found)
    return "imported", ""


def refused_by_yaml(config: dict[str, Any]) -> str:
    """Return why no metric of a task could be gated, as far as its YAML says; empty if one could."""
    if config.get("doc_to_image") or config.get("doc_to_audio"):
        return "images or sound"
    if config.get("unsafe_code"):
        return "it runs the code that a model writes"
    kind, own = config.get("output_type", "generate_until"), bool(config.get("process_results"))
    metrics = {str(each["metric"]): each.get("aggregation") for each in config.get("metric_list") or ()}
    if kind == "multiple_choice":
        plain = ("acc", "acc_norm", "acc_bytes")
        fits = any(how in ("mean", None) for name, how in metrics.items() if own or name in plain)
    elif kind == "generate_until":
        standard = ("exact_match", "bleu", "chrf", "ter")
        fits = any(
            how in ("mean", "nanmean", "bleu", "chrf", "chrf++", "ter") or (how is None and name in standard)
            for name, how in metrics.items()
        )
    elif own and kind == "loglikelihood":
        return f"{kind} with code of its own"
    else:
        return ""
    return (
        ""
        if fits or not metrics
        else f"no metric that is a mean over rows: {', '.join(Path(each).name for each in metrics)}"
    )


def _general(reason: str) -> str:
    return re.sub(r"\b(document|row) \d+", r"\1 N", " ".join(reason.split()))[:160]


if __name__ == "__main__":
    sys.exit(main())
