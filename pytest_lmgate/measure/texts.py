"""Metrics of texts that a model writes: prompts fitted to the context, one generation shared by every metric."""

from __future__ import annotations

import functools
import json
from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, field
from functools import cached_property
from importlib.metadata import EntryPoint, entry_points
from numbers import Integral
from pathlib import Path
from typing import Any, ClassVar, NamedTuple, get_args

import numpy as np

from pytest_lmgate.arrays import Ints
from pytest_lmgate.cache.store import Fingerprint, StoredResult
from pytest_lmgate.data.columns import Prompt
from pytest_lmgate.engines.base import Runner, Setting
from pytest_lmgate.engines.writing import cut
from pytest_lmgate.errors import ConfigError, EngineError, MetricInputError
from pytest_lmgate.measure.loop import Job, discarded_if_unreliable, eager, prepared, run_batches
from pytest_lmgate.measure.measurement import (
    Measurement,
    MeasurementContext,
    addressed,
    digest_of,
    template_address,
    template_variables,
)
from pytest_lmgate.measure.rows import DatasetRows
from pytest_lmgate.measure.trials import require_ids
from pytest_lmgate.metrics.score import AnswerCounts, Score
from pytest_lmgate.metrics.texts import CUT, ENDED, TextMetric, found_metric, require_repeats, text_score
from pytest_lmgate.settings.entries import DatasetSpec
from pytest_lmgate.settings.extraction import THINK, MultiChoiceRegex, Preset, Steps, extracted, texts_read, words_of
from pytest_lmgate.settings.gate_options import GenerationSettings, TextRequest
from pytest_lmgate.settings.metrics import METRICS
from pytest_lmgate.version import __version__
from pytest_lmgate.windows.tokens import NO_CHATS, Chats, PromptEncoder, PromptIds, TokenizerFacts

# Raise the number whenever the code that generates may give another text.
_KIND = "texts/5"


@dataclass(frozen=True)
class TextFunction:
    """A function from prompts to texts as a system; it has no content to hash, so its texts are not kept."""

    name: str  # for messages
    # Returns a text for each prompt. A prompt is a text, or for a chat a list of messages.
    function: Callable[[list[Any]], Sequence[str]]
    # its texts by the digest of the prompts; evaluations may share them
    asked: dict[str, list[str]] = field(default_factory=dict)


def text_metric(
    request: TextRequest,
    users: Mapping[str, TextMetric],
    dataset: tuple[str, DatasetSpec] | None = None,
    folder: Path = Path(),
) -> TextMetric:
    """Make a request's metric.

    Args:
        request: What a gate asks of texts.
        users: The metrics that the user's hook registers, by name.
        dataset: Its name and entry, where it has one; a package may make metrics of the code that the entry names.
        folder: The folder of lmgate.yaml.
    """
    name = request.metric
    if name in METRICS:
        metric: TextMetric = METRICS[name].scorer()(**dict(request.options))
        return metric
    if dataset is not None and name not in users and (make := _makers().get(name.partition(".")[0])):
        made: TextMetric = make.load()(name, *dataset, folder)
        return made
    return found_metric(users, name)


@functools.cache
def _makers() -> dict[str, EntryPoint]:
    """Find what makes a metric for a dataset: ``MAKER(name, dataset, entry, folder)``, by the name before its dot.

    Packages register makers as entry points of the group ``pytest_lmgate.metrics``; this one registers ``task``.
    """
    return {maker.name: maker for maker in entry_points(group="pytest_lmgate.metrics")}


@dataclass(frozen=True)
class GeneratedTexts(Measurement["WrittenTexts"]):
    """The texts that a model generates, shared by all metrics."""

    data: DatasetRows
    asked: TextRequest
    scorer: TextMetric
    generates: ClassVar[bool] = True
    offers = ("generate",)
    kinds = ("causal", "encoder-decoder")

    def __post_init__(self) -> None:
        super().__post_init__()
        plain, honours = GenerationSettings(), self.model.honours
        for key in get_args(Setting):
            if key not in honours and getattr(self.settings, key) != getattr(plain, key):
                raise ConfigError.of(
                    key,
                    f"the engine of the model {self.model.name!r} does not support it (it supports "
                    f"{', '.join(sorted(honours)) or 'none: it is greedy'}); remove it",
                )

    @cached_property
    def settings(self) -> GenerationSettings:
        """The gate's settings; the dataset's where it has none."""
        return self.asked.generation.settings(self.data.spec)

    @cached_property
    def fingerprint(self) -> Fingerprint:
        prompts, generation = self.data.prompts_digest, self.settings.signature
        how = {**self.model.writing(), **template_address(self.model, self.data.spec, self.chats)}
        return addressed(_KIND, self.model, **how, prompts=prompts, generation=generation)

    @cached_property
    def chats(self) -> Chats:
        return self.data.chats(self.model, self.data.task.prompts)

    @cached_property
    def identity(self) -> dict[str, str]:
        # What the gate says is part of its entry in a baseline; what the dataset says is not.
        of_gate, of_data = self.asked.generation.given, self.data.spec.given
        taken = ", ".join(f"{key}={value!r}" for key, value in of_data.items() if key not in of_gate)
        return identity_of_texts(self.data, self.asked, self.scorer) | ({"generation": taken} if taken else {})

    def measure(self, context: MeasurementContext) -> WrittenTexts:
        model = self.model
        return generate(
            context.runner(model),
            self.data.task.prompts,
            self.settings,
            context.job(model.name, self.data.name, model.batch_size),
            context=model.context,
            chats=self.chats,
            has_encoder=model.kind == "encoder-decoder",
            variables=template_variables(model, self.data.spec),
        )

    def tokens(self, tokenizer: TokenizerFacts) -> int:
        return len(self.data.task.prompts) * self.settings.repeats * self.settings.max_new_tokens

    def encode(self, statistics: WrittenTexts) -> StoredResult:
        return StoredResult({}, statistics._asdict())

    def decode(self, entry: StoredResult) -> WrittenTexts:
        texts, cut = entry.facts["texts"], entry.facts["cut"]
        count = len(self.data.task.prompts) * self.settings.repeats
        kinds = [(type(text), type(each)) for text, each in zip(texts, cut, strict=True)]
        if len(kinds) != count or not {*kinds} <= {(str, bool), (str, type(None))}:
            raise ValueError(f"expected {count:,} texts, and of each whether it was cut")
        return WrittenTexts(list(texts), list(cut))

    def score(self, statistics: WrittenTexts) -> Score:
        found = score_texts(self.scorer, self.data, statistics, self._thinks(statistics))
        found.signature = found.signature.plus(*self.settings.signature.fields, ("lmgate", __version__))
        return found

    def _thinks(self, written: WrittenTexts) -> list[bool]:
        """Return of each text whether its prompt opened thoughts, which a server may leave out."""
        opened = [_opens_thoughts(prompt, self.chats.read(prompt)) for prompt in self.data.task.prompts]
        opened *= len(written.texts) // len(opened)
        return [
            opens and (is_cut is True or self.model.device != "server")
            for opens, is_cut in zip(opened, written.cut, strict=True)
        ]


def _opens_thoughts(prompt: Prompt, text: str) -> bool:
    """Return whether a prompt, which the model reads as a text, ends within thoughts; it may name their mark."""
    role, said = ("", "") if isinstance(prompt, str) else prompt[-1]
    return text.rstrip().endswith(THINK) or (role == "assistant" and THINK in said.rpartition("</think>")[2])


def score_function(function: TextFunction, rows: DatasetRows, request: TextRequest, metric: TextMetric) -> Score:
    """Score a function's texts."""
    texts = _called(function, rows.task.prompts)
    score = score_texts(metric, rows, WrittenTexts(texts, [None] * len(texts)))
    score.signature = score.signature.plus(("function", None), ("lmgate", __version__))
    return score.identified(**identity_of_texts(rows, request, metric))


def score_texts(
    metric: TextMetric, data: DatasetRows, written: WrittenTexts, thinks: Sequence[bool] | None = None
) -> Score:
    """Score the texts of a dataset's rows, or what `extract` finds in them; `thinks` says which begin with thoughts."""
    task, repeats = data.task, len(written.texts) // len(data.task.prompts)
    steps, read = require_extraction(metric, data.name, data.spec, repeats), written.texts
    if steps is not None and isinstance(steps[0], Preset) and thinks is not None:
        read = [THINK + text if begins else text for text, begins in zip(read, thinks, strict=True)]
    answers = None if steps is None else extracted(steps, read, task.rows, name=data.name)
    if answers is not None and metric.counts != "missing" and not any(answer.found for answer in answers):
        which = f" by {metric.extraction!r}" if metric.extraction else ""
        raise MetricInputError(
            f"dataset {data.name!r}: extract: expected an answer in some text, got none in {len(answers):,}{which}; "
            f"the first text is {written.texts[0]!r:.200}: look at the texts and the steps, or gate the share of rows "
            "without an answer by invalid_max"
        )
    scored, is_of_texts = written.texts, answers is None and metric.counts != "cut"
    if answers is not None:
        scored = [answer.text if answer.found or metric.counts != "missing" else "" for answer in answers]
    elif metric.counts == "cut":
        if None in written.cut:
            raise MetricInputError(
                f"dataset {data.name!r}: cut: whether a text was cut at max_new_tokens is not known: some engines do "
                "not say, and a function cannot"
            )
        scored = [CUT if is_cut else ENDED for is_cut in written.cut]
    found = text_score(
        metric,
        scored,
        task.references,
        rows=task.rows,
        clusters=data.clusters,
        groups=data.groups,
        prompts=list(map(_shown, task.prompts)),
        outputs=None if is_of_texts else written.texts,
        repeats=repeats if answers is None else len(answers) // len(task.prompts),
    )
    if data.spec.average_by is not None:
        found.signature = found.signature.plus(("average_by", data.spec.average_by))
    if steps is not None:
        found.signature = found.signature.plus(("extract", words_of(steps)))
    count = len(written.texts if answers is None else answers)
    cut = None if None in written.cut else sum(any(written.cut[each::count]) for each in range(count))
    without = None if answers is None else sum(not answer.found for answer in answers)
    found.details = {**found.details, "answers": AnswerCounts(count, without, cut)}
    return found


def require_extraction(metric: TextMetric, name: str, spec: DatasetSpec, repeats: int) -> Steps | None:
    """Return the steps by which a metric reads the texts of a dataset; None if it reads them whole."""
    if metric.counts == "missing" and spec.extract is None:
        raise ConfigError(f"dataset {name!r}: {metric.name} needs extract:, the steps that find an answer in a text")
    steps = _steps(metric, spec)
    needed = 0 if steps is None else texts_read(steps)
    if steps is not None and needed > repeats:
        raise ConfigError(
            f"dataset {name!r}: extract: {words_of(steps)}: expected repeats={needed} or more, the texts of each row, "
            f"got {repeats}; set repeats, temperature and seed"
        )
    if needed and metric.of_repeats is not None:
        raise ConfigError(
            f"{metric.signature}: it needs several answers of a row, but extract: {words_of(steps or ())} makes one of "
            f"all texts; choose another extraction of the dataset {name!r}"
        )
    require_repeats(metric, 1 if needed else repeats)
    return steps


def _steps(metric: TextMetric, spec: DatasetSpec) -> Steps | None:
    return None if metric.counts == "cut" else spec.steps(metric.extraction)


def _shown(prompt: Prompt) -> str:
    return prompt if isinstance(prompt, str) else "\n".join(f"{role}: {content}" for role, content in prompt)


def _called(source: TextFunction, prompts: Sequence[Prompt]) -> list[str]:
    if (digest := digest_of(prompts)) in source.asked:
        return source.asked[digest]
    plain = [
        prompt if isinstance(prompt, str) else [{"role": role, "content": content} for role, content in prompt]
        for prompt in prompts
    ]
    texts = source.function(plain)
    # A mapping would be read as its keys, a set in any order.
    if isinstance(texts, str | Mapping | Set) or not isinstance(texts, Iterable):
        raise EngineError(f"{source.name}: expected a list of texts, one per prompt, got {type(texts).__name__}")
    listed = list(texts)
    for row, text in enumerate(listed):
        if not isinstance(text, str):
            raise EngineError(f"{source.name}: row {row}: expected a text, got {type(text).__name__} {text!r:.60}")
    if len(listed) != len(prompts):
        raise EngineError(f"{source.name}: expected a text for each of {len(prompts)} prompts, got {len(listed)}")
    source.asked[digest] = listed
    return listed


def identity_of_texts(rows: DatasetRows, request: TextRequest, metric: TextMetric) -> dict[str, str]:
    """Return what a comparison must share: the data, and a user's own metric, which may use any column."""
    task = rows.task
    parts: list[Any] = [task.prompts, task.references]
    if request.metric not in METRICS:
        columns = [dict(row) for row in task.rows]
        parts.append(json.dumps(columns, ensure_ascii=False, default=lambda cell: type(cell).__name__))
    parts += rows.parts
    # A version in a user's signature is the metric's own, which changes the number.
    own = {} if request.metric in METRICS else {"metric": metric.signature}
    if (steps := _steps(metric, rows.spec)) is not None:
        choices = [step.choices for step in steps if isinstance(step, MultiChoiceRegex)]
        parts += [[row.get(column) for row in task.rows] for column in choices]
        own["extract"] = words_of(steps)
    return {"data": digest_of(parts), **own}


class WrittenTexts(NamedTuple):
    """The texts of all rows, and whether each was cut at ``max_new_tokens``; None where the engine does not say."""

    texts: list[str]
    cut: list[bool | None]


# A tokenizer cuts a written text into at most 2 tokens more than were written, measured on three of random tokens.
_OTHERWISE_CUT = 8


def generate(
    runner: Runner,
    prompts: Sequence[Prompt],
    settings: GenerationSettings,
    job: Job,
    *,
    context: int | None,
    chats: Chats = NO_CHATS,
    has_encoder: bool = False,
    variables: Mapping[str, Any] | None = None,
) -> WrittenTexts:
    """Generate a text for each prompt, or `repeats` of them: the first of each prompt, then the second, and so on.

    In float32 a text does not depend on the batch, unless two tokens' logits are equal to within rounding (about 1e-6
    of their size). A `context` limits prompt and text together; with an encoder, each of them.
    """
    encoder = prompt_encoder(runner.tokenizer, settings, job, context, has_encoder=has_encoder)
    once = [tuple(encoder.encode(chats.read(each), row)) for row, each in enumerate(prompts)]
    require_ids(once, job.model)
    # A sample depends on the seed and its place in this list.
    asked = [*zip(prompts, once, strict=True)] * settings.repeats
    encoded = [PromptIds(at, prompt, ids, len(prompts), variables or {}) for at, (prompt, ids) in enumerate(asked)]

    def write(asked: Sequence[PromptIds]) -> list[_Text]:
        return _checked(runner.generate(asked, settings), asked, settings, runner.tokenizer, job.model)

    found = written_rows(runner, encoded, settings, job, write)
    return WrittenTexts([str(text) for text, _ in found], [cut for _, cut in found])


def written_rows(
    runner: Runner,
    prompts: Sequence[PromptIds],
    settings: GenerationSettings,
    job: Job,
    write: Callable[[Sequence[PromptIds]], Sequence[tuple[Any, int]]],
) -> list[Any]:
    """Return what `write` gives of each prompt, as JSON has it; it returns that with the number of tokens written."""
    rows = _Rows(prompts, settings, job.dataset)
    sink = _RowSink(len(prompts), job.partial)
    job.say_resumed(sink.done, sink.of)
    with discarded_if_unreliable(job), runner.measuring():
        longest_first = [rows.prompts[row] for row in rows.order]
        batching = prepared(job.model, rows, lambda: runner.prepare_writing(longest_first, settings), job)
        run = eager(lambda some: write([rows.prompts[row] for row in some]))
        run_batches(rows, run, sink, batching, job)
    return [sink.rows[row] for row in range(len(prompts))]


_Text = tuple[tuple[str, bool | None], int]


def _checked(
    found: Any, asked: Sequence[PromptIds], settings: GenerationSettings, tokenizer: TokenizerFacts, model: str
) -> list[_Text]:
    """Return the texts up to the first stop string, whether they were cut there, and their numbers of tokens."""
    if not isinstance(found, list | tuple):
        kind = type(found).__name__
        raise EngineError(f"model {model!r}: expected a list of texts with their numbers of tokens, got {kind}")
    texts, most = [], settings.max_new_tokens
    for prompt, each in zip(asked, found, strict=False):  # the loop counts them
        where = f"model {model!r}: {prompt.place}"
        match each:
            case (str(text), Integral() as count, *rest) if not rest or (len(rest) == 1 and isinstance(rest[0], bool)):
                said, has_ended = int(count), rest[0] if rest else None
            case _:
                raise EngineError(f"{where}: expected a text and its number of tokens, got {each!r:.60}")
        # Other tokens may make the same text; a broken character has several spellings.
        own = len(tokenizer.encode(text.replace("\N{REPLACEMENT CHARACTER}", ""), False))
        if said > most or own > most + most // 4 + _OTHERWISE_CUT:
            raise EngineError(
                f"{where}: a text of {said if said > most else own:,} tokens, but {most:,} were asked for "
                "(max_new_tokens): its engine must end the text there"
            )
        kept, is_cut = cut(text, settings.stop), None if has_ended is None else not has_ended
        # A server may have a limit of its own, below `most`.
        if kept != text or (has_ended is None and 0 < said < most):
            is_cut = False
        texts.append(((kept, is_cut), said or own))
    return texts


def prompt_encoder(
    tokenizer: TokenizerFacts, settings: GenerationSettings, job: Job, context: int | None, *, has_encoder: bool = False
) -> PromptEncoder:
    """Return what encodes prompts for which the context has room, or refuse to write that many tokens."""
    new = settings.max_new_tokens
    make = functools.partial(
        PromptEncoder, tokenizer, job.model, job.dataset, cut=settings.truncate == "left", encodes_whole=has_encoder
    )
    if context is None:
        return make()
    # A decoder begins with a token of its own, a causal model with the last of the prompt.
    if new >= context:
        raise ConfigError(
            f"max_new_tokens: the model {job.model!r} has a context of {context:,} tokens and can write "
            f"{context - 1:,} at most, got {new:,}"
        )
    if has_encoder:
        return make(room=context, limit=f"context {context:,}", remedy="; shorten it, or use truncate='left'")
    limit, remedy = f"context {context:,}, max_new_tokens {new:,}", "; shorten it, lower max_new_tokens, or use "
    return make(room=context - new, limit=limit, remedy=remedy + "truncate='left'")


@dataclass(frozen=True)
class _Rows:
    """Prompts as items of the loop, with the lengths of prompt and text for all beams."""

    prompts: Sequence[PromptIds]
    settings: GenerationSettings
    dataset: str
    may_pad = True

    @functools.cached_property
    def lengths(self) -> Ints:
        tokens = np.array([len(prompt.ids) for prompt in self.prompts], dtype=np.int64)
        return (tokens + self.settings.max_new_tokens) * self.settings.num_beams

    @property
    def reads(self) -> Ints:
        return np.arange(len(self.prompts))

    @functools.cached_property
    def order(self) -> Ints:
        return np.argsort(-self.lengths, kind="stable")

    def describe(self, some: Sequence[int]) -> str:
        more = f", and {len(some) - 1} more" if len(some) > 1 else ""
        return f"{self.prompts[some[0]].place} of {self.dataset!r}, {len(self.prompts[some[0]].ids):,} tokens{more}"


class _RowSink:
    """What was written, by row, as it comes in; see `ResultSink`."""

    total = 0.0

    def __init__(self, rows: int, partial: StoredResult | None) -> None:
        known = {} if partial is None else partial.facts.get("texts", {})
        self.rows: dict[int, Any] = {int(row): each for row, each in known.items() if 0 <= int(row) < rows}
        self.of, self.tokens = rows, 0

    @property
    def done(self) -> int:
        return len(self.rows)

    @property
    def so_far(self) -> str:
        return f"{self.done:,} of {self.of:,} texts"

    @property
    def entry(self) -> StoredResult:
        return StoredResult({}, {"texts": {str(row): each for row, each in self.rows.items()}})

    def is_done(self, item: int) -> bool:
        return item in self.rows

    def put(self, items: Sequence[int], results: Sequence[tuple[Any, int]]) -> None:
        for row, (written, tokens) in zip(items, results, strict=True):
            self.rows[row] = written
            self.tokens += tokens
