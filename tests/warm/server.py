"""A Python in which libraries are imported already, and that runs each command in a fork of itself.

Run as a script: ``python server.py SOCKET PID IMPORTED``, the last being a key of LIBRARIES. `client.py` asks over the
socket for what ``python ARGUMENTS`` would do, and hands over its own streams. The server ends when the process PID
does, and kills the forks that still run.
"""

import atexit
import contextlib
import gc
import importlib
import io
import marshal
import os
import pkgutil
import runpy
import selectors
import shutil
import signal
import socket
import sys
import tempfile
import threading
import traceback
import types
import warnings
import weakref
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import NoReturn

LONGEST = 1 << 17  # bytes of a request: arguments, folder and environment

# What a session imports that measures with dice, a worker of xdist, and `lmgate`.
_PYTEST = (
    "execnet.gateway_base",
    "filelock",
    "numpy.ma",  # by numpy.unique
    "pytest_lmgate.plugin.session",
    "sacrebleu.metrics",
    "typer._adapters",  # with pydantic
    "xdist.remote",
    "yaml",
    "zoneinfo",
)
# What transformers imports, but nothing that is Hugging Face's own.
_TORCH = (
    *_PYTEST,
    "fsspec",
    "pyarrow.parquet",
    "safetensors.torch",
    "scipy.optimize",
    "sympy",
    "torch._dynamo.aot_compile",
    "torch._inductor.standalone_compile",
    "torch.distributed.checkpoint.hf_storage",
    "torch.distributed.fsdp",
    "torch.distributed.tensor",
    "torch.export",
    "torch.fx.experimental.symbolic_shapes",
)
# What a session imports that measures; `transformers` imports its modules when it is asked.
_TRANSFORMERS = (
    *_TORCH,
    "datasets",
    "rapidfuzz.distance.LCSseq",
    "tokenizers",
    "transformers.generation",
    "transformers.models.auto.modeling_auto",
    "transformers.models.auto.tokenization_auto",
    "transformers.models.bert.modeling_bert",
    "transformers.models.llama.modeling_llama",
    "transformers.models.t5.modeling_t5",
    "transformers.tokenization_utils_tokenizers",
)
_OF_HUGGING_FACE = {"accelerate", "datasets", "huggingface_hub", "peft", "tokenizers", "transformers"}
LIBRARIES = {"pytest": _PYTEST, "torch": _TORCH, "transformers": _TRANSFORMERS}
ABSENT = {
    "pytest": {"pyarrow", "scipy", "torch", *_OF_HUGGING_FACE},
    "torch": _OF_HUGGING_FACE,
    "transformers": set[str](),
}


def warm_up(imported: str) -> None:
    """Import what takes long to import; by pytest first, so that it rewrites the assertions of its plugins."""
    import pytest

    gc.disable()  # nearly all that is imported stays
    os.environ.pop("PYTEST_ADDOPTS", None)  # a plugin that a test leaves out is left out there alone
    with contextlib.redirect_stdout(io.StringIO()):
        left_out = [f"-pno:{name}" for name in ("hypothesispytest", "rerunfailures", "pytest-retry")]
        # Without the conftest.py of the folder in which the first test asked for this server.
        assert pytest.main(["--markers", "--noconftest", *left_out]) == 0
    for name in LIBRARIES[imported]:
        with contextlib.suppress(ModuleNotFoundError):  # xdist is not everywhere, nor all of this in other torches
            importlib.import_module(name)
    if imported != "torch":
        import_package(ABSENT[imported])
    assert not ABSENT[imported] & sys.modules.keys()
    if imported == "transformers":
        find_what_is_found_once()
    for finalizer in list(weakref.finalize._registry):  # type: ignore[attr-defined]
        finalizer.atexit = False  # torch's take its operators apart, for nothing, and for 40 ms of each fork
    gc.enable()
    gc.collect()
    gc.freeze()  # so that a fork that collects garbage does not copy the memory of all these modules


def import_package(absent: set[str]) -> None:
    """Import all of this package but the modules that need one of these libraries, and look up versions."""
    import pytest_lmgate

    sys.modules.update(dict.fromkeys(absent))  # type: ignore[arg-type]  # to import None is an error
    for module in pkgutil.walk_packages(pytest_lmgate.__path__, "pytest_lmgate."):
        if not module.name.endswith("__main__"):
            with contextlib.suppress(ModuleNotFoundError):
                importlib.import_module(module.name)
    for name in absent:
        del sys.modules[name]
    importlib.import_module("pytest_lmgate.identity").versions(("tokenizers", "torch", "transformers"))


def find_what_is_found_once() -> None:
    """Do what a session that runs a model does once."""
    with contextlib.suppress(ModuleNotFoundError):  # transformers 5
        # Which transformers builds when it loads its first model.
        importlib.import_module("transformers.conversion_mapping").get_checkpoint_conversion_mapping("llama")


def serve(listener: socket.socket, owner: int) -> None:
    """Run a fork for each client and tell the client how it ended, until the owner ends."""
    selector = selectors.DefaultSelector()
    selector.register(listener, selectors.EVENT_READ)
    selector.register(os.pidfd_open(owner), selectors.EVENT_READ)
    forks: dict[int, tuple[int, socket.socket]] = {}  # by the descriptor of its process: its id, and its client
    while True:
        key, _ = selector.select()[0]  # one at a time, since it may make the next a thing of the past
        if key.fileobj is listener:
            client, _ = listener.accept()
            request, streams, _, _ = socket.recv_fds(client, LONGEST, 3)
            pid = os.fork()
            if pid == 0:
                for other in (selector, listener, client, *(other for _, other in forks.values())):
                    other.close()
                end_as_python(partial(be_python, streams, **marshal.loads(request)))
            for stream in streams:
                os.close(stream)
            process = os.pidfd_open(pid)
            forks[process] = pid, client
            selector.register(process, selectors.EVENT_READ)
            selector.register(client, selectors.EVENT_READ, data=pid)
            with contextlib.suppress(BrokenPipeError):
                client.send(str(pid).encode())
        elif key.data is not None:  # the client was killed: it says nothing before its fork has ended
            selector.unregister(key.fileobj)
            kill(key.data)
        elif isinstance(key.fileobj, int) and key.fileobj in forks:
            pid, client = forks.pop(key.fileobj)
            status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
            selector.unregister(key.fileobj)
            os.close(key.fileobj)
            with contextlib.suppress(KeyError):
                selector.unregister(client)
            with contextlib.suppress(BrokenPipeError), client:
                client.send(str(status).encode())
        else:
            for pid, _ in forks.values():
                kill(pid)
            return


def kill(pid: int) -> None:
    """Kill a fork and the processes that it started."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(pid, signal.SIGKILL)


def be_python(streams: Sequence[int], arguments: Sequence[str], folder: str, environment: Mapping[str, str]) -> None:
    """Do in this process what ``python ARGUMENTS`` does in a new one."""
    os.setsid()
    for stream, descriptor in enumerate(streams):
        os.dup2(descriptor, stream)
        os.close(descriptor)
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(environment)
    tempfile.tempdir = None  # by the new TMPDIR
    _, sys.executable, *arguments = arguments  # the client's own path, so that the workers of xdist are forks too
    if arguments[0] == "-u":
        sys.stdout.reconfigure(write_through=True)  # type: ignore[union-attr]
        del arguments[0]
    if arguments[0] == "-W":
        sys.warnoptions.append(arguments[1])
        warnings._processoptions(sys.warnoptions)  # type: ignore[attr-defined]
        del arguments[:2]
    option, command, *rest = arguments if arguments[0].startswith("-") else ("script", *arguments)
    assert option in ("-m", "-c", "script"), f"expected -m, -c or a script, got {option}"
    sys.argv = [option if option == "-c" else command, *rest]
    first = {"-m": folder, "-c": "", "script": str(Path(command).resolve().parent)}[option]
    sys.path[:0] = [first, *filter(None, environment.get("PYTHONPATH", "").split(os.pathsep))]
    if option == "-m":
        runpy.run_module(command, run_name="__main__", alter_sys=True)
    elif option == "script":
        runpy.run_path(command, run_name="__main__")
    else:
        main = sys.modules["__main__"] = types.ModuleType("__main__")
        exec(command, main.__dict__)


def end_as_python(command: Callable[[], None]) -> NoReturn:
    """Run a command and end as Python does, but leave the memory to the system: freeing it takes 0.3 s."""
    status: str | int | None = 1
    try:
        command()
        status = 0
    except SystemExit as exit_:
        status = exit_.code
    except BaseException:
        traceback.print_exc()
    if isinstance(status, str):
        print(status, file=sys.stderr)
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(1 if isinstance(status, str) else int(status or 0))


if __name__ == "__main__":
    sys.path.pop(0)  # the folder of this script
    path = Path(sys.argv[1])
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listening:
        listening.bind(str(path))
        listening.listen()
        warm_up(sys.argv[3])
        serve(listening, owner=int(sys.argv[2]))
    shutil.rmtree(path.parent)
