"""Windows of every protocol: properties that hold for any length, and naive loops written from docs/protocols.md."""

import functools
from collections import Counter
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from pytest_lmgate.settings.gate_options import PROTOCOL_RULES, Windowing
from pytest_lmgate.windows.protocols import PROTOCOLS, WindowPlan, plan_windows

BOS = -1
lengths = st.integers(0, 60)
windows = st.tuples(st.integers(2, 20), st.integers(1, 20)).filter(lambda pair: pair[1] <= pair[0])

# What a naive loop says of one window: the tokens read (BOS, or positions in the text), and the positions scored.
Naive = list[tuple[list[int], list[int]]]


def as_naive(plan: WindowPlan) -> Naive:
    """What the windows of a plan read and score, where the last target is not fed."""
    found = []
    for begin, end, first, prefix in zip(plan.begin, plan.end, plan.first, plan.prefix, strict=True):
        read = [BOS] * bool(prefix) + list(range(begin, end - 1))
        found.append((read, list(range(first, end))))
    return found


def naive_sliding(total: int, length: int, stride: int) -> Naive:
    """As the Hugging Face page has it: the windows overlap, targets already scored are masked with -100."""
    found, previous_end = [], 0
    for begin in range(0, total, stride):
        end = min(begin + length, total)
        target_length = end - previous_end
        labels = list(range(begin, end))
        labels[:-target_length] = [-100] * (len(labels) - target_length)
        # The model shifts the labels: what stands at position i is predicted from those before it.
        scored = [label for label in labels[1:] if label != -100]
        if scored:
            found.append((list(range(begin, end - 1)), scored))
        previous_end = end
        if end == total:
            break
    return found


def naive_chunks(total: int, length: int, *, bos: bool) -> Naive:
    found = []
    for start in range(0, total, length):
        chunk = list(range(start, start + length))
        if chunk[-1] >= total:
            break
        found.append(([BOS, *chunk[:-1]], chunk) if bos else (chunk[:-1], chunk[1:]))
    return found


def naive_llama_cpp(total: int, length: int, *, adds_bos: bool) -> Naive:
    """The stream begins with a BOS if the tokenizer adds one; token 0 of each chunk is replaced by it."""
    stream = [BOS] * adds_bos + list(range(total))
    found = []
    for chunk in range(len(stream) // length):
        tokens = stream[chunk * length : (chunk + 1) * length]
        if adds_bos:
            tokens[0] = BOS
        first = length // 2 + 1
        if tokens[first:]:
            found.append((tokens[:-1], tokens[first:]))
    return found


@pytest.mark.parametrize(
    ("protocol", "naive"),
    [
        ("disjoint", lambda total, length: naive_sliding(total, length, length)),
        ("bos-chunks", functools.partial(naive_chunks, bos=True)),
        ("gptq", functools.partial(naive_chunks, bos=False)),
    ],
)
@given(total=lengths, length=st.integers(2, 20))
def test_windows_without_a_stride_equal_the_naive_loop(
    protocol: str, naive: Callable[[int, int], Naive], total: int, length: int
) -> None:
    assert as_naive(plan_windows(Windowing(protocol, length, length), [total])) == naive(total, length)


@given(total=lengths, length=st.integers(2, 20), adds_bos=st.booleans())
def test_llama_cpp_scores_the_later_half_of_every_full_chunk(total: int, length: int, adds_bos: bool) -> None:
    plan = plan_windows(Windowing("llama.cpp", length, length), [total], adds_bos=adds_bos)
    assert as_naive(plan) == naive_llama_cpp(total, length, adds_bos=adds_bos)
    assert set(plan.targets) <= {length - 1 - length // 2}


@pytest.mark.parametrize(("protocol", "most"), [("sliding", 1), ("document", 6)])
@given(data=st.data(), window=windows)
def test_overlapping_windows_equal_the_published_loop_for_each_document_alone(
    protocol: str, most: int, data: st.DataObject, window: tuple[int, int]
) -> None:
    totals = data.draw(st.lists(lengths, max_size=most))
    plan = plan_windows(Windowing(protocol, *window), totals)
    alone = [naive_sliding(total, *window) for total in totals]
    assert as_naive(plan) == [window for windows in alone for window in windows]
    assert plan.document.tolist() == [index for index, windows in enumerate(alone) for _ in windows]


@settings(max_examples=150)
@given(
    protocol=st.sampled_from(sorted(PROTOCOLS)),
    totals=st.lists(lengths, max_size=5),
    window=windows,
    adds_bos=st.booleans(),
)
def test_what_holds_for_every_protocol(
    protocol: str, totals: list[int], window: tuple[int, int], adds_bos: bool
) -> None:
    length, stride = window if PROTOCOL_RULES[protocol].has_stride else (window[0], window[0])
    assume(PROTOCOL_RULES[protocol].by_document or len(totals) == 1)

    plan = plan_windows(Windowing(protocol, length, stride), totals, adds_bos=adds_bos)

    scored = Counter(
        (int(document), target)
        for document, (_, targets) in zip(plan.document, as_naive(plan), strict=True)
        for target in targets
    )
    assert max(scored.values(), default=1) == 1, "a target is scored once"
    assert (plan.targets > 0).all(), "no window without a target"
    assert (plan.reads > 0).all(), "nothing is scored from nothing"
    assert (plan.reads <= length).all(), "nothing is read beyond the context"
    assert (plan.first >= plan.begin + (~plan.prefix)).all(), "every target has something before it"
    assert (plan.begin >= 0).all()
    assert (plan.end <= np.array(totals, dtype=np.int64)[plan.document]).all()
    order = list(zip(plan.document, plan.first, strict=True))
    assert order == sorted(order), "windows come in the order of the text"
    if protocol in ("sliding", "disjoint", "document", "lm-eval"):
        every = {(document, at) for document, total in enumerate(totals) for at in range(total)}
        # Windows that do not overlap have nothing before their first token, nor has the text's own without a BOS.
        alone = {(document, at) for document, at in every if at == 0 or (stride == length and at % stride == 0)}
        assert set(scored) == (every if protocol == "lm-eval" else every - alone), "every other target is scored"
    for edges in (plan.document, plan.begin, plan.end, plan.first):
        assert edges.dtype == np.int64
    assert plan.prefix.dtype == np.bool_
