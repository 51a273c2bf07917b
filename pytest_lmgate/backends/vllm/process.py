"""The session's side of the process that vLLM runs in: starts it, asks it, ends it, says why it failed."""

from __future__ import annotations

__all__ = ["Failure", "VllmProcess"]

import contextlib
import os
import re
import signal
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from typing import Any

from pytest_lmgate.backends.memory import says_out_of_memory
from pytest_lmgate.backends.vllm.wire import receive, send
from pytest_lmgate.errors import EngineError

_MODULE = "pytest_lmgate.backends.vllm.worker"
# What vLLM is told whatever the user's environment says.
_ENVIRONMENT = {
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    "VLLM_NO_USAGE_STATS": "1",
    "VLLM_LOGGING_LEVEL": "ERROR",
    "HF_HUB_OFFLINE": "1",
    "PYTHONWARNINGS": "ignore",
}
_LONGEST = 400
_PATIENCE = 20.0  # seconds to end


class Failure(Exception):
    """vLLM raised an exception: its class, and its message as one line."""

    def __init__(self, kind: str, says: str) -> None:
        super().__init__(kind, says)
        self.kind, self.says = kind, says

    @property
    def is_out_of_memory(self) -> bool:
        """Whether memory ran out."""
        return says_out_of_memory(f"{self.kind} {self.says}")

    def __str__(self) -> str:
        return f"{self.kind}: {self.says}"


class VllmProcess:
    """A process of vLLM, with some environment variables beside the session's own.

    It ends with `close`, and by itself once the session is gone, since its standard input ends then.
    """

    def __init__(self, name: str, environment: Mapping[str, str]) -> None:
        self._name = name
        self._printed = tempfile.TemporaryFile()  # noqa: SIM115 - open as long as the process is
        self._process = subprocess.Popen(
            [sys.executable, *(["-P"] if sys.version_info >= (3, 11) else []), "-m", _MODULE],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._printed,
            env={**os.environ, **_ENVIRONMENT, **environment},
        )

    def ask(self, do: str, **given: Any) -> Any:
        """Have the process call a method of its engine, or ``open`` it, and return what it found.

        Raises:
            Failure: vLLM raised an exception.
            EngineError: The process has ended.
        """
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        answer = None
        with contextlib.suppress(OSError):
            send(self._process.stdin, {"do": do, "given": given})
            answer = receive(self._process.stdout)
        if answer is None:
            raise EngineError(f"model {self._name!r}: the process of vLLM has ended {self._why()}")
        if "found" not in answer:
            raise Failure(answer["kind"], _one_line(answer["says"]))
        return answer["found"]

    @property
    def has_ended(self) -> bool:
        """Whether the process is gone."""
        return self._process.poll() is not None

    def close(self) -> None:
        """End the process."""
        for stream in (self._process.stdin, self._process.stdout):
            if stream is not None:
                with contextlib.suppress(OSError):
                    stream.close()
        try:
            self._process.wait(_PATIENCE)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._printed.close()

    def _why(self) -> str:
        status = self._process.wait()
        how = f"by the signal {signal.Signals(-status).name}" if status < 0 else f"with status {status}"
        hint = ", as the system ends a process where memory runs out" if status == -signal.SIGKILL else ""
        self._printed.seek(0)
        lines = self._printed.read().decode(errors="replace").split("\n")
        last = next((line for line in reversed(lines) if line.strip()), "")
        return f"{how}{hint}{'; its last output: ' + _one_line(last) if last else ''}"


def _one_line(text: str) -> str:
    """Return a message without line breaks, what pydantic puts around it, and the end of a long list."""
    line = re.sub(r"^\d+ validation errors? for \w+ (Value error, )?", "", " ".join(text.split()))
    line = re.sub(r" \[type=.*", "", line)
    return line if len(line) <= _LONGEST else f"{line[:_LONGEST]} ..."
