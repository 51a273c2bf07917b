"""From a task of lm-evaluation-harness to rows of JSON and the keys of a dataset's entry, or the reason why not."""

from __future__ import annotations

import json
import random
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from pytest_lmgate.errors import ConfigError, DataError, MetricInputError
from pytest_lmgate.metrics.texts import checked_texts, exact
from pytest_lmgate.settings.entries import is_task_metric
from pytest_lmgate.settings.extraction import extracted, read_extractions, texts_read
from pytest_lmgate.tools.tasks import harness
from pytest_lmgate.tools.tasks.harness import Document
from pytest_lmgate.tools.tasks.private import filters_of, metric_options, metrics_of
from pytest_lmgate.tools.tasks.scoring import RAW

_MEANS = ("mean", "nanmean")
_CHOICE_METRICS = ("acc", "acc_norm", "acc_bytes")
_LOWER = "the task says that lower is better, and a gate would judge that higher is"
_REGEX = {"regex_pattern": "pattern", "group_select": "group", "fallback": "fallback"}
# The filters that ``extract:`` has, with their arguments by the names that it gives them.
_STEPS: Mapping[str, Mapping[str, str]] = {
    "take_first": {}, "remove_whitespace": {}, "lowercase": {}, "uppercase": {}, "regex": _REGEX,
    "map": {"mapping_dict": "mapping", "default_value": "default"},
    "multi_choice_regex": {**_REGEX, "ignore_case": "ignore_case", "ignore_punctuation": "ignore_punctuation",
                           "regexes_to_ignore": "ignore"},
    "take_first_k": {"k": "k"}, "majority_vote": {},
}  # fmt: skip
_CHOOSE = {"take_first_k", "majority_vote"}  # among several texts of a row
_DEFAULT_PATTERN = r"#### (\-?[0-9\.\,]+)"  # of the harness's RegexFilter
_EXACT_OPTIONS = {"ignore_case": "ignore_case", "ignore_punctuation": "ignore_punctuation",
                  "ignore_numbers": "ignore_numbers", "regexes_to_ignore": "ignore"}  # fmt: skip
_CORPUS_METRICS = {
    "bleu": ("bleu", {}),
    "chrf": ("chrf", {}),
    "chrf++": ("chrf", {"word_order": 2}),
    "ter": ("ter", {}),
}
_ROLLING = {"word_perplexity": ("ppl", "word"), "byte_perplexity": ("ppl", "byte"), "bits_per_byte": ("bpb", None)}
_PROBES = 24


@dataclass(frozen=True)
class Frozen:
    """What a task becomes."""

    rows: list[dict[str, Any]]  # the dataset's rows
    entry: dict[str, Any]  # keys of its entry, but for `path`
    # what can be gated, the first as the task's main number: a metric, and the arguments that it needs
    gates: list[tuple[str, dict[str, Any]]]
    # what the user should know: metrics that are left out, with the reason
    notes: list[str] = field(default_factory=list)
    unjudgeable: list[str] = field(default_factory=list)  # why documents have no row: they cannot be judged


def freeze(task: Any, documents: Sequence[Document], *, chat: bool, file: str) -> Frozen:
    """Freeze documents of a task, one of `harness.find`; its YAML `file` is for a metric by its own code."""
    if getattr(task, "MULTIMODAL", False):
        raise ConfigError("it shows images or plays audio, and only text is measured here")
    if getattr(task, "UNSAFE_CODE", False):
        raise ConfigError("it runs the code that a model writes, which is not safe here")
    if judge := harness.judge_of(task):
        raise ConfigError(f"its scoring code asks a judge model by {judge}, whose answers change from day to day")
    kinds = set[str]().union(*(document.kinds for document in documents))
    several = {len(document.arguments) for document in documents} != {1} and task.OUTPUT_TYPE != "multiple_choice"
    if len(kinds) > 1 or several:
        raise ConfigError(
            f"it makes several requests of a document ({', '.join(sorted(kinds))}), which cannot become one row"
        )
    kind = "multiple_choice" if task.OUTPUT_TYPE == "multiple_choice" else kinds.pop()
    make = {
        "multiple_choice": _choices,
        "generate_until": _texts,
        "loglikelihood": _targets,
        "loglikelihood_rolling": _rolling,
    }[kind]
    frozen = make(task, documents, chat, file)
    if not frozen.gates:
        raise ConfigError("; ".join(frozen.notes) or "it has no metric")
    return frozen


def _choices(task: Any, documents: Sequence[Document], chat: bool, file: str) -> Frozen:
    metrics, notes, own_code = [], [], list[str]()
    several, has_own_scoring = bool(getattr(task, "multiple_input", 0)), harness.has_own_scoring(task)
    aggregated, better = harness.aggregations(task), task.higher_is_better()
    for metric, name in aggregated.items():
        if metric in _CHOICE_METRICS and better.get(metric) is False:
            notes.append(f"{metric} is left out: {_LOWER}")
        elif metric in _CHOICE_METRICS and name == "mean":
            metrics.append(metric)
        elif has_own_scoring and name in _MEANS:
            own_code.append(metric)
        else:
            notes.append(f"{metric} is left out: {_unfit(name)}")
    rows, judged, unjudgeable, delimiters = [], [], [], set()
    for document in documents:
        try:
            choices = _choice_texts(task, document)
            requests = document.arguments[: len(choices)]  # the others are without their question, for acc_mutual_info
            right = _gold(task, document, choices, several) if not has_own_scoring or not metrics else None
            if right is None:
                right, lost = _probed(task, document, choices, metrics)
                metrics = [metric for metric in metrics if metric not in lost]
                own_code += lost
                right = right if metrics else _gold(task, document, choices, several)
            after = {following.removesuffix(choice) for (_, following), choice in zip(requests, choices, strict=False)}
            choices, right = _distinct(document, choices, right) if not several else (choices, right)
        except DataError as error:
            unjudgeable.append(str(error))
            continue
        row: dict[str, Any] = {"id": document.id}
        if several:
            row |= {"question": [prompt for prompt, _ in requests], "target": str(requests[0][1]), "choices": choices}
            after = {""}
        else:
            row |= {"messages" if chat else "question": requests[0][0], "choices": choices}
        delimiters |= after
        row["answer"] = right[0] if len(right) == 1 else right
        rows.append(row)
        judged.append(document)
    if several and chat:
        raise ConfigError("it has a prompt for each choice, which cannot be messages; leave out --chat")
    if not rows and (metrics or own_code):
        raise DataError(f"{unjudgeable[0]}; nor could it be on any other document")
    (delimiter, *others) = sorted(delimiters) or [""]
    if others:
        raise ConfigError(f"its choices follow {delimiter!r} and {others[0]!r}: one delimiter is needed")
    asked_by = "messages" if chat else "question"
    entry: dict[str, Any] = {asked_by: asked_by, **({"target": "target"} if several else {}), "choices": "choices"}
    entry |= {"answer": "answer", "delimiter": delimiter}
    if own_code and (why := _unfit_choices(task, judged, rows)):
        notes += [f"{metric} is left out: {why}" for metric in own_code]
    elif own_code:
        rows = [{**row, "doc": _plain(document)} for row, document in zip(rows, judged, strict=True)]
        directions = {metric: "higher" if better.get(metric, True) else "lower" for metric in own_code}
        entry["task"] = {"file": file, "metrics": directions}
    metrics.sort(key=["acc_norm", "acc", "acc_bytes"].index)
    gates: list[tuple[str, dict[str, Any]]] = [("accuracy", {"variant": metric}) for metric in metrics]
    gates += [(f"task.{metric}", {}) for metric in entry.get("task", {}).get("metrics", ())]
    return Frozen(rows, entry, gates, notes, unjudgeable)


def _unfit_choices(task: Any, documents: Sequence[Document], rows: Sequence[Mapping[str, Any]]) -> str:
    """Return why code of a task cannot score the likelihoods of choices later; empty if it can."""
    for document, row in zip(documents, rows, strict=True):
        choices = row["choices"]
        if len(document.arguments) != len(choices):
            return f"code of the task reads more than one likelihood of each different choice (document {document.id})"
        shown = [[(-1.0 - at, greedy) for at in range(len(choices))] for greedy in (False, True)]
        with harness.quietly():
            one, other = (repr(task.process_results(document.doc, results)) for results in shown)
        if one != other:
            return "code of the task looks at whether a choice is the greedy text"
    _try_scoring(task, documents[0], json.dumps([-1.0 - at for at in range(len(rows[0]["choices"]))]))
    return ""


def _choice_texts(task: Any, document: Document) -> list[str]:
    with harness.quietly():
        choices = list(task.doc_to_choice(document.doc))
    if not all(isinstance(choice, str) and choice for choice in choices):
        raise DataError(f"document {document.id}: expected choices that are texts, got {choices!r:.100}")
    return choices


def _distinct(document: Document, choices: list[str], right: list[int]) -> tuple[list[str], list[int]]:
    """Leave out a choice that came before: the harness takes the first of equals."""
    kept = [at for at, choice in enumerate(choices) if choices.index(choice) == at]
    remaining = [kept.index(at) for at in right if at in kept]
    if not remaining:
        raise DataError(
            f"document {document.id}: its answer {choices[right[0]]!r:.60} is there twice, and the harness takes "
            "the first"
        )
    if len(kept) < 2:
        raise DataError(f"document {document.id}: expected two choices or more, got {len(kept)}")
    return [choices[at] for at in kept], remaining


def _gold(task: Any, document: Document, choices: Sequence[str], several: bool) -> list[int]:
    """Return the indexes of the right choices, as ``ConfigurableTask.process_results`` takes them."""
    with harness.quietly():
        gold = task.doc_to_text(document.doc) if several else task.doc_to_target(document.doc)
    if isinstance(gold, str):
        gold = choices.index(gold) if gold in choices else gold
    right = list(gold) if isinstance(gold, list) else [gold]
    if not right or not all(isinstance(index, int | np.integer) and 0 <= index < len(choices) for index in right):
        raise DataError(
            f"document {document.id}: its answer {gold!r:.60} is none of its {len(choices)} choices, so that no model "
            "could be right"
        )
    return sorted(set(map(int, right)))


def _probed(
    task: Any, document: Document, choices: Sequence[str], metrics: Sequence[str]
) -> tuple[list[int], list[str]]:
    """Return the choices that a task's own code takes as right, and the metrics that it computes in another way.

    The code is shown made-up likelihoods: first each choice as the best by all metrics, then random ones.
    """
    sizes = {"acc": [1] * len(choices), "acc_norm": list(map(len, choices)),
             "acc_bytes": [len(choice.encode()) for choice in choices]}  # fmt: skip
    drawn = random.Random(document.id)

    def shown(likelihoods: Sequence[float]) -> Mapping[str, Any]:
        pairs = [(likelihood, drawn.random() < 0.5) for likelihood in likelihoods]
        with harness.quietly():
            try:
                numbers: Mapping[str, Any] = task.process_results(document.doc, pairs)
            except Exception as error:
                raise ConfigError(f"its scoring code fails: {type(error).__name__}: {error!s:.200}") from error
        return numbers

    far = 10.0 * max(sizes["acc_bytes"])
    right = []
    for best in range(len(choices)):
        if shown([-0.001 if at == best else -far for at in range(len(choices))]).get(metrics[0]) == 1:
            right.append(best)
    lost = []
    for _ in range(_PROBES):
        likelihoods = [-drawn.uniform(1, 90) for _ in choices]
        scored = shown(likelihoods)
        for metric in metrics:
            values = [likelihood / size for likelihood, size in zip(likelihoods, sizes[metric], strict=True)]
            if scored.get(metric) != float(values.index(max(values)) in right):
                lost.append(metric)
    if not right and metrics[0] not in lost:
        raise DataError(f"document {document.id}: no choice is right by the task's own code")
    return right, list(dict.fromkeys(lost))


def _texts(task: Any, documents: Sequence[Document], chat: bool, file: str) -> Frozen:
    entry: dict[str, Any] = {"messages": "messages"} if chat else {"source": "prompt"}
    entry |= {"references": "references", **harness.generation(documents[0].arguments[0][1])}
    gates, notes, extractions, own_code = _text_gates(task, samples="seed" in entry)
    if any(texts_read(read_extractions(steps)[""]) for steps in extractions.values()):
        entry["repeats"] = task.config.repeats
    if extractions:
        entry["extract"] = extractions
    if own_code:
        entry["task"] = {"file": file, "metrics": own_code}
        _try_scoring(task, documents[0])
    choices = any("multi_choice_regex" in step for steps in extractions.values() for step in steps)
    rows = []
    for document in documents:
        row = {
            "id": document.id,
            "messages" if chat else "prompt": document.arguments[0][0],
            "references": _references(task, document),
        }
        if choices:
            row["choices"] = list(document.doc["choices"])
        if own_code:
            row["doc"] = _plain(document)
        rows.append(row)
    if len(rows) > 1 and all(_prompt(row) == _prompt(rows[0]) for row in rows):
        raise ConfigError(f"every prompt is {_prompt(rows[0])!r:.60}: doc_to_text names no column")
    rows, unjudgeable = _with_references(rows, gates)
    unreadable = _unreadable(rows, extractions, gates, notes)
    unjudgeable += [
        f"document {rows[index]['id']}: the extraction {name} cannot read its own reference "
        f"{rows[index]['references'][0]!r:.60}"
        for index, name in unreadable.items()
    ]
    return Frozen([row for at, row in enumerate(rows) if at not in unreadable], entry, gates, notes, unjudgeable)


def _prompt(row: Mapping[str, Any]) -> Any:
    return row["messages" if "messages" in row else "prompt"]


def _with_references(
    rows: Sequence[dict[str, Any]], gates: Sequence[tuple[str, dict[str, Any]]]
) -> tuple[list[dict[str, Any]], list[str]]:
    """Return the rows whose references can be compared with, and why the others' cannot."""
    kept, refused = [], []
    ours = [metric for metric, _ in gates if not is_task_metric(metric)]
    exacts = [exact(**options) for metric, options in gates if metric == "exact"]
    for row in rows:
        try:
            texts = checked_texts([""], [row["references"]], needs_references=bool(ours))
            for metric in exacts:
                metric.statistics(*texts)
            kept.append(row)
        except MetricInputError as error:
            refused.append(f"document {row['id']}: {str(error).replace('row 0: ', '')}")
    return kept, refused


def _unreadable(
    rows: Sequence[dict[str, Any]],
    extractions: Mapping[str, list[Any]],
    gates: Sequence[tuple[str, dict[str, Any]]],
    notes: list[str],
) -> dict[int, str]:
    """Return the rows whose reference an extraction cannot read, if it reads most references; else add a note.

    A reference is shown to it alone, and behind the words that its pattern begins with.
    """
    variants: dict[int, str] = {}
    for metric, options in gates:
        steps = extractions.get(options.get("variant", "")) if metric == "exact" else None
        patterns = [given["pattern"] for step in steps or () if isinstance(step, dict) for given in step.values()
                    if "pattern" in given]  # fmt: skip
        if steps is None or not patterns:
            continue
        begin = re.match(r"(?:\(\?[a-z<=:]+)?([^\\\[\](){}.*+?^$|]*)", patterns[0])[1]  # type: ignore[index]
        read = np.zeros(len(rows), dtype=bool)
        for template in ("{}", "({})", begin + "{}", begin + "{}.", begin + "({})."):
            texts = [template.replace("{}", row["references"][0]) for row in rows]
            answers = extracted(read_extractions(steps)[""], texts, rows, name="task")
            references = [row["references"] for row in rows]
            matches = exact(**options).statistics([answer.text for answer in answers], references, rows)
            read |= np.asarray(matches)[:, 0] > 0
        if read.mean() >= 0.5:
            variants |= {int(index): options["variant"] for index in np.flatnonzero(~read)}
        else:
            notes.append(
                f"the extraction {options['variant']} reads {read.sum()} of {len(rows)} references: check "
                "that the model's outputs match the pattern"
            )
    return variants


def _text_gates(
    task: Any, *, samples: bool
) -> tuple[list[tuple[str, dict[str, Any]]], list[str], dict[str, list[Any]], dict[str, str]]:
    """Return gates, notes, extractions by name, and the metrics by the task's own code with their directions.

    Without filters that choose among several texts, one text of each row is enough, even if the task has `repeats`.
    """
    gates: list[tuple[str, dict[str, Any]]] = []
    notes: list[str] = []
    extractions: dict[str, list[Any]] = {}
    own_code: dict[str, str] = {}
    aggregated, better = harness.aggregations(task), task.higher_is_better()
    has_own_scoring, repeats = harness.has_own_scoring(task), getattr(task.config, "repeats", 1) or 1
    listed = [(ensemble, harness.steps_of(ensemble)) for ensemble in filters_of(task)]
    chosen = [{name for name, _ in filters or ()} & _CHOOSE for _, filters in listed]
    repeated = repeats > 1 and samples and not has_own_scoring and any(chosen)
    for (ensemble, filters), chooses in zip(listed, chosen, strict=True):
        names = {name for name, _ in filters or ()}
        if repeats > 1 and ("take_first" not in names or (chooses and not repeated)):
            why = "" if samples else ", which are all the same because the task does not sample"
            notes.append(f"the filter {ensemble.name} is left out: it needs {repeats} texts of a prompt{why}")
            continue
        steps = None
        reads_characters = any(name == "take_first" for name, _ in (filters or ())[:-1])
        if reads_characters and not has_own_scoring:
            notes.append(
                f"the filter {ensemble.name} has steps behind take_first, which read each character as a text of its "
                "own: only the harness scores that"
            )
        elif filters and not has_own_scoring and "take_first" in names:
            steps = _steps([step for step in filters if repeated or step[0] not in _CHOOSE])
        if repeated and steps is not None and not chooses:
            steps = [{"take_first_k": {"k": 1}}, *steps]
        for metric, name in aggregated.items():
            standard = harness.is_standard(task, metric)
            if not has_own_scoring and metrics_of(task).get(metric, metric) is None:
                notes.append(f"{metric} is left out: the harness has no such metric")
            elif repeated and (metric != "exact_match" or not standard or steps is None):
                notes.append(f"{metric} is left out: it would be a mean over the {repeats} texts of a row")
            elif steps is not None and standard and metric != "ter" and better.get(metric) is False:
                notes.append(f"{metric} is left out: {_LOWER}")
            elif steps is not None and standard and metric == "exact_match" and name == "mean":
                given = {key: value for key, value in metric_options(task, metric).items() if value}
                options = {_EXACT_OPTIONS[key]: given[key] if key == "regexes_to_ignore" else True for key in given}
                variant = extraction_name(ensemble.name)
                extractions[variant] = steps
                gates.append(("exact", {"variant": variant, "strip": False, **options}))
            elif steps is not None and standard and metric in _CORPUS_METRICS and name == metric:
                if names - {"take_first", "remove_whitespace"}:  # white space at the ends changes none of them
                    notes.append(f"{metric} is left out: it scores a part of the text")
                    continue
                own_name, more = _CORPUS_METRICS[metric]
                gates += [gate for gate in [(own_name, dict(more))] if gate not in gates]
            elif name in _MEANS and (not standard or steps is None):
                label = harness.label_of(task, metric, ensemble.name)
                own_code[label] = "higher" if better.get(metric, True) else "lower"
                gates.append((f"task.{label}", {}))
            else:
                notes.append(f"{metric} is left out: {_unfit(name)}")
    if all(len(steps) == 1 for steps in extractions.values()) and len(extractions) == 1:
        extractions = {}  # take_first alone is the text itself
        gates = [(metric, {key: value for key, value in given.items() if key != "variant"}) for metric, given in gates]
    if extractions and any(metric in _CORPUS_METRICS for metric, _ in gates):
        extractions = {RAW: ["take_first"], **extractions}  # these metrics read by the first
    elif extractions and own_code:
        extractions[RAW] = ["take_first"]
    return gates, notes, extractions, own_code


def extraction_name(ensemble: str) -> str:
    name = re.sub(r"[^\w.-]+", "-", ensemble)
    return name if re.match(r"[A-Za-z]", name) and name not in _STEPS else f"by-{name}"


def _steps(filters: Sequence[tuple[str, Mapping[str, Any]]]) -> list[Any] | None:
    steps: list[Any] = []
    for name, given in filters:
        if name not in _STEPS or not given.keys() <= _STEPS[name].keys():
            return None
        arguments = {_STEPS[name][key]: value for key, value in given.items() if value not in (None, False)}
        if name == "map":
            arguments = {key: {str(one): str(other) for one, other in value.items()} if key == "mapping" else str(value)
                         for key, value in arguments.items()}  # fmt: skip
        if name in ("regex", "multi_choice_regex"):
            arguments.setdefault("pattern", _DEFAULT_PATTERN)
        if not all(isinstance(value, str | int | dict | list) for value in arguments.values()):
            return None
        steps.append({name: arguments} if arguments else name)
    return steps


def _references(task: Any, document: Document) -> list[str]:
    """Return the references, as ``ConfigurableTask.process_results`` takes them."""
    with harness.quietly():
        gold = task.doc_to_target(document.doc)
        if getattr(task.config, "doc_to_choice", None) is not None and not harness.has_own_scoring(task):
            gold = task.doc_to_choice(document.doc)[gold]
    listed = list(gold) if getattr(task, "multiple_target", 0) else [gold]
    return [item if isinstance(item, str) else str(item) for item in listed]


def _targets(task: Any, documents: Sequence[Document], chat: bool, file: str) -> Frozen:
    gates: list[tuple[str, dict[str, Any]]] = []
    notes = []
    if harness.has_own_scoring(task):
        raise ConfigError("code of its own scores its likelihoods")
    for metric, name in harness.aggregations(task).items():
        if (metric, name) == ("perplexity", "perplexity"):
            gates.append(("target_ppl", {}))
        elif (metric, name) == ("acc", "mean"):
            gates.append(("accuracy", {}))
        else:
            notes.append(f"{metric} is left out: {_unfit(name)}")
    key = "messages" if chat else "question"
    rows = [
        {"id": document.id, key: document.arguments[0][0], "target": str(document.arguments[0][1])}
        for document in documents
    ]
    return Frozen(rows, {key: key, "target": "target", "delimiter": ""}, gates, notes)


def _rolling(task: Any, documents: Sequence[Document], chat: bool, file: str) -> Frozen:
    rows: list[dict[str, Any]] = [{"id": document.id, "text": str(document.arguments[0][0])} for document in documents]
    with harness.quietly():
        scored = [
            task.process_results(document.doc, (-1.0,)) for document in documents
        ]  # likelihood and size by metric
    column = next((candidate for candidate in (None, *documents[0].doc) if _counts(scored, documents, candidate)), "")
    if column:
        rows = [{**row, "counted": document.doc[column]} for row, document in zip(rows, documents, strict=True)]
    gates: list[tuple[str, dict[str, Any]]] = []
    notes = []
    for metric, name in harness.aggregations(task).items():
        if metric not in _ROLLING or name not in ("weighted_perplexity", "bits_per_byte"):
            notes.append(f"{metric} is left out: {_unfit(name)}")
            continue
        if column == "":
            notes.append(f"{metric} is left out: the task counts words or bytes of a text that no column holds")
            continue
        marker, unit = _ROLLING[metric]
        gates.append((marker, {"protocol": "lm-eval", "add_bos_token": None, **({"unit": unit} if unit else {})}))
    return Frozen(rows, {"text": "text", **({"counted": "counted"} if column else {})}, gates, notes)


def _counts(scored: Sequence[Mapping[str, Any]], documents: Sequence[Document], column: str | None) -> bool:
    """Return whether a task counts the words and bytes of a column, or (None) of the text that is read."""
    for scores, document in zip(scored, documents, strict=True):
        text = str(document.arguments[0][0]) if column is None else document.doc[column]
        if not isinstance(text, str):
            return False
        sizes = {"word_perplexity": len(re.split(r"\s+", text))}
        expected = {name: (-1.0, sizes.get(name, len(text.encode()))) for name in _ROLLING}
        if any(scores[name] != expected[name] for name in _ROLLING if name in scores):
            return False
    return True


def _try_scoring(task: Any, document: Document, text: str = "a") -> None:
    """Have a task's own code score a text once, or say why it cannot here: a library that lacks, for example."""
    try:
        harness.scores(task, [document.doc], [text])
    except MetricInputError as error:
        raise ConfigError(f"code of its own, which cannot run here: {error}") from error


def _plain(document: Document) -> Any:
    """Return a document as JSON holds it; refuse a document that JSON cannot hold."""
    try:
        written = json.loads(json.dumps(document.doc))
    except (TypeError, ValueError) as error:
        raise ConfigError(f"code of its own reads a document {document.id} that JSON cannot hold: {error}") from error
    return written


def _unfit(aggregation: str) -> str:
    """Say why there is no gate on a metric."""
    if aggregation in _MEANS:
        return "pytest-lmgate has no such metric"
    shown = f"its aggregation {aggregation}" if aggregation else "its aggregation, code of the task,"
    return f"{shown} is not a mean over rows"
