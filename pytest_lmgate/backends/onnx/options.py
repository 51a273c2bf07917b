"""What `load:` of an ONNX model's entry may say, the device that it runs on, and which of it can change a number."""

from __future__ import annotations

__all__ = ["LoadOptions"]

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pytest_lmgate.backends.base import Entry
from pytest_lmgate.backends.entries import refuse_options, threads
from pytest_lmgate.errors import ConfigError, nearest

# Options by what they must be, under the names of optimum and onnxruntime.
_KNOWN: Mapping[str, tuple[type, str]] = {
    "file_name": (str, "the name of an .onnx file"),
    "graph_optimization_level": (str, "a text"),
    "intra_op_num_threads": (int, "a whole number from 1"),
    "provider_options": (dict, "a mapping"),
}
_LEVELS = ("disable", "basic", "extended", "layout", "all")


@dataclass(frozen=True)
class LoadOptions:
    """Options of `load:`, checked, with the threads and the device to compute with, ``cpu`` or as in ``cuda:1``."""

    given: Mapping[str, Any]
    threads: int
    device: str

    @classmethod
    def of(cls, entry: Entry, device: str) -> LoadOptions:
        """Read the options of a model's entry.

        Raises:
            ConfigError: One is not known, or of the wrong type.
        """
        where, given = f"models.{entry.name}.load", entry.spec.load
        refuse_options(entry, "the engine onnx", _KNOWN)
        for key, value in given.items():
            kind, words = _KNOWN[key]
            if not isinstance(value, kind) or isinstance(value, bool) or (isinstance(value, int) and value < 1):
                raise ConfigError(f"{where}.{key}: expected {words}, got {value!r}")
        level = given.get("graph_optimization_level", "all")
        if level not in _LEVELS:
            raise ConfigError(
                f"{where}.graph_optimization_level: expected one of {', '.join(_LEVELS)}; got {level!r}"
                f"{nearest(level, _LEVELS)}"
            )
        return cls(given, given.get("intra_op_num_threads", threads(entry.workers)), device)

    @property
    def changing_numbers(self) -> dict[str, Any]:
        """All but the file, which is known by its content, and the threads, which change no number."""
        return {key: self.given[key] for key in ("graph_optimization_level", "provider_options") if key in self.given}

    @property
    def provider(self) -> str:
        """Execution provider of the device, as onnxruntime calls it."""
        return "CUDAExecutionProvider" if self.device.startswith("cuda") else "CPUExecutionProvider"

    def session_options(self, library: Any) -> Any:
        """Return ``onnxruntime.SessionOptions``, silent but for exceptions."""
        found = library.SessionOptions()
        found.log_severity_level = 4
        found.intra_op_num_threads = self.threads
        level = self.given.get("graph_optimization_level", "all").upper()
        name = f"ORT_{level}_ALL" if level == "DISABLE" else f"ORT_ENABLE_{level}"
        found.graph_optimization_level = getattr(library.GraphOptimizationLevel, name)
        return found

    def providers(self) -> list[tuple[str, dict[str, str]]]:
        """Return the execution providers, the device's own first, and their options.

        On CUDA float32 is multiplied as such: TF32, which onnxruntime would take, keeps 10 bits of a fraction.
        """
        options = {str(key): str(value) for key, value in self.given.get("provider_options", {}).items()}
        if not self.device.startswith("cuda"):
            return [(self.provider, options)]
        own = {"device_id": self.device.partition(":")[2] or "0", "use_tf32": "0"}
        return [(self.provider, own | options), ("CPUExecutionProvider", {})]
