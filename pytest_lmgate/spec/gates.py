"""What a gate asks: what to measure (`EvaluationSpec`), and what to judge it by, a limit (`Gate`) or a reference."""

from __future__ import annotations

__all__ = ["EvaluationSpec", "Gate", "How", "NoRegression", "untaken"]

import hashlib
import re
from collections.abc import Callable, Collection
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

from pytest_lmgate.config.arguments.fixture import FixtureReference
from pytest_lmgate.config.arguments.revision import RevisedModel
from pytest_lmgate.config.arguments.tolerance import Tolerance
from pytest_lmgate.errors import encodable, harmless_line
from pytest_lmgate.metrics.table import MARKERS, METRICS, USERS_METRIC
from pytest_lmgate.spec.arguments import NO_REGRESSION
from pytest_lmgate.spec.protocol import Protocol
from pytest_lmgate.spec.requests import ChoiceRequest, DivergenceRequest, MaskedRequest, TextRequest

How = Protocol | TextRequest | ChoiceRequest | MaskedRequest | DivergenceRequest


@dataclass(frozen=True)
class EvaluationSpec:
    """What to measure; no limit in it.

    Attributes:
        model: Name, path, hub id, fixture reference, or a pair in memory.
        dataset: Name, path, hub id, fixture reference, or rows.
        how: Protocol of a perplexity, or how to measure something else.
    """

    metric: str
    model: Any
    dataset: Any
    how: How

    @property
    def model_name(self) -> str:
        """The model as the user wrote it."""
        return _name(self.model)

    @property
    def dataset_name(self) -> str:
        """The dataset as the user wrote it."""
        return _name(self.dataset)

    @property
    def variant(self) -> str:
        """Which of the metrics that share a name, where it is not the usual one; else empty."""
        row = METRICS.get(self.metric)
        if row is None or row.usual is None:
            return ""
        option, usual = row.usual
        own = dict(self.how.options) if isinstance(self.how, TextRequest) else vars(self.how)
        said = own.get(option, usual)
        return "" if said == usual else str(said)

    @property
    def arguments(self) -> str:
        """What else changes the measurement, as labels have it: ``-stride:512``; empty for the usual arguments.

        Values that are no words, such as a line break to stop at, are left out.
        """
        row, how = METRICS.get(self.metric, USERS_METRIC), self.how
        if isinstance(how, TextRequest):
            said = {**dict(how.options), **_unusual(how.generation)}
        else:
            said = _unusual(how.protocol if isinstance(how, DivergenceRequest) else how)
        told = {*dict(row.fixed), *dict([row.usual] if row.usual else [])}  # by the metric, or before the bracket
        words = {name: _word(value) for name, value in said.items() if name not in told}
        return "".join(f"-{'protocol' if name == 'name' else name}:{word}" for name, word in words.items() if word)

    @property
    def is_number(self) -> bool:
        """Whether one number is asked for, not a table of them."""
        return self.metric not in METRICS or METRICS[self.metric].is_number

    @property
    def reference(self) -> Any:
        """The model that is compared with, where the metric is of two; else None."""
        return self.how.reference if isinstance(self.how, DivergenceRequest) else None

    @property
    def reference_name(self) -> str:
        """The model that is compared with, as the user wrote it."""
        return _name(self.reference)

    @property
    def model_names(self) -> list[str]:
        """All models that are measured, as the user wrote them."""
        return [self.model_name, *([] if self.reference is None else [self.reference_name])]

    @property
    def loaded_names(self) -> list[str]:
        """Those of the models that have to be loaded, or come from a fixture: not of what is in memory already."""
        given = {
            _name(each): each.model if isinstance(each, RevisedModel) else each for each in (self.model, self.reference)
        }
        return [name for name, each in given.items() if isinstance(each, str | Path | FixtureReference)]

    @property
    def names(self) -> str:
        """Model, reference where there is one, and dataset, as in ``int8-wikitext2`` or ``int8-fp16-wikitext2``."""
        return "-".join([*self.model_names, self.dataset_name])

    @property
    def given(self) -> list[Any]:
        """Models and dataset, as given."""
        return [self.model, self.dataset, *([] if self.reference is None else [self.reference])]

    def resolved(self, resolve: Callable[[Any], Any]) -> EvaluationSpec:
        """Return the same with models and dataset replaced by what `resolve` makes of them."""
        how = self.how
        if isinstance(how, DivergenceRequest):
            how = replace(how, reference=resolve(how.reference))
        return replace(self, model=resolve(self.model), dataset=resolve(self.dataset), how=how)


@dataclass(frozen=True)
class Gate:
    """A measurement and the value that still passes.

    Attributes:
        limit: Finite; must be positive, except for metrics that can be zero or negative.
        confidence: One-sided level at which a bound of the value must be within the limit; None to judge the value.
    """

    marker: str
    evaluation: EvaluationSpec
    limit: float
    confidence: float | None = None

    uses_baseline = False

    @property
    def evaluations(self) -> list[EvaluationSpec]:
        """All that the gate evaluates."""
        return [self.evaluation]

    @property
    def direction(self) -> str:
        """``lower`` where smaller values pass, else ``higher``."""
        return "higher" if self.marker.endswith("_min") else "lower"

    @property
    def label(self) -> str:
        """Short name, as in ``ppl_max[int8-wikitext2-stride:512]`` or ``rouge_min:rouge2[int8-news]``.

        It says all that tells what is measured, so that no other gate decides how this one is called.
        """
        which = self.evaluation.metric if MARKERS[self.marker] is USERS_METRIC else self.evaluation.variant
        return f"{self.marker}{f':{which}' if which else ''}[{self.evaluation.names}{self.evaluation.arguments}]"


@dataclass(frozen=True)
class NoRegression:
    """A measurement that must not be worse than a reference's by more than a tolerance.

    Attributes:
        against: The reference model; None for the committed baseline.
        tolerance: Largest degradation let pass.
        confidence: One-sided level of the bounds.
        direction: ``lower`` where smaller values are better, else ``higher``; None for a user's metric, which knows.
    """

    evaluation: EvaluationSpec
    against: Any
    tolerance: Tolerance
    confidence: float
    direction: str | None

    marker = NO_REGRESSION

    @property
    def uses_baseline(self) -> bool:
        """Whether the gate is judged by the committed baseline."""
        return self.against is None

    @property
    def reference(self) -> EvaluationSpec | None:
        """What to measure of the reference model; None for the committed baseline."""
        return None if self.against is None else replace(self.evaluation, model=self.against)

    @property
    def evaluations(self) -> list[EvaluationSpec]:
        """All that the gate evaluates."""
        return [self.evaluation, *([] if self.reference is None else [self.reference])]

    @property
    def label(self) -> str:
        """Short name, as in ``no_regression:ppl[int8-wikitext2]``, or ``[int8-wikitext2-vs-fp16]`` against a model."""
        what = self.evaluation
        which = f"{what.metric}:{what.variant}" if what.variant else what.metric
        against = "" if self.against is None else f"-vs-{_name(self.against)}"
        return f"{self.marker}:{which}[{what.names}{against}{what.arguments}]"


def untaken(label: str, taken: Collection[str]) -> str:
    """Return a label that is not taken yet: another gate of the same one has ``#2`` before its bracket.

    pytest takes an id with brackets to end in one.
    """
    found, count = label, 1
    while found in taken:
        count += 1
        found = f"{label[:-1]}#{count}]"
    return found


def _unusual(record: Any) -> dict[str, Any]:
    """Return the fields of a dataclass that have not their defaults."""
    found = {field.name: getattr(record, field.name) for field in fields(record)}
    return {field.name: found[field.name] for field in fields(record) if found[field.name] != field.default}


def _word(value: object) -> str:
    """Return a value as a part of an id; of texts that are no words, some digits of their hash; of objects, nothing."""
    values = value if isinstance(value, list | tuple) else [value]
    text = ",".join(map(str, values))
    if re.fullmatch(r"[\w.,+-]{1,40}", text):
        return text
    return (
        hashlib.sha256(encodable(text).encode()).hexdigest()[:6]
        if all(isinstance(each, str) for each in values)
        else ""
    )


def _name(given: Any) -> str:
    if isinstance(given, FixtureReference):
        return given.name
    if isinstance(given, RevisedModel):
        return _name(given.model)
    return harmless_line(str(given)) if isinstance(given, str | Path) else f"in-memory {type(given).__name__}"
