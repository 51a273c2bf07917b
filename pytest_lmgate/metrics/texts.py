"""Metrics of texts: `TextMetric`, the check of what is scored, and from texts to a `Score`.

A `TextMetric` turns texts into one vector of additive statistics per row. Score, noise, paired test and worst rows all
come from that vector, so texts are read once. Users' metrics have the same parts as those here; `sacrebleu_metrics` and
`rouge` have the others.

References are listed per row, ``references[row] -> that row's references``; rows may differ in how many they have, and
None instead of a reference is passed over.
"""

from __future__ import annotations

import json
import math
import re
import string
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from decimal import Decimal
from functools import partial
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from pytest_lmgate.arrays import Floats, Ints
from pytest_lmgate.errors import ConfigError, MetricInputError
from pytest_lmgate.metrics.score import Score, ScoredRow
from pytest_lmgate.settings.extraction import compiled
from pytest_lmgate.settings.gate_options import Signature
from pytest_lmgate.settings.metrics import METRICS, RESERVED, Direction, metric_hint
from pytest_lmgate.stats.bootstrap import (
    RESAMPLES,
    SEED,
    cluster_sums,
    percentile_interval,
    resampled_scores,
    resampled_sums,
)
from pytest_lmgate.stats.sample import ByRow, Sample, Scale, cluster_numbers

References = Sequence[Sequence[str]]
Rows = Sequence[Mapping[str, Any]]
RowStatistics = Callable[[Sequence[str], References, Rows], ArrayLike]
Value = Callable[[Floats], float]
Details = Callable[[Floats], Mapping[str, Any]]

_NAME = re.compile(r"[a-z][A-Za-z0-9_.]*")


def ratio(sums: Floats) -> float:
    """``sums[0] / sums[-1]``, a mean over the count in the last column; NaN if that is 0."""
    return float(sums[0] / sums[-1]) if sums[-1] else float("nan")


@dataclass(frozen=True)
class TextMetric:
    """A metric of texts.

    Attributes:
        name: Such as ``bleu``: a lower-case letter, then letters, digits, dots and underscores.
        direction: ``higher`` if larger values are better, else ``lower``.
        signature: One line that reproduces the number: a label, then ``key:value`` fields, all separated by ``|``.
        statistics: A pure function from predictions, references and rows to an array ``[rows, k]`` of finite numbers
            that can be summed over rows.
        value: A function from statistics summed over rows, shape ``[k]``, to the number. The default is `ratio`, a mean
            over the count in the last column (1 per row), whose noise has a closed form.
        row_value: A function from one row's statistics to its own number, to find the worst rows; by default `value`.
        details: A function from summed statistics to further figures by name (plain numbers, strings, lists).
        needs_references: Whether a row without references is an error.
        right_or_wrong: Whether the number is a share of right rows: each row's statistics are ``[0, 1]`` or ``[1, 1]``,
            and the noise is that of counts (docs/noise.md).
        lowest: The lowest possible value; no interval goes below it.
        highest: The highest possible value; no interval goes above it.
        extraction: Name of the dataset's extraction whose answers it reads; empty for the first, where it has one.
        counts: What it is a share of: ``missing`` answers, which it reads as empty texts, or texts that were ``cut`` at
            max_new_tokens, which it reads as `CUT`, and others as `ENDED`. Empty for a metric of the texts themselves:
            for that it is an error if no row has an answer.
        of_repeats: Where a row has several texts: a function from these and their statistics ``[texts, k]`` to the
            statistics ``[k]`` of the row. By default a row has the mean of its texts.
        least_repeats: How many texts of each row it needs.
        hint: From the references to what a user should know of this metric on such texts; empty if nothing.

    Raises:
        ConfigError: A field is wrong.
    """

    name: str
    direction: Direction
    signature: str
    statistics: RowStatistics
    value: Value = ratio
    row_value: Value | None = None
    details: Details | None = None
    needs_references: bool = True
    right_or_wrong: bool = False
    lowest: float = -math.inf
    highest: float = math.inf
    extraction: str = ""
    counts: Literal["", "missing", "cut"] = ""
    of_repeats: Callable[[Sequence[str], Floats], ArrayLike] | None = None
    least_repeats: int = 1
    hint: Callable[[References], str] | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.name, str) or not _NAME.fullmatch(self.name):
            raise ConfigError(
                "expected a text metric's name to be a letter in lower case, then letters, digits, dots or "
                f"underscores (as in 'keyword_recall'), got {self.name!r}"
            )
        wrong = ""
        if self.direction not in ("higher", "lower"):
            wrong = f"expected direction 'higher' (larger is better) or 'lower', got {self.direction!r}"
        elif not isinstance(self.signature, str) or not self.signature or "\n" in self.signature:
            wrong = f"expected a one-line signature that describes the number, got {self.signature!r}"
        for field in ("statistics", "value", "row_value", "details"):
            given = getattr(self, field)
            if not callable(given) and (given is not None or field in ("statistics", "value")):
                wrong = wrong or f"expected {field} to be a function, got {type(given).__name__}"
        if self.right_or_wrong and not self.is_mean:
            wrong = wrong or "right_or_wrong is for a share of rows, which has no `value` of its own"
        if not isinstance(self.extraction, str):
            wrong = wrong or f"expected extraction to be the name of one, got {self.extraction!r}"
        if wrong:
            raise ConfigError(f"text metric {self.name!r}: {wrong}")

    @property
    def is_mean(self) -> bool:
        return self.value is ratio

    def signed(self, references: References) -> str:
        """Return the signature with the number of references per row after the label, ``var`` if rows differ.

        As in sacrebleu: ``BLEU|nrefs:2|case:mixed|...``.
        """
        counts = {len(of_row) for of_row in references}
        label, bar, fields = self.signature.partition("|")
        return f"{label}|nrefs:{counts.pop() if len(counts) == 1 else 'var'}{bar}{fields}"


class Texts(NamedTuple):
    """Predictions, the references of each and the dataset's rows they came from: three lists of equal length."""

    predictions: list[str]
    references: list[list[str]]
    rows: list[Mapping[str, Any]]


def text_score(
    metric: TextMetric,
    predictions: Sequence[str],
    references: Sequence[Sequence[str]] | None,
    *,
    rows: Sequence[Mapping[str, Any]] | None = None,
    clusters: Sequence[Hashable] | None = None,
    groups: Sequence[Hashable] | None = None,
    prompts: Sequence[str] = (),
    outputs: Sequence[str] | None = None,
    repeats: int = 1,
) -> Score:
    """Score a system's predictions, one per row; rows may have different numbers of references.

    A metric may look at other columns of the dataset's `rows`. Labelled `clusters` are not independent; of labelled
    `groups` the means are averaged. `prompts` and `outputs`, from which predictions were extracted, are shown with the
    worst rows. With `repeats`, the predictions are the first of all rows, then the second of all rows, and so on.

    The score is in the metric's own scale; `n` counts rows. A mean over rows has the standard error and interval of
    `stats.means`, a share of right rows Wilson's interval, every other metric those of 1,000 resamples with seed 12345.
    The details hold the metric's own figures, what the noise was judged by, and the ``worst`` five rows.
    """
    require_repeats(metric, repeats)
    if repeats > 1:
        references, rows = (None if texts is None else [*texts] * repeats for texts in (references, rows))
    texts = checked_texts(predictions, references, rows, needs_references=metric.needs_references)
    statistics = _statistics(metric, texts)
    further = _details(metric, statistics.sum(axis=0))
    if repeats > 1:
        metric, statistics = _of_rows(metric, statistics, texts.predictions, repeats)
    total: Floats = statistics.sum(axis=0)
    value = _number(metric, metric.value(total))
    if not math.isfinite(value):
        raise MetricInputError(
            f"text metric {metric.name!r}: expected a finite value, got {value} from the sums {total.tolist()}: "
            "let its `value` return a finite number for them"
        )
    sample = _sample(metric, statistics, cluster_numbers(clusters, len(statistics)), groups)
    if groups is not None:
        value = sample.value()
    scores = row_scores(metric, statistics)

    def show_row(row: int) -> ScoredRow:
        output = None if outputs is None else outputs[row]
        prompt, references = prompts[row] if prompts else "", tuple(texts.references[row])
        return ScoredRow(row, float(scores[row]), texts.predictions[row], references, prompt, output)

    # NaN, a row that alone has no score, sorts behind all others; equals are in the order of the data.
    worst = np.argsort(scores if metric.direction == "higher" else -scores, kind="stable")[:5]
    details = {**further, "worst": tuple(show_row(row) for row in worst.tolist())}
    if metric.hint and (hint := metric.hint(texts.references)):
        details["hint"] = hint
    stderr, interval, judged_by = _noise(metric, sample)
    return Score(
        value,
        metric=metric.name,
        unit="row",
        direction=metric.direction,
        n=len(statistics),
        stderr=stderr,
        interval=interval,
        signature=Signature.parse(metric.signed(texts.references)),
        details=details | judged_by,
        sample=sample,
        show_row=show_row,
    )


def _noise(metric: TextMetric, sample: Sample) -> tuple[float | None, tuple[float, float] | None, dict[str, Any]]:
    """Return standard error and interval, None with too few clusters, and what they were judged by."""
    if metric.is_mean:
        noise = sample.noise()
        return noise.stderr, sample.interval, {"clusters": noise.clusters, "df": noise.df}
    clusters = {"clusters": len(sample.sums)}
    if len(sample.sums) < 2:
        return None, None, clusters
    scores = resampled_scores(metric, resampled_sums(sample.sums))
    error, interval = float(scores.std(ddof=1)), percentile_interval(scores)
    return error, interval, {**clusters, "resamples": RESAMPLES, "seed": SEED}


def require_repeats(metric: TextMetric, repeats: int) -> None:
    """Raise a ConfigError if a metric needs more texts of each row than there are."""
    if repeats < metric.least_repeats:
        raise ConfigError(
            f"{metric.name}: {metric.signature}: expected repeats={metric.least_repeats} or more, the texts of each "
            f"row, got {repeats}; set repeats, temperature and seed"
        )


def _of_rows(
    metric: TextMetric, statistics: Floats, predictions: Sequence[str], repeats: int
) -> tuple[TextMetric, Floats]:
    """Return the metric of rows and their statistics, shape ``[rows, k]``, from the statistics of their texts."""
    rows = len(statistics) // repeats
    of_texts = statistics.reshape(repeats, rows, -1)
    # Counts must stay whole numbers.
    has_one = metric.is_mean and bool((statistics[:, -1] == 1).all())
    if metric.of_repeats is not None:
        arrays = [metric.of_repeats(predictions[row::rows], of_texts[:, row]) for row in range(rows)]
        of_rows = np.array(arrays, dtype=np.float64)
    else:
        of_rows = of_texts.mean(axis=0) if has_one else of_texts.sum(axis=0)
    # Where the texts of every row agree, Student's interval would have no width.
    is_share = has_one and (metric.lowest, metric.highest) == (0, 1)
    return replace(metric, right_or_wrong=is_share and bool(np.isin(of_rows[:, 0], (0, 1)).all())), of_rows


def row_scores(metric: TextMetric, statistics: Floats) -> Floats:
    """Return each row's own score, shape ``[rows]``, from statistics ``[rows, k]``; NaN if undefined for a row."""
    value, field = (metric.row_value, "row_value") if metric.row_value else (metric.value, "value")
    return np.array([_number(metric, value(of_row), field) for of_row in statistics], dtype=np.float64)


def _sample(metric: TextMetric, statistics: Floats, clusters: Ints, groups: Sequence[Hashable] | None) -> Sample:
    if groups is not None and not (metric.is_mean and (statistics[:, -1] == 1).all()):
        raise MetricInputError(
            f"average_by: {metric.name} is not a mean over rows, so it cannot be averaged by group; add a second "
            "dataset entry without average_by:"
        )
    if not metric.is_mean:
        ones = np.ones(len(clusters), dtype=np.int64)
        by_row = ByRow(statistics, ones, clusters)
        return Sample(cluster_sums(statistics, clusters), np.bincount(clusters), metric=metric, by_row=by_row)
    scale = Scale(metric.direction, lowest=metric.lowest, highest=metric.highest, of_rows=True)
    by_row = ByRow(statistics[:, :1], statistics[:, -1].astype(np.int64), clusters)
    return Sample.of_means(by_row, scale, right_or_wrong=metric.right_or_wrong, groups=groups)


def checked_texts(
    predictions: Sequence[str],
    references: Sequence[Sequence[str]] | None,
    rows: Sequence[Mapping[str, Any]] | None = None,
    *,
    needs_references: bool = True,
) -> Texts:
    """Return the texts as plain lists, with empty rows by default."""
    outputs = _listed(predictions, "predictions", str)
    if not outputs:
        raise MetricInputError("expected at least one prediction, got none: is the dataset empty?")
    if references is None and needs_references:
        raise MetricInputError(
            "expected references, got None: pass a list of references for each prediction, "
            "or name the dataset's reference columns"
        )
    listed = [()] * len(outputs) if references is None else _listed(references, "references", object)
    if len(listed) != len(outputs):
        raise MetricInputError(
            f"expected references of {len(outputs)} rows, a list for each prediction, got {len(listed)} "
            "(sacrebleu lists them per stream: here it is list(zip(*streams)))"
        )
    of_rows = []
    for row, of_row in enumerate(listed):
        texts = _listed(() if of_row is None else of_row, f"row {row}: references", str | None)
        of_rows.append([text for text in texts if text is not None])
        if needs_references and not of_rows[-1]:
            raise MetricInputError(
                f"row {row}: expected at least one reference, got none: give one, or leave the row out"
            )
        if needs_references and len(of_rows[-1]) > 1 and not all(map(str.strip, of_rows[-1])):
            raise MetricInputError(
                f"row {row}: one of its {len(of_rows[-1])} references is empty, so that a system which says nothing "
                "would be right: remove it, or write null for a reference that is missing"
            )
    columns = [{} for _ in outputs] if rows is None else _listed(rows, "rows", Mapping)
    if len(columns) != len(outputs):
        raise MetricInputError(f"expected rows of {len(outputs)} predictions, got {len(columns)}")
    return Texts(outputs, of_rows, columns)


def _listed(given: Any, what: str, kind: Any) -> list[Any]:
    """Return the given value as a list; refuse elements of another kind."""
    words = {str: "strings", object: "lists of strings", Mapping: "mappings"}.get(kind, "strings, as in [text]")
    if isinstance(given, str | bytes | Mapping) or not isinstance(given, Iterable):
        raise MetricInputError(f"expected {what} to be a list of {words}, got {type(given).__name__} {given!r:.60}")
    listed = list(given)
    for row, item in enumerate(listed):
        if not isinstance(item, kind):
            raise MetricInputError(
                f"expected {what} to be a list of {words}, got {type(item).__name__} {item!r:.60} at index {row}"
            )
    return listed


def _statistics(metric: TextMetric, texts: Texts) -> Floats:
    """Run a metric over texts; refuse statistics that are not finite, additive numbers of each row."""
    where, count = f"text metric {metric.name!r}", len(texts.predictions)
    returned: Any = metric.statistics(*texts)
    try:
        statistics = np.array(returned, dtype=np.float64)
    except (TypeError, ValueError) as error:
        raise MetricInputError(
            f"{where}: expected its statistics to be an array of numbers [rows, k], "
            f"got {type(returned).__name__} ({error})"
        ) from error
    least = 2 if metric.is_mean else 1
    if statistics.ndim != 2 or len(statistics) != count or statistics.shape[1] < least:
        also = ", the last column counting what the mean is over (1 for each row)" if metric.is_mean else ""
        raise MetricInputError(
            f"{where}: expected statistics of shape [{count}, k] with k >= {least}{also}; got {list(statistics.shape)}"
        )
    first, last = statistics[:, 0], statistics[:, -1]
    if len(bad := np.argwhere(~np.isfinite(statistics))):
        row, column = bad[0]
        raise MetricInputError(
            f"{where}: expected finite statistics, got {statistics[row, column]} in row {row}, column {column} "
            f"({len(bad)} in all)"
        )
    if metric.is_mean and len(odd := np.flatnonzero((last < 0) | (last != np.floor(last)))):
        raise MetricInputError(
            f"{where}: expected the last column to count what the mean is over, whole numbers from 0, "
            f"got {last[odd[0]]:g} in row {odd[0]}; give the metric a `value` of its own if it is not a mean"
        )
    if metric.is_mean and not last.any():
        raise MetricInputError(
            f"{where}: expected a count above 0 in some row to take the mean over, got 0 in every row"
        )
    if metric.right_or_wrong and len(odd := np.flatnonzero((last != 1) | ~np.isin(first, (0, 1)))):
        raise MetricInputError(
            f"{where}: expected each row's statistics to be [0, 1] or [1, 1], because it is right_or_wrong; got "
            f"{statistics[odd[0]].tolist()} in row {odd[0]}"
        )
    return statistics


def _number(metric: TextMetric, returned: Any, field: str = "value") -> float:
    """Return a metric's number, any kind of real number, as a float; it need not be finite."""
    if isinstance(returned, float):  # nearly always; this is called for every resample
        return float(returned)
    try:
        if returned is None or isinstance(returned, str | bytes) or np.ndim(returned) or np.iscomplexobj(returned):
            raise TypeError
        return float(returned)
    except (TypeError, ValueError, OverflowError) as error:
        raise MetricInputError(
            f"text metric {metric.name!r}: expected its {field} to be a number, got {type(returned).__name__} "
            f"{returned!r:.60}"
        ) from error


def _details(metric: TextMetric, sums: Floats) -> dict[str, Any]:
    """Return a metric's further figures by name; none if it defines none."""
    if metric.details is None:
        return {}
    returned: Any = metric.details(sums)
    if not isinstance(returned, Mapping) or not all(isinstance(key, str) for key in returned):
        raise MetricInputError(
            f"text metric {metric.name!r}: expected its details to be a mapping from names to figures, "
            f"got {type(returned).__name__} {returned!r:.60}"
        )
    return dict(returned)


def require_flags(metric: str, **options: object) -> None:
    """Refuse an option that is neither true nor false; a string such as 'no' would be true."""
    for option, given in options.items():
        if not isinstance(given, bool):
            raise ConfigError(f"{metric}: expected {option} to be true or false, got {given!r}")


def exact(
    ignore_case: bool = False,
    ignore_punctuation: bool = False,
    ignore_numbers: bool = False,
    ignore: str | Sequence[str] = (),
    numeric: bool = False,
    strip: bool = True,
    variant: str = "",
) -> TextMetric:
    """Make exact match, scale 0-1; a row matches if its text equals any reference.

    What is ignored is removed from both as ``exact_match`` of lm-evaluation-harness 0.4.13 does, in this order:
    patterns, case, punctuation, digits. With ``strip=False`` the number is that metric's.

    Args:
        ignore_case: Compare texts in lower case.
        ignore_punctuation: Remove ASCII punctuation.
        ignore_numbers: Remove the digits 0 to 9.
        ignore: Regular expressions, or one, whose matches are removed (``regexes_to_ignore``).
        numeric: Compare numbers as numbers: 1,000 equals 1000.0 and $1e3. A number has a sign, a currency sign, commas
            between thousands, a decimal point, an exponent and a full stop behind it, all of them optional. A text
            that is no number is wrong; a reference that is none is an error.
        strip: Remove white space at both ends, as the last step.
        variant: Name of the dataset's extraction whose answers are compared; by default the first. Where rows have
            several texts (`repeats`), ``pass@k`` is the chance that one of k texts matches, estimated without bias by
            ``1 - C(n - c, k) / C(n, k)`` from c matches of n (Chen et al. 2021, arXiv 2107.03374, equation 1), and
            ``majority`` the match of the most frequent answer, of equals the first; after a name as ``NAME:pass@k``.

    Returns:
        Statistics ``[match, 1]``. Details: ``matches``, of all texts.

    Raises:
        ConfigError: An option is not true or false, or a pattern does not compile.
    """
    flags = {"ignore_case": ignore_case, "ignore_punctuation": ignore_punctuation, "ignore_numbers": ignore_numbers}
    require_flags("exact", **flags, numeric=numeric, strip=strip)
    ignored = (ignore,) if isinstance(ignore, str) else tuple(ignore) if isinstance(ignore, list | tuple) else (ignore,)
    if not all(isinstance(pattern, str) and pattern for pattern in ignored):
        raise ConfigError.of("ignore", f"expected a regular expression, or a list of them, got {ignore!r}")
    patterns = [compiled(pattern, "ignore") for pattern in ignored]
    repeats = _OF_REPEATS.fullmatch(variant) if isinstance(variant, str) else None
    k = int(repeats["k"] or 0) if repeats else 0
    removed = str.maketrans("", "", string.punctuation * ignore_punctuation + string.digits * ignore_numbers)

    def plain(text: str) -> str:
        for pattern in patterns:
            text = pattern.sub("", text)
        text = (text.lower() if ignore_case else text).translate(removed)
        return text.strip() if strip else text

    def reference_of(text: str, row: int) -> Any:
        if (patterns or removed) and not plain(text).strip():
            raise MetricInputError(
                f"exact: row {row}: nothing is left of the reference {text!r:.80} without what is ignored, so that any "
                "text of which nothing is left would be right: ignore less, or leave the row out"
            )
        if numeric and (value := number_in(plain(text))) is None:
            raise MetricInputError(f"exact: numeric: row {row}: expected a number as the reference, got {text!r:.80}")
        return value if numeric else plain(text)

    read: Callable[[str], Any] = (lambda text: number_in(plain(text))) if numeric else plain

    def voted(texts: Sequence[str], matches: Floats) -> Floats:
        answers = list(map(read, texts))
        of_most: Floats = matches[answers.index(Counter(answers).most_common(1)[0][0])]
        return of_most

    def statistics(predictions: Sequence[str], references: References, rows: Sequence[Mapping[str, Any]]) -> Floats:
        expected = [[reference_of(text, row) for text in of_row] for row, of_row in enumerate(references)]
        matches = [read(output) in of_row for output, of_row in zip(predictions, expected, strict=True)]
        return np.stack([np.array(matches, dtype=np.float64), np.ones(len(matches))], axis=1)

    case, punct = "lower" if ignore_case else "mixed", "no-ascii" if ignore_punctuation else "yes"
    signature = f"exact|case:{case}|punct:{punct}|strip:{'yes' if strip else 'no'}"
    signature += "|numbers:no" * ignore_numbers + "|numeric:yes" * numeric
    # As JSON, without the bar that separates fields.
    signature += f"|ignore:{json.dumps(ignored).replace('|', chr(92) + 'u007c')}" if ignored else ""
    signature += f"|variant:{repeats['how']}" if repeats else ""
    return TextMetric(
        name="exact",
        direction="higher",
        signature=signature,
        statistics=statistics,
        details=lambda sums: {"matches": int(sums[0])},
        right_or_wrong=not k,
        lowest=0,
        highest=1,
        extraction=repeats["name"] or "" if repeats else variant,
        of_repeats=(partial(_passed, k=k) if k else voted) if repeats else None,
        least_repeats=max(2, k) if repeats else 1,
    )


def _passed(texts: Sequence[str], matches: Floats, *, k: int) -> list[float]:
    wrong = len(texts) - int(matches[:, 0].sum())
    return [1 - math.comb(wrong, k) / math.comb(len(texts), k), 1]


_OF_REPEATS = re.compile(r"((?P<name>.+):)?(?P<how>pass@(?P<k>[1-9]\d{0,3})|majority)")
_NUMBER = re.compile(
    r"(?P<sign>[-+]?)[$€£¥]?\s?(?P<more>[-+]?)(?P<digits>(\d{1,3}(,\d{3})+|\d+)?(\.\d+)?)(?P<exponent>[eE][-+]?\d{1,4})?\.?",
    re.ASCII,
)


def number_in(text: str) -> Decimal | None:
    """Return a text as a number; None if it is not a number. `exact` describes the numbers."""
    match = _NUMBER.fullmatch(text.strip().replace("\N{MINUS SIGN}", "-"))
    if match is None or not match["digits"] or (match["sign"] and match["more"]):
        return None
    return Decimal(match["sign"] + match["more"] + match["digits"].replace(",", "") + (match["exponent"] or ""))


def invalid(variant: str = "") -> TextMetric:
    """Make the share of rows in whose text no answer was found: ``extract:`` fell back, or the answer is empty.

    Args:
        variant: Name of the dataset's extraction; by default the first.

    Returns:
        Statistics ``[no answer, 1]``. Details: ``without``.
    """
    metric = _share("invalid", lambda texts: [not text.strip() for text in texts], "without")
    return replace(metric, extraction=variant, counts="missing")


CUT, ENDED = "cut at max_new_tokens", "ended"


def cut() -> TextMetric:
    """Make the share of texts that end because they have ``max_new_tokens`` tokens.

    Returns:
        Statistics ``[cut, 1]``. Details: ``cut``.
    """

    def are_cut(marks: Sequence[str]) -> list[bool]:
        if not {CUT, ENDED}.issuperset(marks):
            raise MetricInputError("cut: only a model's own texts say whether they were cut, not given predictions")
        return [mark == CUT for mark in marks]

    return replace(_share("cut", are_cut, "cut"), counts="cut")


def _share(name: str, are_counted: Callable[[Sequence[str]], list[bool]], detail: str) -> TextMetric:
    """Make a share of rows, of which fewer are better, from a function that says which texts count."""

    def statistics(predictions: Sequence[str], references: References, rows: Sequence[Mapping[str, Any]]) -> Floats:
        counted = np.array(are_counted(predictions), dtype=np.float64)
        return np.stack([counted, np.ones(len(counted))], axis=1)

    return TextMetric(
        name=name,
        direction="lower",
        signature=name,
        statistics=statistics,
        details=lambda sums: {detail: int(sums[0])},
        needs_references=False,
        right_or_wrong=True,
        lowest=0,
        highest=1,
    )


def collected_metrics(metrics: Iterable[TextMetric]) -> dict[str, TextMetric]:
    """Return the metrics of the ``pytest_lmgate_metrics`` hooks by name, in their order."""
    by_name: dict[str, TextMetric] = {}
    for metric in metrics:
        if not isinstance(metric, TextMetric):
            raise ConfigError(
                f"pytest_lmgate_metrics: expected TextMetric objects, got {type(metric).__name__} {metric!r:.80}"
            )
        if metric.name in RESERVED:
            raise ConfigError(
                f"pytest_lmgate_metrics: the name {metric.name!r} is that of a built-in metric: choose another"
            )
        if metric.name in by_name:
            raise ConfigError(
                f"pytest_lmgate_metrics: two metrics are named {metric.name!r}, with the signatures "
                f"{by_name[metric.name].signature!r} and {metric.signature!r}: rename one"
            )
        by_name[metric.name] = metric
    return by_name


def found_metric(metrics: Mapping[str, TextMetric], name: str) -> TextMetric:
    """Return the user's metric of that name; ConfigError if there is none."""
    if name in metrics:
        return metrics[name]
    if name in RESERVED:
        raise ConfigError(f"{name!r} is a built-in metric: use its own markers and fixture")
    names = ", ".join(sorted(metrics)) or "none (the hook pytest_lmgate_metrics registers them)"
    built_in = sorted(row.name for row in METRICS.values() if row.is_number)
    raise ConfigError.of(
        "metric",
        f"expected a registered metric, got {name!r}{metric_hint(name, metrics)}; registered: {names}; built in: "
        f"{', '.join(built_in)}",
    )
