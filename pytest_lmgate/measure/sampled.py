"""Divergence by sampling: a model writes texts, and the probabilities of their tokens are compared.

`SelfDivergences` has a model write and then read what it wrote; it keeps the texts. `SampledDivergences` has another
model read the texts of its reference. Both need one number of a token, so that any engine will do, and each side may
have its own. How the numbers make an estimate is in `metrics.divergence`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from functools import cached_property

import numpy as np

from pytest_lmgate.arrays import Ints
from pytest_lmgate.cache.store import Fingerprint
from pytest_lmgate.data.corpus import Corpus
from pytest_lmgate.engines.base import Drawn, Model
from pytest_lmgate.errors import EngineError, ModelError
from pytest_lmgate.measure.divergence import require_same_tokens
from pytest_lmgate.measure.loop import Job, score_requests
from pytest_lmgate.measure.measurement import (
    MeasurementContext,
    TargetMeasurement,
    addressed,
    digest_of_targets,
    identity_of,
    template_address,
)
from pytest_lmgate.measure.rows import DatasetRows
from pytest_lmgate.measure.texts import prompt_encoder, written_rows
from pytest_lmgate.measure.trials import require_ids
from pytest_lmgate.metrics.divergence import SampledStatistics, WrittenStatistics
from pytest_lmgate.metrics.likelihoods import TargetLayout
from pytest_lmgate.metrics.score import Score
from pytest_lmgate.settings.gate_options import DivergenceRequest, GenerationSettings, SelfDivergenceRequest, Signature
from pytest_lmgate.version import __version__
from pytest_lmgate.windows.protocols import WindowPlan, beginning
from pytest_lmgate.windows.requests import Requests, window_requests
from pytest_lmgate.windows.tokens import NO_CHATS, Chats, Framing, PromptIds, Streams, TokenizerFacts

# Raise a number whenever the code that measures may give another result.
_SELF, _SAMPLED = "self-divergence/2", "sampled-divergence/2"
# Of a document, the tokens that are a prompt; and the seed of all texts.
_PROMPT_TOKENS, _SEED = 32, 0
_LOWEST = -1e-3  # rounding may put the NLL of a certain token below 0


@dataclass(frozen=True)
class SelfDivergences(TargetMeasurement[WrittenStatistics]):
    """NLLs of tokens that a model draws, as it writes and as it reads them in one pass.

    The prompts are those of the dataset, or the beginnings of its documents.
    """

    data: Corpus | DatasetRows
    asked: SelfDivergenceRequest
    kept = WrittenStatistics
    offers = ("sample", "score")

    @property
    def settings(self) -> GenerationSettings:
        truncate = self.data.spec.truncate if isinstance(self.data, DatasetRows) else None
        tokens = self.asked.max_new_tokens
        return GenerationSettings(max_new_tokens=tokens, seed=_SEED, temperature=1.0, truncate=truncate)

    @cached_property
    def fingerprint(self) -> Fingerprint:
        how = dict(self.model.writing())
        if isinstance(self.data, DatasetRows):
            how |= template_address(self.model, self.data.spec, self.chats)
        return addressed(_SELF, self.model, **how, **self.identity, generation=self.settings.signature)

    @cached_property
    def chats(self) -> Chats:
        if isinstance(self.data, Corpus):
            return NO_CHATS
        return self.data.chats(self.model, self.data.prompts)

    @cached_property
    def identity(self) -> dict[str, str]:
        return {"data": self.data.prompts_digest if isinstance(self.data, DatasetRows) else self.data.digest}

    @property
    def signature(self) -> Signature:
        how = {"estimator": "sampled", "max_new_tokens": str(self.asked.max_new_tokens), "seed": str(_SEED)}
        return Signature([*how.items(), ("version", __version__)])

    def measure(self, context: MeasurementContext) -> WrittenStatistics:
        runner, model, settings = context.runner(self.model), self.model, self.settings
        job = context.job(model.name, self.data.name, model.batch_size)
        prompts = self.prompts(runner.tokenizer)
        require_ids((prompt.ids for prompt in prompts), model.name)

        def write(asked: Sequence[PromptIds]) -> list[tuple[Drawn, int]]:
            found = [_checked(each, settings, model.name) for each in runner.sample(asked, settings)]
            return [(each, len(each[0])) for each in found]

        drawn: list[Drawn] = written_rows(runner, prompts, settings, job, write)
        texts = [np.array([*prompt.ids, *ids], dtype=np.int64) for prompt, (ids, _) in zip(prompts, drawn, strict=True)]
        begins = np.array([len(prompt.ids) for prompt in prompts], dtype=np.int64)
        counts = np.array([len(ids) for ids, _ in drawn], dtype=np.int64)
        # What was kept of the writing is no part of what the reading keeps.
        reading = replace(job, partial=None, keep=None)
        found = score_requests(runner, requests_of(texts, begins, runner.tokenizer, self.data.name), reading)
        return WrittenStatistics(
            nll_p=np.concatenate([nll for _, nll in drawn]).astype(np.float64),
            nll_q=found.nll,
            ids=np.concatenate(texts),
            prompt_tokens=begins,
            window_targets=counts,
            window_document=np.arange(len(counts)),
            running_text=False,
            # The beginnings of one running text are no rows.
            row_targets=None if isinstance(self.data, Corpus) and self.data.is_one_text else counts,
            targets=digest_of_targets(texts),
        )

    def prompts(self, tokenizer: TokenizerFacts) -> list[PromptIds]:
        """Return what the model goes on from; of one running text, the beginning of each part as long as a text."""
        data, model, settings = self.data, self.model, self.settings
        encoder = prompt_encoder(tokenizer, settings, Job(model=model.name, dataset=data.name), model.context)
        if isinstance(data, DatasetRows):
            prompts = enumerate(data.prompts)
            read = self.chats.read
            return [PromptIds(row, prompt, tuple(encoder.encode(read(prompt), row))) for row, prompt in prompts]
        framing, data = Framing.of(tokenizer.encode), beginning(data, tokenizer)
        most = min(_PROMPT_TOKENS, _PROMPT_TOKENS if encoder.room is None else encoder.room - len(framing.prefix))
        if data.is_one_text:
            ids = tokenizer.ids(data.join.join(data.rows), special=False)
            begun = [ids[at : at + most] for at in range(0, len(ids), most + settings.max_new_tokens)]
        else:
            begun = [tokenizer.ids(data.rows[row], special=False)[:most] for row in data.documents]
        texts = [framing.around(framing.once(ids.tolist()), suffix=False) for ids in begun]
        return [PromptIds(row, "", tuple(text)) for row, text in enumerate(texts)]

    def clusters(self, tokenizer: TokenizerFacts) -> tuple[int, str]:
        is_one_text = isinstance(self.data, Corpus) and self.data.is_one_text
        return len(self.prompts(tokenizer)), "blocks" if is_one_text else "rows"

    def tokens(self, tokenizer: TokenizerFacts) -> int:
        prompts = self.prompts(tokenizer)
        return sum(len(prompt.ids) for prompt in prompts) + len(prompts) * self.settings.max_new_tokens

    def score(self, statistics: WrittenStatistics) -> Score:
        return self.metric_score(statistics)


@dataclass(frozen=True)
class SampledDivergences(TargetMeasurement[SampledStatistics]):
    """NLLs of tokens that the reference draws, under the reference and under a model, each as it reads them."""

    data: Corpus | DatasetRows
    asked: DivergenceRequest
    reference: Model
    kept = SampledStatistics

    def __post_init__(self) -> None:
        super().__post_init__()
        _ = self.written

    @cached_property
    def written(self) -> SelfDivergences:
        """The reference's texts, which all its candidates read."""
        tokens = self.asked.max_new_tokens
        asked = SelfDivergenceRequest() if tokens is None else SelfDivergenceRequest(tokens)
        return SelfDivergences(self.metric, self.reference, self.data, asked)

    @property
    def models(self) -> tuple[Model, ...]:
        return self.model, self.reference

    @property
    def chats(self) -> Chats:
        return self.written.chats

    @cached_property
    def fingerprint(self) -> Fingerprint:
        reference = {f"reference/{key}": value for key, value in self.written.fingerprint.ingredients}
        candidate = {f"candidate/{key}": value for key, value in self.model.ingredients.items()}
        return Fingerprint.of(_SAMPLED, {**candidate, **reference})

    @property
    def identity(self) -> dict[str, str]:
        return {**self.written.identity, "reference": identity_of(self.reference)}

    @property
    def signature(self) -> Signature:
        return Signature([("KL(reference, model)", None), *self.written.signature.fields])

    def measure(self, context: MeasurementContext) -> SampledStatistics:
        texts: WrittenStatistics = context.measured(self.written)
        runner, model, name = context.runner(self.model), self.model, self.data.name
        ids = np.split(texts.ids, np.cumsum(texts.prompt_tokens + texts.window_targets)[:-1])
        theirs = self.reference.tokenizer
        tokenizers = runner.tokenizer, theirs() if theirs else context.runner(self.reference).tokenizer
        # Chat templates may differ: the candidate reads the reference's.
        is_chat = isinstance(self.data, DatasetRows) and self.data.spec.is_chat

        def same() -> bool:
            return is_chat or self.written.prompts(tokenizers[0]) == self.written.prompts(tokenizers[1])

        require_same_tokens(self.models, tokenizers, name, same)
        requests = requests_of(ids, texts.prompt_tokens, runner.tokenizer, name)
        if model.context is not None and (longest := int(requests.lengths.max())) > model.context:
            raise ModelError(
                f"model {model.name!r} reads {model.context:,} tokens, but its reference {self.reference.name!r} wrote "
                f"a text that is {longest:,} tokens long with its prompt: lower max_new_tokens, or shorten the prompts"
            )
        found = score_requests(context.runner(model), requests, context.job(model.name, name, model.batch_size))
        layout = {each.name: getattr(texts, each.name) for each in fields(TargetLayout)}
        return SampledStatistics(nll_p=texts.nll_q, nll_q=found.nll, **layout)

    def clusters(self, tokenizer: TokenizerFacts) -> tuple[int, str]:
        return self.written.clusters(tokenizer)

    def tokens(self, tokenizer: TokenizerFacts) -> int:
        return self.written.tokens(tokenizer)

    def score(self, statistics: SampledStatistics) -> Score:
        found = self.metric_score(statistics)
        found.details = {"reference": self.reference.name, **found.details}
        return found


def requests_of(texts: Sequence[Ints], begins: Ints, tokenizer: TokenizerFacts, dataset: str) -> Requests:
    """Return the requests that score each text from the token at which it begins behind its prompt."""
    row, ends = np.arange(len(texts)), np.array([len(ids) for ids in texts], dtype=np.int64)
    plan = WindowPlan(row, np.zeros_like(ends), ends, begins, np.zeros(len(texts), dtype=bool))

    def where(window: int, target: int) -> str:
        token = int(texts[window][begins[window] + target])
        return f"the token {tokenizer.decode(token)!r} (id {token}), number {target} of text {window} of {dataset!r}"

    return replace(window_requests(Streams(texts), plan, dataset), where=where)


def _checked(drawn: Drawn, settings: GenerationSettings, model: str) -> Drawn:
    """Return tokens that an engine drew, as plain numbers; an `EngineError` if they cannot be that."""
    ids, nll = [int(token) for token in drawn[0]], [float(value) for value in drawn[1]]
    if not 0 < len(ids) <= settings.max_new_tokens or len(ids) != len(nll):
        raise EngineError(
            f"model {model!r}: expected 1 to {settings.max_new_tokens:,} tokens that it draws with an NLL each, got "
            f"{len(ids):,} tokens and {len(nll):,} NLLs"
        )
    if not all(_LOWEST <= value < np.inf for value in nll):
        raise EngineError(f"model {model!r}: expected finite NLLs from 0 of the tokens that it draws, got {min(nll)}")
    return ids, nll
