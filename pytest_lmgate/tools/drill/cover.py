"""Which of several checks are enough: the cheapest that find together what any of them finds."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Collection, Hashable, Mapping

MOST_EXACT = 12
"""Checks up to which each set of them is looked at."""

Cost = Callable[[Collection[str]], float]
"""Returns what checks cost together, which may be less than their sum."""


def smallest_cover(found: Mapping[str, Collection[Hashable]], cost: Cost) -> tuple[list[str], bool]:
    """Return the cheapest checks that find all that any of them finds, and whether that is exact.

    Beyond `MOST_EXACT` checks it is the greedy cover: the next check is the one that costs the least for each new
    finding (Chvatal 1979, "A greedy heuristic for the set-covering problem", Mathematics of Operations Research 4(3)).
    """
    wanted = {finding for findings in found.values() for finding in findings}
    names = [name for name, findings in found.items() if findings]
    if len(names) <= MOST_EXACT:
        sets = [list(one) for size in range(len(names) + 1) for one in itertools.combinations(names, size)]
        covers = [one for one in sets if wanted.issubset(itertools.chain(*(found[name] for name in one)))]
        return min(covers, key=lambda one: (cost(one), len(one))), True
    chosen: list[str] = []
    while wanted:
        base = cost(chosen)
        worth = {
            name: ((cost([*chosen, name]) - base) / len(more), -len(more))
            for name in names
            if (more := wanted.intersection(found[name]))
        }
        chosen.append(min(worth, key=worth.__getitem__))
        wanted -= set(found[chosen[-1]])
    return chosen, False


def redundant(found: Mapping[str, Collection[Hashable]], cost: Cost) -> dict[str, str]:
    """Return the checks that find nothing which a cheaper one does not, with its name; empty for one without findings.

    Of two checks that find the same at the same cost, the first is kept.
    """
    rank = {name: (cost([name]), at) for at, name in enumerate(found)}
    better = {
        name: [other for other in found if rank[other] < rank[name] and set(findings) <= set(found[other])]
        for name, findings in found.items()
    }
    return {name: better[name][0] if found[name] else "" for name in found if better[name] or not found[name]}
