"""The degrees of freedom of docs/noise.md for many texts at once: no matrices, sums over clusters alone."""

from __future__ import annotations

__all__ = ["degrees_of_freedom"]

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]


def degrees_of_freedom(counts: Floats) -> Floats:
    """Return ``tr(M)^2 / tr(M M)`` for each row of `counts`, shape ``[repetitions, clusters]``.

    ``M = D - (u v' + v u') / N + k v v'`` with ``v = n w``, ``u = n^2 w``, ``D = diag(v^2)``, ``w^2 = 1 / (1 - h)`` and
    ``k = sum n^2 / N^2``, so that both traces are sums over clusters.
    """
    n = counts
    total = n.sum(axis=1)
    k = (n**2).sum(axis=1) / total**2
    vv = n**2 / (1 - n / total[:, None])
    uv, uu, d4, d5 = vv * n, vv * n**2, vv**2, vv**2 * n
    s_vv, s_uv, s_uu, s_d4, s_d5 = (part.sum(axis=1) for part in (vv, uv, uu, d4, d5))
    trace = s_vv - 2 * s_uv / total + k * s_vv
    square = s_d4 + 2 * (s_uu * s_vv + s_uv**2) / total**2 + k**2 * s_vv**2
    square += 2 * (-2 * s_d5 / total + k * s_d4 - 2 * k * s_uv * s_vv / total)
    df: Floats = trace**2 / square
    return df
