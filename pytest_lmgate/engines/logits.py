"""Logits of two models, compared at each target: divergence of a candidate q from a reference p, in tiles.

One pass over the tiles of both vocabularies is enough, and hidden states can be kept on disk.

Per position, ``KL(p || q) = sum_i p_i (log p_i - log q_i)`` in nats over the full vocabulary. With the logits x and y,
shifted by their running maxima a and b (Milakov and Gimelshein 2018, arXiv 1805.02867), three sums are kept:
``P = sum e^(x-a)``, ``Q = sum e^(y-b)`` and ``S = sum e^(x-a) ((x-a) - (y-b))``, whence ``KL = S/P - log P + log Q``.
When a maximum rises by d_a or d_b, ``S`` becomes ``e^-d_a (S + P (d_b - d_a))``. Equal logits make S zero and P equal
to Q, so the divergence of a model from itself is exactly zero.
"""

from __future__ import annotations

import contextlib
import shutil
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from pytest_lmgate.arrays import Floats, Ints
from pytest_lmgate.engines.base import COLUMNS
from pytest_lmgate.engines.devices import sent, wide, within_memory
from pytest_lmgate.errors import EngineError

LogitTransform = Callable[[Tensor], Tensor]

# A spool grows no larger than this, nor than half of the free disk; a longer text is measured in several rounds.
_MOST_BYTES = 8 * 2**30


class TileShape(NamedTuple):
    """How much of the logits exists at a time: positions and tokens of the vocabulary."""

    rows: int
    tokens: int


def tile_shape(device: torch.device) -> TileShape:
    """Return the tile for a device: 2 MiB of float32 on a CPU (a second-level cache), 128 MiB on an accelerator."""
    return TileShape(1024, 512) if device.type == "cpu" else TileShape(8192, 4096)


def vocabulary_tiles(
    targets: Tensor, vocabulary: int, tokens: int, device: torch.device
) -> Iterator[tuple[int, int, Tensor, Tensor]]:
    """Yield the begin and end of each tile of a vocabulary, the rows whose target lies in it, their columns in it.

    The targets, shape ``[rows]``, are sorted on the host, so that it never waits for the device.
    """
    order = targets.argsort()
    in_order = targets[order]
    bounds = torch.searchsorted(in_order, torch.arange(0, vocabulary + tokens, tokens)).tolist()
    order, in_order = sent(order, device), sent(in_order, device)
    for index, begin in enumerate(range(0, vocabulary, tokens)):
        part = slice(bounds[index], bounds[index + 1])
        yield begin, min(begin + tokens, vocabulary), order[part], in_order[part] - begin


@dataclass(frozen=True)
class VocabularyHead:
    """A linear head with an elementwise transform behind it."""

    weight: Tensor  # shape ``[vocabulary, hidden]``
    bias: Tensor | None  # shape ``[vocabulary]``, or None
    transform: LogitTransform | None  # In-place map from the linear output to the logit, or None

    @property
    def vocabulary_size(self) -> int:
        return self.weight.shape[0]

    @property
    def dtype(self) -> torch.dtype:
        return self.weight.dtype

    def every(self, step: int) -> VocabularyHead:
        """Return the head of the tokens ``0, step, 2 * step, ...`` alone."""
        return VocabularyHead(self.weight[::step], None if self.bias is None else self.bias[::step], self.transform)

    def tile(self, hidden: Tensor, begin: int, end: int, buffer: Tensor) -> Tensor:
        """Return the logits of the tokens ``begin..end-1``, shape ``[positions, end - begin]``, in float32 or better.

        `hidden` has the shape ``[positions, hidden]`` and the head's dtype, as has `buffer`, which may hold the logits.
        """
        out = buffer[: hidden.shape[0] * (end - begin)].view(hidden.shape[0], end - begin)
        weight = self.weight[begin:end].t()
        if self.bias is None:
            torch.mm(hidden, weight, out=out)
        else:
            torch.addmm(self.bias[begin:end], hidden, weight, out=out)
        return self._finished(out)

    def at(self, hidden: Tensor, targets: Tensor) -> Tensor:
        """Return about the logit of one target per position, shape ``[positions]``; that of `tile` is exact."""
        raw = (hidden * self.weight[targets]).sum(-1)
        if self.bias is not None:
            raw = raw + self.bias[targets]
        return self._finished(raw)

    def _finished(self, product: Tensor) -> Tensor:
        logits = product if product.dtype in (torch.float32, torch.float64) else product.float()
        return logits if self.transform is None else self.transform(logits)


@dataclass(frozen=True)
class Logits:
    """Logits at some positions, a tile at a time."""

    states: Tensor  # what the head takes, shape ``[positions, hidden]``; without a head the logits themselves
    head: VocabularyHead | None  # the head, or None

    @property
    def vocabulary_size(self) -> int:
        return self.states.shape[1] if self.head is None else self.head.vocabulary_size

    @property
    def device(self) -> torch.device:
        return self.states.device if self.head is None else self.head.weight.device

    def against(self, candidate: Logits, targets: Ints) -> Floats:
        """Compare a candidate's logits with these; see `streamed_divergence`."""
        with within_memory(self.device):
            return streamed_divergence(self, candidate, torch.from_numpy(targets)).cpu().double().numpy()

    def scored(self, targets: Ints) -> Floats:
        """Return the NLL of each target, and 1 if it is the most likely token, else 0: shape ``[positions, 2]``."""
        with within_memory(self.device):
            return self._scored(torch.from_numpy(targets)).cpu().double().numpy()

    def _scored(self, targets: Tensor) -> Tensor:
        tile = tile_shape(self.device)
        buffer, parts = self.buffer(tile), []
        for first in range(0, len(targets), tile.rows):
            some, wanted = self.rows(first, first + tile.rows), targets[first : first + tile.rows]
            side = _Side(len(wanted), self.device)
            for begin, end, rows, columns in vocabulary_tiles(wanted, self.vocabulary_size, tile.tokens, self.device):
                logits = some.tile(begin, end, buffer)
                side.raise_to(logits, begin, rows, columns)
                side.add(logits)
            is_top = (side.top == sent(wanted, self.device)).to(side.total.dtype)
            parts.append(torch.stack([-side.log_likelihood, is_top], 1))
        return torch.cat(parts)

    def stored(self) -> Tensor:
        return self.states.cpu()

    def restored(self, parts: Sequence[Tensor]) -> Logits:
        return Logits(torch.cat(list(parts)), self.head)

    def rows(self, begin: int, end: int) -> Logits:
        states = self.states[begin:end]
        return Logits(states if self.head is None else states.to(self.head.weight), self.head)

    def buffer(self, shape: TileShape) -> Tensor:
        if self.head is None:
            return torch.empty(0)
        size = min(shape.rows, self.states.shape[0]) * min(shape.tokens, self.vocabulary_size)
        return torch.empty(size, dtype=self.head.dtype, device=self.device)

    def tile(self, begin: int, end: int, buffer: Tensor) -> Tensor:
        """Return the logits of the tokens ``begin..end-1`` in float32 or better; the caller may change them."""
        if self.head is not None:
            return self.head.tile(self.states, begin, end, buffer)
        dtype = torch.promote_types(self.states.dtype, torch.float32)
        return self.states[:, begin:end].to(dtype, copy=True)


def streamed_divergence(p: Logits, q: Logits, targets: Tensor, tile: TileShape | None = None) -> Tensor:
    """Compare the candidate q with the reference p at each target, token ids of shape ``[positions]`` on the host.

    Return the `COLUMNS`, shape ``[positions, 5]``, on the reference's device and in its `wide` dtype, in nats,
    probabilities and 1 or 0. Not finite if the logits are not, or if only the candidate rules a token out.
    """
    tile = tile or tile_shape(p.device)
    buffers = p.buffer(tile), q.buffer(tile)
    parts = []
    for begin in range(0, len(targets), tile.rows):
        end = begin + tile.rows
        parts.append(_block(p.rows(begin, end), q.rows(begin, end), targets[begin:end], buffers, tile.tokens))
    return torch.cat(parts) if parts else torch.zeros(0, len(COLUMNS), device=p.device)


def _block(p: Logits, q: Logits, targets: Tensor, buffers: tuple[Tensor, Tensor], tokens: int) -> Tensor:
    reference, candidate = _Side(len(targets), p.device), _Side(len(targets), p.device)
    product = torch.zeros_like(reference.total)  # S
    for begin, end, rows, columns in vocabulary_tiles(targets, p.vocabulary_size, tokens, p.device):
        x = p.tile(begin, end, buffers[0])
        y = q.tile(begin, end, buffers[1]).to(p.device)
        before = reference.total
        shrunk, risen = reference.raise_to(x, begin, rows, columns)
        product = shrunk * (product + before * (candidate.raise_to(y, begin, rows, columns)[1] - risen))
        apart = x - y
        weight = reference.add(x)
        candidate.add(y)
        # Where the reference's probability is zero, the term is zero for any candidate.
        apart.masked_fill_(weight == 0, 0).mul_(weight)
        product += apart.sum(-1, dtype=product.dtype)
    log_p, log_q = reference.log_likelihood, candidate.log_likelihood
    kl = product / reference.total - reference.total.log() + candidate.total.log()
    same_top = (reference.top == candidate.top).to(kl.dtype)
    # A divergence is never negative; rounding may make one of nearly nothing so. NaN stays NaN.
    return torch.stack([kl.clamp(min=0), log_q.exp() - log_p.exp(), same_top, -log_p, -log_q], 1)


class _Side:
    """One model's running maximum, sum of exponentials, target's logit and highest token at each position."""

    def __init__(self, positions: int, device: torch.device) -> None:
        self.total = torch.zeros(positions, dtype=wide(device), device=device)
        # Finite from the start: otherwise a row without a finite logit so far would be shifted by infinity.
        self._highest = torch.full_like(self.total, torch.finfo(torch.float32).min)
        self._target = torch.zeros_like(self.total)
        self.top = torch.zeros(positions, dtype=torch.long, device=device)

    def raise_to(self, logits: Tensor, begin: int, rows: Tensor, columns: Tensor) -> tuple[Tensor, Tensor]:
        """Update the maxima and the targets' logits by a tile, and shift the tile by the maxima, in place.

        Return the factor by which earlier terms have shrunk, and by how much the maxima have risen.
        """
        self._target[rows] = logits[rows, columns].to(self.total.dtype)
        highest = torch.maximum(self._highest, logits.amax(-1).to(self.total.dtype))
        self._take_tops(logits, begin, highest > self._highest)
        risen = highest - self._highest
        factor = (-risen).exp()
        self.total = self.total * factor
        self._highest = highest
        logits.sub_(highest.to(logits.dtype)[:, None])
        return factor, risen

    def _take_tops(self, logits: Tensor, begin: int, higher: Tensor) -> None:
        """Note the top token of rows that are higher than in earlier tiles; the lowest index wins ties."""
        if higher.device.type == "cpu":
            rows = higher.nonzero()[:, 0]  # few, and a pass over the others takes longer than all else
            self.top[rows] = logits[rows].argmax(-1) + begin
        else:  # where the host would wait to learn which rows they are
            self.top = torch.where(higher, logits.argmax(-1) + begin, self.top)

    def add(self, shifted: Tensor) -> Tensor:
        """Replace a shifted tile by its exponentials, and add these."""
        self.total = self.total + shifted.exp_().sum(-1, dtype=self.total.dtype)
        return shifted

    @property
    def log_likelihood(self) -> Tensor:
        return self._target - self._highest - self.total.log()


def spool_room(folder: Path | None) -> int:
    """Return how many bytes may be spooled at a time to a folder; None is the system's temporary folder."""
    try:
        free = shutil.disk_usage(folder or tempfile.gettempdir()).free
    except OSError:
        return _MOST_BYTES
    return min(_MOST_BYTES, free // 2)


class Spool:
    """Hidden states on disk, of a model that does not fit in memory next to the other: rows of one width and dtype.

    The file has no name once it is open, so that the system removes it when the process ends, even if it is killed
    (POSIX; elsewhere it is removed when closed).
    """

    def __init__(self, folder: Path | None) -> None:
        with _disk_errors(folder):
            self._file = tempfile.TemporaryFile(dir=folder)  # noqa: SIM115 - closed by __exit__
        self._folder = folder
        self._width, self._dtype = 0, torch.float32

    def __enter__(self) -> Spool:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()

    def write(self, row: int, states: Tensor) -> None:
        """Put rows, shape ``[rows, width]``, from number `row` on."""
        self._width, self._dtype = states.shape[1], states.dtype
        with _disk_errors(self._folder):
            self._file.seek(row * self._row_bytes)
            self._file.write(states.contiguous().cpu().view(torch.uint8).numpy().data)

    def read(self, row: int, count: int) -> Tensor:
        """Return `count` rows from number `row` on, on the CPU."""
        bytes_ = np.empty(count * self._row_bytes, dtype=np.uint8)
        with _disk_errors(self._folder):
            self._file.seek(row * self._row_bytes)
            if self._file.readinto(bytes_.data) != len(bytes_):
                raise OSError("the file of hidden states is truncated")
        return torch.from_numpy(bytes_).view(self._dtype).view(count, self._width)

    @property
    def _row_bytes(self) -> int:
        return self._width * self._dtype.itemsize


@contextlib.contextmanager
def _disk_errors(folder: Path | None) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise EngineError(
            f"the reference's hidden states cannot be kept in {folder or tempfile.gettempdir()}: {error}; both models "
            "do not fit in memory at once: free some of the disk or of the memory, or use a shorter text"
        ) from error
