"""onnxruntime, and the options of an entry's ``load:`` that it takes."""

from __future__ import annotations

import functools
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pytest_lmgate.engines.base import ModelEntry, Option
from pytest_lmgate.errors import ModelError

# Older versions open data outside of a model's folder, which its address does not cover.
_OLDEST = (1, 24)
# Options under the names of optimum and onnxruntime.
_KNOWN = {
    "file_name": Option(str),
    "graph_optimization_level": Option(str, texts=("disable", "basic", "extended", "layout", "all")),
    "intra_op_num_threads": Option(int, 1),
    "provider_options": Option(dict),
}


@dataclass(frozen=True)
class LoadOptions:
    """Options of ``load:``, checked, with the number of threads and the device, such as ``cuda:1``."""

    given: Mapping[str, Any]
    threads: int
    device: str

    @classmethod
    def of(cls, entry: ModelEntry, device: str) -> LoadOptions:
        given = entry.load_options("the engine onnx", _KNOWN)
        return cls(given, given.get("intra_op_num_threads", entry.threads), device)

    @property
    def changing_numbers(self) -> dict[str, Any]:
        """Options that can change a number; the address covers the file by its content."""
        return {key: self.given[key] for key in ("graph_optimization_level", "provider_options") if key in self.given}

    @property
    def provider(self) -> str:
        return "CUDAExecutionProvider" if self.device.startswith("cuda") else "CPUExecutionProvider"

    def session_options(self, library: Any) -> Any:
        found = library.SessionOptions()
        found.log_severity_level = 4
        found.intra_op_num_threads = self.threads
        level = self.given.get("graph_optimization_level", "all").upper()
        name = f"ORT_{level}_ALL" if level == "DISABLE" else f"ORT_ENABLE_{level}"
        found.graph_optimization_level = getattr(library.GraphOptimizationLevel, name)
        return found

    def providers(self) -> list[tuple[str, dict[str, str]]]:
        """Return the execution providers, the device's own first, and their options.

        On CUDA we switch off TF32, onnxruntime's default, which keeps 10 bits of a fraction.
        """
        options = {str(key): str(value) for key, value in self.given.get("provider_options", {}).items()}
        if not self.device.startswith("cuda"):
            return [(self.provider, options)]
        own = {"device_id": self.device.partition(":")[2] or "0", "use_tf32": "0"}
        return [(self.provider, own | options), ("CPUExecutionProvider", {})]


@functools.cache
def library(model: str) -> Any:
    try:
        import onnxruntime
    except ImportError as error:
        raise ModelError(
            f"model {model!r}: an ONNX model runs with onnxruntime, which cannot be imported ({error}): "
            "pip install 'pytest-lmgate[onnx]'"
        ) from error
    version = tuple(int(part) for part in re.findall(r"\d+", onnxruntime.__version__)[:2])
    if version < _OLDEST:
        raise ModelError(
            f"model {model!r}: expected onnxruntime {'.'.join(map(str, _OLDEST))} or newer, got "
            f"{onnxruntime.__version__}: pip install -U onnxruntime"
        )
    return onnxruntime
