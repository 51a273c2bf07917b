"""A gate as a record: what to measure, and the limit, the baseline or the model that judges it; nothing is loaded."""

from __future__ import annotations

import hashlib
import re
import sys
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import msgspec
from msgspec import Meta
from msgspec.structs import replace

from pytest_lmgate.errors import ConfigError, encodable, escape_controls
from pytest_lmgate.settings.gate_options import (
    ChoiceRequest,
    DivergenceRequest,
    MaskedRequest,
    SelfDivergenceRequest,
    TextRequest,
    WindowProtocol,
    fields_of,
)
from pytest_lmgate.settings.metrics import MARKERS, METRICS, NO_REGRESSION, USERS_METRIC, Direction

How = WindowProtocol | TextRequest | ChoiceRequest | MaskedRequest | DivergenceRequest | SelfDivergenceRequest
Level = Annotated[float, Meta(gt=0.5, lt=1)]


@dataclass(frozen=True)
class FixtureReference:
    """The value of the pytest fixture `name`, requested when the test runs."""

    name: str


def fixture(name: str) -> FixtureReference:
    """Stand for the value of the pytest fixture `name` in a marker.

    The fixture may return a ``(model, tokenizer)`` pair, a path, a name of lmgate.yaml, or (as a dataset) texts::

        @pytest.mark.ppl_max(lmgate.fixture("my_pair"), "wikitext2", 16.5)
    """
    if not isinstance(name, str) or not name:
        raise TypeError(f"lmgate.fixture expects the name of a pytest fixture, got {name!r}")
    return FixtureReference(name)


@dataclass(frozen=True)
class RevisedModel:
    """A model and its revision."""

    model: Any  # name, path, hub id, ``(model, tokenizer)`` pair or pipeline
    revision: str  # changed by the user when the model's code changes


def model(model: Any, tokenizer: Any = None, *, revision: str) -> RevisedModel:
    """Give a model a revision, so that its measurements are cached although its code cannot be identified.

    It goes wherever a model goes: to a fixture, into a marker, or as the value of a pytest fixture that
    ``lmgate.fixture`` names::

        def test_quality(ppl_of):
            assert ppl_of(lmgate.model(my_model, my_tokenizer, revision="2"), "wikitext2") < 16.5

    Args:
        model: A model in memory with its `tokenizer`; or a pair, a pipeline, a name of lmgate.yaml, a path or a hub id.
        tokenizer: The tokenizer of a model in memory.
        revision: Any text. Change it when the code of the model, its hooks or the session's patches change: cached
            measurements are reused as long as revision, weights and tokenizer are the same.
    """
    if not isinstance(revision, str) or not revision.strip():
        raise TypeError(f"lmgate.model expects a revision that is not empty, got {revision!r}")
    if isinstance(model, FixtureReference | RevisedModel):
        raise TypeError(
            f"lmgate.model expects a model, got {type(model).__name__}: "
            "return lmgate.model(model, tokenizer, revision=...) from the pytest fixture"
        )
    return RevisedModel(model if tokenizer is None else (model, tokenizer), revision)


_PERCENT = re.compile(r"(?P<number>(\d+(\.\d*)?|\.\d+))\s*%")


@dataclass(frozen=True)
class Tolerance:
    """The largest degradation that passes, or with `two_sided` the largest change in either direction.

    It is a size without a sign: which way is worse belongs to the metric, so the same ``"1%"`` bounds a perplexity from
    above and an accuracy from below.

    Attributes:
        size: A fraction of the reference's value (0.01 for ``"1%"``), or a number in the metric's unit; not negative.
        relative: Whether it is a fraction.
        two_sided: Whether a gain beyond it fails too, as of ``within="2%"``.
    """

    size: float
    relative: bool
    two_sided: bool = False

    @classmethod
    def parse(cls, written: object, name: str = "tolerance") -> Tolerance:
        """Read a text such as ``"1%"`` or ``"0.5%"``, or a number, from the argument `name`."""
        two_sided = name == "within"
        if isinstance(written, str):
            match = _PERCENT.fullmatch(written.strip())
            if match is None:
                raise ConfigError.of(
                    name,
                    'expected a percentage of the reference such as "1%", or a number without quotes in '
                    f"the metric's own unit, got {shown(written)}{decimal_hint(written)}",
                )
            percent = float(match["number"])
            if not percent <= 100:
                raise ConfigError.of(name, f"expected at most 100% of the reference, got {shown(written)}")
            return cls(percent / 100, relative=True, two_sided=two_sided)
        if isinstance(written, bool) or not isinstance(written, int | float):
            raise ConfigError.of(
                name,
                f'expected a percentage such as "1%" or a number, got {shown(written)} ({type(written).__name__})',
            )
        if not 0 <= written <= sys.float_info.max:
            raise ConfigError.of(
                name,
                f"expected a finite number that is not negative, got {shown(written)}; the metric defines which way is "
                "worse",
            )
        return cls(float(written), relative=False, two_sided=two_sided)

    @property
    def name(self) -> str:
        """The argument that it was given by."""
        return "within" if self.two_sided else "tolerance"

    def require_that_it_can_fail(self, metric: str, direction: Direction, span: float | None) -> None:
        """Refuse a tolerance that no candidate could exceed, as with ``tolerance=1`` for an accuracy.

        The `span` is the distance between the metric's best and worst value; None if unbounded.
        """
        largest = (1.0 if direction == "higher" or self.two_sided else None) if self.relative else span
        if largest is not None and self.size >= largest:
            is_of_gains = self.two_sided and self.relative and direction == "lower"
            raise ConfigError.of(
                self.name,
                f"expected less than {Tolerance(largest, self.relative)} for {metric}, got {self.written}: no "
                f"candidate can be {'better' if is_of_gains else 'worse'} than that, so the gate could never fail"
                f"{' by a gain' if is_of_gains else ''}",
            )

    @property
    def written(self) -> str:
        return f"{100 * self.size:.12g}%" if self.relative else f"{self.size:.12g}"

    def __str__(self) -> str:
        return f"{'±' if self.two_sided else ''}{self.written}"


def shown(value: object) -> str:
    try:
        text = repr(value)
    except ValueError:  # of a whole number with more digits than Python writes
        return "a number of thousands of digits"
    return text if len(text) <= 200 else f"{text[:200]}..."


def decimal_hint(written: object) -> str:
    """Say how to write a number with a comma, such as ``10,5``; empty for anything else."""
    if not isinstance(written, str) or not re.fullmatch(r"\s*[-+]?\d+,\d+\s*%?\s*", written):
        return ""
    return f"; a decimal has a dot: {written.strip().replace(',', '.')}"


class EvaluationSpec(msgspec.Struct, frozen=True):
    """What to measure; no limit in it."""

    metric: str
    model: Any  # name, path, hub id, fixture reference, or a pair in memory
    dataset: Any  # name, path, hub id, fixture reference, or rows
    how: How  # protocol of a perplexity, or how to measure something else

    @property
    def model_name(self) -> str:
        return _name(self.model)

    @property
    def dataset_name(self) -> str:
        return _name(self.dataset)

    @property
    def variant(self) -> str:
        """The variant of the metric, if it is not the default; else empty."""
        row = METRICS.get(self.metric)
        if row is None or row.usual is None:
            return ""
        option, usual = row.usual
        own = dict(self.how.options) if isinstance(self.how, TextRequest) else {option: getattr(self.how, option)}
        given = own.get(option, usual)
        return "" if given == usual else str(given)

    @property
    def arguments(self) -> str:
        """The other arguments that change the measurement, as in labels: ``-stride:512``; empty for defaults.

        Values that are not words, such as a line break in `stop`, are left out.
        """
        row = METRICS.get(self.metric, USERS_METRIC)
        shown = {*dict(row.fixed), *dict([row.usual] if row.usual else [])}  # by the metric, or before the bracket
        words = {
            name: _word(value, "@:" if name == "variant" else "")
            for name, value in _unusual(self.how)
            if name not in shown
        }
        return "".join(f"-{name}:{word}" for name, word in words.items() if word)

    @property
    def is_number(self) -> bool:
        return self.metric not in METRICS or METRICS[self.metric].is_number

    @property
    def reference(self) -> Any:
        return self.how.reference if isinstance(self.how, DivergenceRequest) else None

    @property
    def reference_name(self) -> str:
        return _name(self.reference)

    @property
    def model_names(self) -> list[str]:
        return [self.model_name, *([] if self.reference is None else [self.reference_name])]

    @property
    def loaded_names(self) -> list[str]:
        """Names of the models that have to be loaded or come from a fixture."""
        given = {
            _name(each): each.model if isinstance(each, RevisedModel) else each for each in (self.model, self.reference)
        }
        return [name for name, each in given.items() if isinstance(each, str | Path | FixtureReference)]

    @property
    def names(self) -> str:
        """Model, reference (if any) and dataset: ``int8-wikitext2`` or ``int8-fp16-wikitext2``."""
        return "-".join([*self.model_names, self.dataset_name])

    @property
    def given(self) -> list[Any]:
        return [self.model, self.dataset, *([] if self.reference is None else [self.reference])]

    def resolved(self, resolve: Callable[[Any], Any]) -> EvaluationSpec:
        how = self.how
        if isinstance(how, DivergenceRequest):
            how = replace(how, reference=resolve(how.reference))
        return replace(self, model=resolve(self.model), dataset=resolve(self.dataset), how=how)


class BaseGate(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What every gate has; its two kinds add the arguments that judge.

    Attributes:
        marker: Name of the marker.
        evaluation: What to measure.
    """

    marker: str
    evaluation: EvaluationSpec

    @property
    def reference(self) -> EvaluationSpec | None:
        """What to measure of the model that the gate compares with; None if it needs no second measurement."""
        return None

    @property
    def evaluations(self) -> list[EvaluationSpec]:
        return [self.evaluation, *([] if self.reference is None else [self.reference])]

    @property
    def given(self) -> list[Any]:
        """The models and the dataset."""
        return [given for what in self.evaluations for given in what.given]


class LimitGate(BaseGate, frozen=True, kw_only=True):
    """A measurement and the value that still passes.

    Attributes:
        limit: The worst value that passes, in the metric's unit.
        confidence: One-sided level, such as 0.95, of the bound that has to pass; None judges the value alone.
        advisory: Reports show a FAIL or INCONCLUSIVE, but it does not fail the build; an ERROR does.
    """

    limit: float
    confidence: Level | None = None
    advisory: bool = False

    uses_baseline = False

    @property
    def direction(self) -> Direction:
        return "higher" if self.marker.endswith("_min") else "lower"

    @property
    def label(self) -> str:
        """Short name, as in ``ppl_max[int8-wikitext2-stride:512]`` or ``rouge_min:rouge2[int8-news]``.

        It contains all arguments of the measurement, so it does not depend on other gates.
        """
        which = self.evaluation.metric if MARKERS[self.marker] is USERS_METRIC else self.evaluation.variant
        return f"{self.marker}{f':{which}' if which else ''}[{self.evaluation.names}{self.evaluation.arguments}]"


class NoRegression(BaseGate, frozen=True, kw_only=True):
    """A measurement that must not be worse than a reference's by more than a tolerance.

    Attributes:
        tolerance: How much worse passes: '5%' is 5% of the reference's value, so 2.5 points of an accuracy of 0.5; a
            number is in the metric's own unit: 1.5 for a perplexity, 0.02 for 2 points of an accuracy.
        within: Instead of a tolerance: how much the value may change in either direction, so that a gain fails too.
        against: 'baseline' for the committed baseline, or a model that is measured on the same data.
        confidence: One-sided level of the bounds that decide between PASS, FAIL and INCONCLUSIVE.
        direction: ``lower`` if smaller values are better, else ``higher``; None for a user's metric, which knows.
        same: With `against`: whether the two may have the same weights, as when only a template or config.json changed.
        advisory: Reports show a FAIL or INCONCLUSIVE, but it does not fail the build; an ERROR does.
    """

    marker: str = NO_REGRESSION
    tolerance: Tolerance | None = None
    within: Tolerance | None = None
    against: Any = "baseline"
    confidence: Level = 0.95
    direction: Direction | None = None
    same: bool = False
    advisory: bool = False

    def __post_init__(self) -> None:
        if isinstance(self.against, str) and self.against == "baseline":  # None from here on
            msgspec.structs.force_setattr(self, "against", None)
            if self.same:
                raise ConfigError.of("same", "it is about the weights of two models, so it needs against: a model")

    @property
    def allowed(self) -> Tolerance:
        """Whichever of tolerance and within was given."""
        allowed = self.tolerance or self.within
        assert allowed is not None, "decoding requires one of them"
        return allowed

    @property
    def uses_baseline(self) -> bool:
        return self.against is None

    @property
    def against_name(self) -> str:
        return _name(self.against)

    @property
    def reference(self) -> EvaluationSpec | None:
        return None if self.uses_baseline else replace(self.evaluation, model=self.against)

    @property
    def label(self) -> str:
        """Short name, as in ``no_regression:ppl[int8-wikitext2]``, or ``[int8-wikitext2-vs-fp16]`` against a model."""
        what = self.evaluation
        which = f"{what.metric}:{what.variant}" if what.variant else what.metric
        against = "" if self.uses_baseline else f"-vs-{self.against_name}"
        return f"{self.marker}:{which}[{what.names}{against}{what.arguments}]"


Gate = LimitGate | NoRegression


def untaken(label: str, taken: Collection[str]) -> str:
    """Return a unique label: a second gate with the same one gets ``#2`` before its closing bracket.

    pytest expects an id with brackets to end in one.
    """
    found, count = label, 1
    while found in taken:
        count += 1
        found = f"{label[:-1]}#{count}]"
    return found


_NAMED_ELSEWHERE = ("metric", "reference", "predictions", "references")


def _unusual(record: msgspec.Struct) -> Iterator[tuple[str, Any]]:
    """Yield the arguments of a request that differ from their defaults."""
    for field in fields_of(type(record)):
        value = getattr(record, field.name)
        if isinstance(value, msgspec.Struct):
            yield from _unusual(value)
        elif field.name == "options":
            yield from value
        elif field.name not in _NAMED_ELSEWHERE and value != field.default:
            yield field.encode_name, value


def _word(value: object, marks: str) -> str:
    """Return a value as a part of an id: a word, some digits of another text's hash, nothing for objects.

    A word may have more `marks`, such as those of the variant ``strict:pass@4``.
    """
    values = value if isinstance(value, list | tuple) else [value]
    text = ",".join(map(str, values))
    if re.fullmatch(rf"[\w.,+{marks}-]{{1,40}}", text):
        return text
    is_text = all(isinstance(each, str) for each in values)
    return hashlib.sha256(encodable(text).encode()).hexdigest()[:6] if is_text else ""


def _name(given: Any) -> str:
    if isinstance(given, FixtureReference):
        return given.name
    if isinstance(given, RevisedModel):
        return _name(given.model)
    return (
        escape_controls(str(given), line=True) if isinstance(given, str | Path) else f"in-memory {type(given).__name__}"
    )
