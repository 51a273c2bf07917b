"""The table of protocols, one row each. The first is the default."""

from __future__ import annotations

__all__ = ["PROTOCOLS"]

from collections.abc import Mapping

from pytest_lmgate.data.protocols.base import Convention
from pytest_lmgate.data.protocols.bos_chunks import BOS_CHUNKS
from pytest_lmgate.data.protocols.gptq import GPTQ
from pytest_lmgate.data.protocols.llama_cpp import LLAMA_CPP
from pytest_lmgate.data.protocols.lm_eval import LM_EVAL
from pytest_lmgate.data.protocols.sliding import DISJOINT, DOCUMENT, SLIDING

PROTOCOLS: Mapping[str, Convention] = {
    each.name: each for each in (SLIDING, DISJOINT, BOS_CHUNKS, GPTQ, LLAMA_CPP, LM_EVAL, DOCUMENT)
}
