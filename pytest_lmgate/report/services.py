"""Reports for services: Markdown, annotations of GitHub Actions, OpenMetrics, and results for the Hugging Face hub.

* In Markdown names and texts are code, which is not interpreted: no mention, link, image or HTML of a model's output
  takes effect.
* GitHub reads a command only at the beginning of a line, and shows ten errors and ten warnings of a step, so the worst
  come first. See https://docs.github.com/en/actions/reference/workflow-commands-for-github-actions.
* GitLab compares the OpenMetrics series of two branches by name and labels, so no label and no number is here that
  changes while the model does not, such as seconds.
* The hub shows a value on the model's page, and on the leaderboard of a task of the benchmark.
"""

from __future__ import annotations

import functools
import hashlib
import html
import math
import os
import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from itertools import accumulate
from pathlib import Path
from typing import Any

import msgspec
import yaml

from pytest_lmgate.errors import encodable, escape_controls
from pytest_lmgate.judge.result import OUTCOMES, HubDataset, Measured, Results, Verdict, worst_first
from pytest_lmgate.report.explanation import explain
from pytest_lmgate.report.text import counted, excerpt, shortened
from pytest_lmgate.report.wording import Row, headline, names, run_facts
from pytest_lmgate.settings.metrics import METRICS

_SIZE = 450_000
"""Bytes of all rows, and of all explanations: GitHub refuses a step summary above 1 MiB, a comment above 64 KiB."""
_NAME, _LINE = 300, 2000
_SIGNS = {"pass": "✅", "fail": "❌", "error": "❌"}  # others warn
_HEADER = (
    "| verdict | gate | value | limit or reference | change | scored | seconds |\n|---|---|---:|---:|---:|---:|---:|"
)


def markdown_report(results: Results) -> str:
    """Return counts, run, a table with failures first, and the explanations."""
    name_of = dict(zip((verdict.id for verdict in results.verdicts), names(results.verdicts), strict=True))
    ordered = worst_first(results.verdicts)
    to_explain = [verdict for verdict in ordered if verdict.verdict != "pass"]
    parts = [f"**{headline(results)}**"]
    facts = [f"{key} {code(text, _LINE)}" for key, text in run_facts(results).items()]
    if facts:
        parts.append(" · ".join(facts))
    lines = [f"- ❌ {code(problem, _LINE)}" for problem in results.problems]
    lines += [f"- ⚠️ {code(remark, _LINE)}" for remark in results.remarks]
    parts += ["\n".join(lines)] if lines else []
    if ordered:
        rows = _few([_row(verdict, name_of[verdict.id]) for verdict in ordered])
        parts += ["\n".join([_HEADER, *rows]), *_left_out(len(ordered) - len(rows), "row")]
        details = _few([_details(verdict, name_of[verdict.id]) for verdict in to_explain])
        parts += [*details, *_left_out(len(to_explain) - len(details), "explanation")]
    return "\n\n".join(parts) + "\n"


def markdown_section(results: Results) -> str:
    """Return the report under a heading, to append to other text."""
    return f"\n## lmgate\n\n{markdown_report(results)}"


def _row(verdict: Verdict, name: str) -> str:
    row, comparison = Row.of(verdict), verdict.comparison
    against = "" if comparison is None else code(comparison.against, _NAME)
    cells = (
        f"{_SIGNS.get(verdict.outcome, '⚠️')} {row.outcome}",
        code(name, _NAME),
        f"{row.value} {row.interval}".strip(),
        f"{row.limit} {against}".strip(),
        f"{row.change}, tolerance {row.tolerance}" if row.change else "",
        row.scored,
        row.seconds,
    )
    return f"| {' | '.join(cells)} |"


def _details(verdict: Verdict, name: str) -> str:
    text = shortened(explain(verdict), _LINE)
    fence = _fence(text, 3)
    summary = f"{verdict.named} <code>{html.escape(excerpt(name, _NAME))}</code>"
    return f"<details><summary>{summary}</summary>\n\n{fence}text\n{text}\n{fence}\n\n</details>"


def code(text: str, width: int) -> str:
    r"""Return a text as code in a table cell, in one line.

    A pipe would end the cell, so it becomes ``\|``, or ``\x7c`` after a backslash, because ``\\|`` ends it too.
    """
    text = re.sub(r"(?<!\\)\|", r"\|", re.sub(r"(?<=\\)\|", r"x7c", excerpt(text, width)))
    if not text:
        return ""
    fence = _fence(text, 1)
    # The blanks keep backticks apart; a reader of Markdown takes them away.
    blank = " " * (text[0] in "` " or text[-1] in "` ")
    return f"{fence}{blank}{text}{blank}{fence}"


def _fence(text: str, shortest: int) -> str:
    """Return more backticks than there are in a text."""
    longest = max(map(len, re.findall("`+", text)), default=0)
    return "`" * max(shortest, longest + 1)


def _few(texts: Sequence[str]) -> list[str]:
    sizes = accumulate(len(text.encode("utf-8", "backslashreplace")) for text in texts)
    return [text for text, size in zip(texts, sizes, strict=True) if size <= _SIZE]


def _left_out(count: int, what: str) -> list[str]:
    if not count:
        return []
    return [f"{counted(count, f'more {what}')} omitted to limit the size; the reports json and html have all"]


_TITLE = 200


def github_annotations(results: Results) -> str:
    """Return an error for each gate that fails the build, and a warning for each other inconclusive or advisory one."""
    lines = [_command("error", {"title": "lmgate"}, problem) for problem in results.problems]
    for verdict in worst_first(results.verdicts):
        if verdict.fails:
            lines.append(_annotation("error", verdict))
        elif verdict.verdict == "inconclusive" or verdict.advises:
            lines.append(_annotation("warning", verdict))
    return "".join(f"{line}\n" for line in lines)


def _annotation(level: str, verdict: Verdict) -> str:
    title = f"{verdict.named} {verdict.label}"
    place = {"file": _in_repository(Path(verdict.file)), "line": str(verdict.line)} if verdict.line else {}
    return _command(level, place | {"title": excerpt(title, _TITLE)}, explain(verdict))


def _in_repository(file: Path) -> str:
    """Return a file's path in the repository that GitHub checked out."""
    root = os.environ.get("GITHUB_WORKSPACE")
    return file.relative_to(root).as_posix() if root and file.is_relative_to(root) else str(file)


def _command(level: str, properties: dict[str, str], message: str) -> str:
    shown = ",".join(f"{key}={_property(value)}" for key, value in properties.items())
    return f"::{level} {shown}::{_data(shortened(escape_controls(message), _LINE))}"


def _data(text: str) -> str:
    return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def _property(text: str) -> str:
    return _data(escape_controls(text)).replace(":", "%3A").replace(",", "%2C")


_LABEL = 500
Reads = Callable[[Verdict], float | None]


def _compared(key: str) -> Reads:
    return lambda verdict: getattr(verdict.comparison, key, None)


_FAMILIES: Mapping[str, tuple[str, Reads]] = {
    "value": ("Measured value, in the unit of the metric.", lambda verdict: verdict.value),
    "stderr": ("Standard error of the value.", lambda verdict: verdict.stderr),
    "lower": ("Lower end of the interval at 95%.", lambda verdict: verdict.interval and verdict.interval[0]),
    "upper": ("Upper end of the interval at 95%.", lambda verdict: verdict.interval and verdict.interval[1]),
    "limit": (
        "Limit of the value; of a comparison the worst value within the tolerance.",
        lambda verdict: verdict.limit,
    ),
    "reference": ("Value of the reference, if a gate has one.", _compared("reference")),
    "degradation": ("How much worse than the reference, as a fraction or in the unit.", _compared("degradation")),
    "degradation_lower": ("One-sided lower bound of the degradation.", _compared("lower")),
    "degradation_upper": ("One-sided upper bound of the degradation.", _compared("upper")),
    "tolerance": (
        "Largest degradation that passes.",
        lambda verdict: None if verdict.comparison is None else verdict.comparison.tolerance.size,
    ),
    "scored": ("Targets or rows that were scored.", lambda verdict: verdict.n),
}


def openmetrics_report(results: Results) -> str:
    """Return a gauge for each number of a gate, and its verdict as a state set."""
    series = _series(results)
    lines: list[str] = []
    for family, (words, reads) in _FAMILIES.items():
        lines += [f"# TYPE lmgate_{family} gauge", f"# HELP lmgate_{family} {words}"]
        lines += [
            f"lmgate_{family}{{{labels}}} {_number(value)}"
            for labels, verdict in series.items()
            if (value := reads(verdict)) is not None
        ]
    lines += ["# TYPE lmgate_verdict stateset", "# HELP lmgate_verdict Verdict of a gate."]
    lines += [
        f'lmgate_verdict{{{labels},lmgate_verdict="{outcome}"}} {int(verdict.outcome == outcome)}'
        for labels, verdict in series.items()
        for outcome in OUTCOMES
    ]
    lines += [
        "# TYPE lmgate_problems gauge",
        "# HELP lmgate_problems Problems, other than gates, that fail the session.",
        f"lmgate_problems {len(results.problems)}",
    ]
    return "\n".join([*lines, "# EOF"]) + "\n"


def _series(results: Results) -> dict[str, Verdict]:
    """Return the verdicts by their labels; gates with equal labels get a number."""
    series: dict[str, Verdict] = {}
    for verdict in results.verdicts:
        named = {"metric": verdict.metric, "model": verdict.model, "dataset": verdict.dataset}
        rest = ",".join(f'{key}="{_label(value)}"' for key, value in named.items())
        gate, count = _label(verdict.id), 1
        while (labels := f'gate="{gate}{f" no. {count}" * (count > 1)}",{rest}') in series:
            count += 1
        series[labels] = verdict
    return series


def _label(text: str) -> str:
    r"""Escape a text for a label.

    GitLab reads ``#`` as a comment even in quotes, so it becomes ``\x23``.
    """
    text = escape_controls(text).replace("#", r"\x23")
    text = text if len(text) <= _LABEL else f"{text[: _LABEL // 2]}...{text[-_LABEL // 2 :]}"
    return re.sub(r'[\\"]', r"\\\g<0>", text).replace("\n", r"\n")


def _number(value: float) -> str:
    if math.isnan(value):
        return "NaN"
    return repr(value) if math.isfinite(value) else f"{'+' if value > 0 else '-'}Inf"


# ``.eval_results/*.yaml`` of the hub: a file for each model, with its values on benchmarks of the hub. A gate names
# configuration and split; the benchmark's own eval.yaml says which task reads these. What has no dataset on the hub, or
# no task there, is left out with the reason: no id is guessed.
#
# The formats: https://huggingface.co/docs/hub/eval-results and ``EvalResultEntry`` of huggingface_hub.


Tasks = Callable[[str], "tuple[_Task, ...] | str"]
_LONGEST_NAME = 100
_COMMIT = re.compile("[0-9a-f]{40}")


class _Task(msgspec.Struct):
    id: str
    config: str = "default"
    split: str = "test"


class _Benchmark(msgspec.Struct):
    tasks: tuple[_Task, ...]


def eval_results(results: Results, *, offline: bool) -> tuple[dict[str, str], list[str]]:
    """Return the text of each file by its name, and sentences about the values that have no place there."""
    tasks = functools.cache(functools.partial(_tasks, offline=offline))
    by_model: dict[str, list[dict[str, Any]]] = {}
    left_out: Counter[str] = Counter()
    for measured in (*results.verdicts, *results.measured):
        entry = _entry(measured, results, tasks)
        if isinstance(entry, str):
            left_out[entry] += 1
        elif entry not in (entries := by_model.setdefault(measured.model, [])):  # two gates may share a measurement
            entries.append(entry)
    names = _file_names(list(by_model))
    texts = {
        names[model]: yaml.safe_dump(entries, sort_keys=False, width=math.inf) for model, entries in by_model.items()
    }
    return texts, [f"{counted(count, 'value')} left out: {reason}" for reason, count in left_out.items()]


def _entry(measured: Measured, results: Results, tasks: Tasks) -> dict[str, Any] | str:
    """Return the entry of a value, or why it has none."""
    hub, row = measured.hub, METRICS.get(measured.metric)
    if measured.value is None or not math.isfinite(measured.value):
        return "nothing was measured, or no finite number"
    if row is not None and row.measures in ("divergences", "self-divergences"):
        return "a divergence compares two models, and the hub has results of one"
    if hub is None:
        return "the data is local or in memory, so it has no id on the hub (a dataset's hub:)"
    if hub.is_part:
        return "limit: or sample: reads a part of the rows, and the hub has results of whole benchmarks"
    task = _task_of(hub, tasks(hub.id))
    if not isinstance(task, _Task):
        return task
    dataset = {"id": hub.id, "task_id": task.id}
    if _COMMIT.fullmatch(hub.revision):
        dataset["revision"] = hub.revision
    date = {"date": results.run.date} if results.run.date else {}
    return {"dataset": dataset, "value": measured.value, **date, "notes": _notes(measured)}


def _task_of(hub: HubDataset, tasks: tuple[_Task, ...] | str) -> _Task | str:
    """Return the task that reads a configuration and split, or why there is none."""
    if isinstance(tasks, str):
        return tasks
    config, split = hub.name or "default", hub.split
    fitting = [task for task in tasks if task.config == config and split in ("", task.split)]
    if len(fitting) == 1:
        return fitting[0]
    there = ", ".join(f"{task.id} ({task.config}, {task.split})" for task in tasks) or "none"
    return (
        f"expected one task of {hub.id}'s eval.yaml to read the configuration {config!r} and the split "
        f"{split or 'that is the only one'!r}, got {len(fitting)}; its tasks: {there}"
    )


def _notes(measured: Measured) -> str:
    """Return what the schema has no key for, in the form of a signature."""
    facts: dict[str, object] = {"metric": measured.metric}
    if measured.interval is not None:
        low, high = measured.interval
        facts["interval95"] = f"[{low!r},{high!r}]"
    facts |= {"stderr": measured.stderr, "n": measured.n, "n_unit": measured.unit}
    told = [f"{key}:{value}" for key, value in facts.items() if value is not None]
    return encodable("|".join(["lmgate", *told, measured.signature]))


def _tasks(dataset: str, *, offline: bool) -> tuple[_Task, ...] | str:
    """Return the tasks of a benchmark by its eval.yaml, as the hub has it now, or why they are not known."""
    import huggingface_hub
    from huggingface_hub.errors import EntryNotFoundError, LocalEntryNotFoundError

    try:
        file = huggingface_hub.hf_hub_download(dataset, "eval.yaml", repo_type="dataset", local_files_only=offline)
        return msgspec.convert(yaml.safe_load(Path(file).read_bytes()), _Benchmark).tasks
    except LocalEntryNotFoundError:
        why = "is not in the local hub cache and cannot be fetched; run once with a network, without --lmgate-offline"
    except EntryNotFoundError:
        return f"{dataset} is not a benchmark of the hub: it has no eval.yaml, which names the tasks"
    except Exception as error:  # of the hub, of YAML, or a file of another form
        why = f"cannot be read: {excerpt(f'{type(error).__name__}: {error}', 300)}"
    return f"the eval.yaml of {dataset}, which names its tasks, {why}"


def _file_names(models: list[str]) -> dict[str, str]:
    """Return a file's name for each model; where two would share one, each gets a digest of the model's name."""
    clean = {model: re.sub(r"[^\w.-]+", "_", model, flags=re.ASCII).strip("._")[:_LONGEST_NAME] for model in models}
    taken = Counter(name.casefold() for name in clean.values())
    digests = {model: hashlib.sha256(model.encode("utf-8", "backslashreplace")).hexdigest()[:8] for model in models}
    return {
        model: f"{name}.yaml" if name and taken[name.casefold()] == 1 else f"{name or 'model'}-{digests[model]}.yaml"
        for model, name in clean.items()
    }
