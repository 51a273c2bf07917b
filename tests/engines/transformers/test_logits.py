"""KL, probability differences, top-1 and NLLs of two models against a loop over whole logits in float64."""

import functools
import gc
import weakref
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from pytest_lmgate.engines import logits
from pytest_lmgate.engines.base import COLUMNS
from pytest_lmgate.engines.logits import Logits, Spool, TileShape, streamed_divergence
from pytest_lmgate.engines.logits import spool_room as room
from pytest_lmgate.engines.tokenizers import quiet
from pytest_lmgate.engines.transformers.head import VocabularyHead
from pytest_lmgate.engines.transformers.runner import TransformersRunner
from pytest_lmgate.errors import EngineError, ModelError, NonFiniteError
from pytest_lmgate.measure.divergence import ModelPair
from pytest_lmgate.windows.protocols import WindowPlan
from pytest_lmgate.windows.tokens import Streams
from tests.engines.projects import damaged
from tests.engines.transformers.measuring import measure_divergence, pair_of
from tests.models.zoo import VOCABULARY, build, documents, loaded, sliding

STREAMS = documents(50, 7, 33, 2)
PLAN = sliding(STREAMS, 32, 16)
# Soft-caps, scales, biases, a head that is not proven, state space, ALiBi.
NAMES = ("gemma2", "gpt2", "granite", "mamba", "phi")


def pair(p: Any, q: Any, **options: Any) -> ModelPair:
    return pair_of(loaded(p), loaded(q), **options)


noisy = functools.partial(damaged, noise=0.02)


def whole_logits(model: Any, streams: Streams, plan: WindowPlan) -> torch.Tensor:
    """Logits that predict each target, one window at a time; float64, shape ``[targets, vocabulary]``."""
    found = []
    with torch.no_grad(), quiet():
        for window in range(len(plan)):
            ids = torch.from_numpy(streams.ids[plan.document[window]][plan.begin[window] : plan.end[window] - 1])
            found.append(model(input_ids=ids[None], use_cache=False).logits[0, -int(plan.targets[window]) :].double())
    return torch.cat(found)


def by_hand(p: torch.Tensor, q: torch.Tensor, targets: torch.Tensor) -> NDArray[np.float64]:
    """The definition, over whole logits in float64."""
    log_p, log_q = (each.double().log_softmax(-1).numpy() for each in (p, q))
    with np.errstate(invalid="ignore"):
        kl = np.where(np.isfinite(log_p), np.exp(log_p) * (log_p - log_q), 0).sum(-1)
    same_top = p.numpy().argmax(-1) == q.numpy().argmax(-1)  # the lowest index of equals
    of_p, of_q = (each[np.arange(len(targets)), targets.numpy()] for each in (log_p, log_q))
    return np.stack([kl, np.exp(of_q) - np.exp(of_p), same_top, -of_p, -of_q], 1)


def targets_of(streams: Streams, plan: WindowPlan) -> torch.Tensor:
    rows = zip(plan.document, plan.first, plan.end, strict=True)
    return torch.from_numpy(np.concatenate([streams.ids[at][first:end] for at, first, end in rows]))


@pytest.mark.parametrize(
    ("name", "dtype"),
    [*((name, torch.float32) for name in NAMES), ("gemma2", torch.float64), ("phi", torch.float64)],
)
def test_every_number_is_that_of_a_loop_over_whole_logits(name: str, dtype: torch.dtype) -> None:
    p = build(name, dtype=dtype)
    q = noisy(p)
    expected = by_hand(whole_logits(p, STREAMS, PLAN), whole_logits(q, STREAMS, PLAN), targets_of(STREAMS, PLAN))

    # One window at a time, as the loop: in a batch the layers themselves round otherwise.
    measured = measure_divergence(pair(p, q), STREAMS, PLAN, batch_size=1)

    assert 1e-4 < expected[:, 0].mean() < 5, "the candidate must differ, and not be another model"
    rounding = (1e-6, 1e-5) if dtype == torch.float32 else (1e-11, 1e-11)
    assert measured[:, :3] == pytest.approx(expected[:, :3], rel=0, abs=rounding[0])
    assert measured[:, 3:] == pytest.approx(expected[:, 3:], rel=0, abs=rounding[1])


def test_a_model_whose_head_cannot_be_split_off_is_compared_all_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    p = build("llama")
    q = noisy(p)
    expected = measure_divergence(pair(p, q), STREAMS, PLAN)
    for model in (q, p):
        monkeypatch.setattr(model, "get_output_embeddings", lambda: None)
        for side_by_side in (True, False):
            found = measure_divergence(pair(p, q, side_by_side=side_by_side), STREAMS, PLAN)
            assert found == pytest.approx(expected, rel=1e-5, abs=1e-6)


@pytest.mark.parametrize("rounds", [1, 3])
def test_by_way_of_the_disk_the_numbers_are_the_same(rounds: int, monkeypatch: pytest.MonkeyPatch) -> None:
    p = build("llama")
    q = noisy(p)
    row = 4 * p.config.hidden_size
    monkeypatch.setattr(logits, "_MOST_BYTES", -(-int(PLAN.targets.sum()) // rounds) * row)
    loads: list[str] = []

    def load(name: str, model: Any) -> Any:
        loads.append(name)
        return TransformersRunner(loaded(model), None)

    models = ModelPair(("p", "q"), lambda: load("p", p), lambda: load("q", q), side_by_side=False)
    measured = measure_divergence(models, STREAMS, PLAN, batch_size=2)

    assert (measured == measure_divergence(pair(p, q), STREAMS, PLAN, batch_size=2)).all()
    assert loads[:2] == ["p", "q"]
    assert (len(loads) == 2) if rounds == 1 else len(loads) >= 2 * rounds


def test_the_reference_is_gone_when_the_candidate_is_loaded() -> None:
    references: list[weakref.ref[Any]] = []

    def reference() -> Any:
        model = build("llama")
        references.append(weakref.ref(model))
        return TransformersRunner(loaded(model), None)

    def candidate() -> Any:
        gc.collect()
        assert references[-1]() is None, "both models are in memory"
        return TransformersRunner(loaded(noisy(build("llama"))), None)

    measure_divergence(ModelPair(("p", "q"), reference, candidate, side_by_side=False), STREAMS, PLAN)
    assert len(references) == 1


@pytest.mark.parametrize(("where", "side_by_side"), [("reading", False), ("comparing", False), ("comparing", True)])
def test_memory_that_runs_out_halves_the_batch(where: str, side_by_side: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    p = build("llama")
    q = noisy(p)
    expected = measure_divergence(pair(p, q), STREAMS, PLAN, batch_size=1)
    # The proof that it is causal reads three at a time.
    owner, name, most = (q, "forward", 3) if where == "reading" else (logits, "streamed_divergence", PLAN.targets.max())
    plain, sizes = getattr(owner, name), []

    def scarce(*given: Any, **named: Any) -> Any:
        sizes.append(len(named["input_ids"]) if where == "reading" else len(given[2]))
        if sizes[-1] > most:
            raise torch.OutOfMemoryError("out of memory")
        return plain(*given, **named)

    monkeypatch.setattr(owner, name, scarce)
    measured = measure_divergence(pair(p, q, side_by_side=side_by_side), STREAMS, PLAN)

    assert max(sizes) > most
    assert measured == pytest.approx(expected, rel=1e-6, abs=1e-6)


@pytest.mark.parametrize("side_by_side", [True, False])
@pytest.mark.parametrize("damaged", ["p", "q"])
def test_a_damaged_model_is_an_error_that_names_it(damaged: str, side_by_side: bool) -> None:
    models = {"p": build("llama"), "q": build("llama")}
    with torch.no_grad():
        # Of a token that is no target: the sum over the vocabulary has it all the same.
        models[damaged].lm_head.weight[VOCABULARY - 1] = torch.nan

    with pytest.raises(NonFiniteError, match=f"model '{damaged}': NaN log-likelihood of token .* of 'd'"):
        measure_divergence(pair(models["p"], models["q"], side_by_side=side_by_side), STREAMS, PLAN)


def test_a_token_ruled_out_by_the_candidate_alone_is_an_error() -> None:
    p, q = build("phi"), build("phi")
    with torch.no_grad():
        q.lm_head.bias[VOCABULARY - 1] = -torch.inf

    with pytest.raises(NonFiniteError, match=r"model 'q': infinite divergence from 'p' at token .* rules out a token"):
        measure_divergence(pair(p, q), STREAMS, PLAN)
    # By the reference alone, or by both, it is none.
    assert np.isfinite(measure_divergence(pair(q, p), STREAMS, PLAN)).all()
    assert (measure_divergence(pair(q, q), STREAMS, PLAN)[:, 0] == 0).all()


def test_vocabularies_of_two_sizes_are_refused() -> None:
    with pytest.raises(ModelError, match=r"'q' has 99 entries in its vocabulary, its reference 'p' 97: .*bpb_max"):
        measure_divergence(pair(build("llama"), build("llama", vocab_size=99)), STREAMS, PLAN)


@pytest.mark.parametrize("tile", [TileShape(1, 1), TileShape(3, 4), TileShape(4, 10), TileShape(100, 100)])
def test_every_tile_gives_the_numbers_of_the_definition(tile: TileShape) -> None:
    generator = torch.Generator().manual_seed(1)
    p = 5 * torch.randn(7, 10, generator=generator)
    q = p + 0.5 * torch.randn(7, 10, generator=generator)
    targets = torch.tensor([0, 9, 4, 3, 3, 8, 5])

    measured = streamed_divergence(Logits(p, None), Logits(q, None), targets, tile).numpy()

    assert measured == pytest.approx(by_hand(p, q, targets), rel=0, abs=1e-6)


def test_the_lowest_index_wins_ties() -> None:
    first = torch.tensor([[1.0, 3.0, 3.0, 3.0], [2.0, 0.0, 0.0, 2.0]])
    other = torch.tensor([[1.0, 3.0, 2.0, 1.0], [0.0, 0.0, 0.0, 2.0]])
    targets = torch.tensor([0, 0])
    for tokens in (1, 2, 3, 4):
        found = streamed_divergence(Logits(first, None), Logits(other, None), targets, TileShape(2, tokens))
        assert found[:, COLUMNS.index("same_top")].tolist() == [1.0, 0.0]


@pytest.mark.parametrize(("offset", "sign"), [(0.0, 1), (1e3, 1), (-1e3, -1)])
def test_large_logits_and_rising_maxima_lose_nothing(offset: float, sign: int) -> None:
    p = (sign * torch.linspace(-200, 200, 64, dtype=torch.float64))[None].repeat(2, 1)
    q = p + torch.sin(torch.arange(64))
    targets = torch.tensor([0, 63])
    measured = streamed_divergence(Logits(p, None), Logits(q + offset, None), targets, TileShape(2, 4)).numpy()
    assert measured == pytest.approx(by_hand(p, q, targets), rel=1e-12, abs=1e-9)


def test_tokens_that_both_rule_out_add_nothing() -> None:
    p = torch.tensor([[-torch.inf, -torch.inf, 1.0, 2.0], [-torch.inf, 0.5, 1.0, 2.0]])
    q = torch.tensor([[-torch.inf, -torch.inf, 2.0, 2.0], [1.0, 0.5, 0.0, 2.0]])
    targets = torch.tensor([2, 3])
    measured = streamed_divergence(Logits(p, None), Logits(q, None), targets, TileShape(2, 1)).numpy()
    assert measured == pytest.approx(by_hand(p, q, targets), rel=0, abs=1e-6)


def test_the_logits_are_never_held_whole() -> None:
    made: list[int] = []

    class Watched(VocabularyHead):
        def tile(self, hidden: torch.Tensor, begin: int, end: int, buffer: torch.Tensor) -> torch.Tensor:
            made.append(end - begin)
            return super().tile(hidden, begin, end, buffer)

    head = Watched(torch.randn(1000, 4), None, None)
    states = torch.randn(40, 4)
    streamed_divergence(Logits(states, head), Logits(states, head), torch.arange(40), TileShape(16, 64))

    assert max(made) == 64


# Hidden states on disk: what is written is read, in a file without a name, within its bounds.


def test_a_full_disk_is_an_error_that_says_what_to_do() -> None:
    if not Path("/dev/full").exists():
        pytest.skip("no /dev/full, which is always full")
    with Spool(None) as file:
        file._file.close()
        with Path("/dev/full").open("wb", buffering=0) as full:
            file._file = full  # type: ignore[assignment]
            with pytest.raises(EngineError, match="No space left on device; both models do not fit in memory"):
                file.write(0, torch.ones(1000, 100))


def test_a_file_cut_short_and_a_folder_that_cannot_be_written_to_are_errors(tmp_path: Path) -> None:
    with Spool(tmp_path) as file:
        file.write(0, torch.ones(3, 2))
        with pytest.raises(EngineError, match="the file of hidden states is truncated"):
            file.read(2, 2)
    with pytest.raises(EngineError, match=r"hidden states cannot be kept in .*gone.*free some of the disk"):
        Spool(tmp_path / "gone")


def test_the_room_is_bounded_and_half_of_what_is_free(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert room(tmp_path / "none") == logits._MOST_BYTES
    for free, expected in ((2**20, 2**19), (2**50, 8 * 2**30)):
        monkeypatch.setattr(logits.shutil, "disk_usage", lambda _, free=free: SimpleNamespace(free=free))
        assert room(tmp_path) == expected
