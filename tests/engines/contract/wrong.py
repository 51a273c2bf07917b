"""Files and entries that engines refuse, with a pattern of what is said: the fact that the reader needs."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

Change = Callable[[Path], object]  # spoils a folder with the files of a model
Wrong = tuple[Change | None, dict[str, Any], str]  # a key whose value is None is left out of the entry


def put(file: str, content: str) -> Change:
    return lambda folder: (folder / file).write_text(content)


def kept(file: str, part: slice) -> Change:
    return lambda folder: (folder / file).write_bytes((folder / file).read_bytes()[part])


def without(pattern: str) -> Change:
    return lambda folder: [file.unlink() for file in folder.glob(pattern)]


def in_config(**changes: Any) -> Change:
    def spoil(folder: Path) -> None:
        file = folder / "config.json"
        file.write_text(json.dumps({**json.loads(file.read_text()), **changes}))

    return spoil


def in_onnx(edit: Callable[[Any, Any], object]) -> Change:
    def spoil(folder: Path) -> None:
        import onnx

        model = onnx.load(folder / "model.onnx")
        edit(onnx, model)
        onnx.save(model, folder / "model.onnx")

    return spoil


def data_outside(spoil: Callable[[Path], object]) -> Change:
    """Move the weights of an ONNX model into a file beside it, and spoil that."""

    def change(folder: Path) -> None:
        from tests.engines.onnx.exporting import move_weights_out

        spoil(move_weights_out(folder / "model.onnx"))

    return change


def larger_vocabulary(folder: Path) -> None:
    from tests.engines.projects import trained_tokenizer

    tokenizer = trained_tokenizer()
    tokenizer.add_tokens(["the"])
    tokenizer.save_pretrained(folder)


def hidden_states(_: Any, model: Any) -> None:
    (node,) = (node for node in model.graph.node if "logits" in node.output)
    node.output[0] = model.graph.output[0].name = "last_hidden_state"


def branch(onnx: Any, model: Any) -> None:
    model.graph.input.append(onnx.helper.make_tensor_value_info("use_cache_branch", onnx.TensorProto.BOOL, [1]))


def fixed_shape(_: Any, model: Any) -> None:
    model.graph.input[0].type.tensor_type.shape.dim[1].dim_value = 128


def own_operator(onnx: Any, model: Any) -> None:
    next(node for node in model.graph.node if node.op_type == "MatMul").domain = "my.operators"
    model.opset_import.append(onnx.helper.make_opsetid("my.operators", 1))


POINTER = "version https://git-lfs.github.com/spec/v1\noid sha256:1234\nsize 5\n"
T5 = {"is_encoder_decoder": True, "architectures": ["T5ForConditionalGeneration"]}
UNTRUE: list[Wrong] = [(None, {"adapter": "a"}, r"\.adapter: the engine .* does not support it: (merge|have the)")]
_CHECKPOINT: list[Wrong] = [
    (None, {"path": "nowhere"}, "no such folder: .*nowhere"),
    (without("*.safetensors"), {}, "no weights in .*: expected"),
    (without("config.json"), {}, r"no config\.json in"),
    (without("token*"), {}, "no tokenizer in .*: expected tokenizer.json"),
    (put("model.safetensors", POINTER), {}, "Git LFS pointer"),
]
_ONNX: list[Wrong] = [
    *UNTRUE,
    (None, {"path": "nowhere"}, "no such folder: .*nowhere"),
    (None, {"path": "nowhere.onnx"}, "no such (file|folder): .*nowhere"),
    (None, {"path": None}, "expected path: of a folder that optimum exported"),
    (without("model.onnx"), {}, r"no \.onnx file in"),
    (lambda folder: shutil.copy(folder / "model.onnx", folder / "model_int4.onnx"), {}, "several .onnx files"),
    (None, {"load": {"file_name": "other.onnx"}}, r"no such file: .*other\.onnx"),
    (data_outside(lambda data: data.unlink()), {}, "External data path does not exist"),
    (data_outside(lambda data: data.write_bytes(data.read_bytes()[:5000])), {}, "truncated or damaged: copy it again"),
    (data_outside(lambda data: data.write_text(POINTER)), {}, "model.onnx_data is a Git LFS pointer"),
    (kept("model.onnx", slice(-5000)), {}, "truncated or damaged: copy it again"),
    (put("model.onnx", POINTER), {}, "model.onnx is a Git LFS pointer"),
    (without("tokenizer*"), {}, "no tokenizer in"),
    (in_config(**T5), {}, r"encoder-decoder \(T5ForConditionalGeneration\)"),
    (in_config(architectures=["BertForMaskedLM"]), {}, r"masked \(BertForMaskedLM\)"),
    (in_onnx(hidden_states), {}, "lacks the outputs logits"),
    (in_onnx(branch), {}, r"needs inputs that this engine does not have \(use_cache_branch\)"),
    (in_onnx(fixed_shape), {}, "a text may be of any length"),
    (in_onnx(own_operator), {}, "custom operators are not supported"),
    (larger_vocabulary, {}, "token id 320, but its vocabulary has 320 entries"),
    (None, {"dtype": "float16"}, r"\.dtype: the engine onnx does not support it"),
    (None, {"load": {"threads": 2}}, "no option 'threads'"),
    (None, {"load": {"graph_optimization_level": "al"}}, r"got 'al' \(did you mean 'all'\?\)"),
    (None, {"device": "cuda"}, "the device 'cuda' cannot be used"),
    (None, {"backend": None}, r"it holds model\.onnx, which runs with backend: onnx"),
]
_STARTED = {"command": "serve {port}"}
_SERVED: list[Wrong] = [
    *UNTRUE,
    (None, {"tokenizer": None}, "a served model needs the folder or hub id of its tokenizer"),
    (without("token*"), {}, "no tokenizer in"),
    (None, {"model": None}, "expected the server's name for the model"),
    (None, {"model": "tinny"}, r"has no model 'tinny' \(did you mean 'tiny'\?\)"),
    (None, {"key": "NO_KEY"}, "environment variable 'NO_KEY' is not set"),
    (None, {"key": "EMPTY"}, "environment variable 'EMPTY' is empty"),
    (None, {"key": "BROKEN"}, "environment variable 'BROKEN' contains white space"),
    (None, {"server": "http://a:b@127.0.0.1/v1", "key": "EMPTY"}, "the address .* has a user name already"),
    (None, {"load": {"timeouts": 3}}, r"no option 'timeouts' \(did you mean 'timeout'\?\)"),
    (None, {"load": {"retries": -1}}, "expected a whole number from 0, got -1"),
    (None, {"batch_size": 4}, r"\.batch_size: the engine server does not support it"),
    (None, {"server": None, "backend": "server"}, "the engine server needs server:"),
    (None, {"server": "http://127.0.0.1:9/v1", "load": {"retries": 0, "context": 642}}, "ConnectError"),
    # Servers that the session would start.
    (None, {"server": {"command": "serve"}}, r"server\.command: expected \{port\} where the server's port belongs"),
    (None, {"server": {"command": "serve '{port}"}}, r"server\.command: expected words as for a shell"),
    (None, {"server": _STARTED | {"comand": 1}}, r"server\.comand: unknown key \(did you mean 'command'\?\)"),
    (None, {"server": _STARTED | {"health": "ready"}}, r"server\.health: expected a path as in /health"),
    (None, {"server": _STARTED | {"content": ["nowhere"]}}, "nowhere does not exist"),
    (None, {"server": _STARTED | {"versions": ["nothing-of"]}}, "nothing-of is not installed"),
    (None, {"server": _STARTED, "load": {"reasoning_effort": "low"}}, r"load\.reasoning_effort: only a chat has it"),
]
_COMMANDS: list[Wrong] = [
    (None, {"tokenizer": None}, r"models\.model: the engine command needs command:, and tokenizer:"),
    (None, {"command": None, "backend": "command"}, r"models\.model: the engine command needs command:"),
    (without("token*"), {}, "no tokenizer in"),
    (None, {"command": "no-such-program 1"}, "its program cannot be started: .*no-such-program"),
    (None, {"command": "python 'a"}, r"models\.model\.command: expected words as for a shell, got"),
    (None, {"command": "false"}, "its program ended with status 1; its log, .*, is empty"),
    (None, {"command": "echo hello"}, "its program printed 'hello' .*: expected JSON with lmgate, name, version, voc"),
    (None, {"content": ["nowhere"]}, r"models\.model\.content: .*nowhere does not exist"),
    (None, {"versions": ["nothing-of"]}, r"models\.model\.versions: nothing-of is not installed"),
    (None, {"path": "nowhere"}, "expected exactly one of .*command:.*, got path: and command:"),
    (None, {"model": "a"}, r"\.model\.model: the engine command does not support it: it is for a model with server:"),
    (None, {"command": None, "server": "http://127.0.0.1:9"}, r"\.content: the engine server does not support it"),
    (None, {"dtype": "float16"}, r"\.dtype: the engine command does not support it: the program decides it"),
    (None, {"load": {"retries": 1}}, "the engine command has no option 'retries'"),
]
WRONG: dict[str, list[Wrong]] = {
    "command": _COMMANDS,
    "command-of-llama.cpp": [(None, {"command": "false"}, "its program ended with status 1")],
    "transformers": [
        *_CHECKPOINT,
        (kept("model.safetensors", slice(-1000)), {}, "cannot be loaded: SafetensorError"),
        (in_config(model_type="nonesuch"), {}, "cannot be loaded: .*nonesuch"),
        (in_config(architectures=["BertForMaskedLM"], model_type="llama"), {}, "undefined for the masked model"),
        (larger_vocabulary, {}, "token id 320, but its vocabulary has 320 entries"),
        (None, {"device": "cuda"}, "device"),
        (None, {"load": {"quantization_config": {"quant_method": "nonesuch"}}}, "nonesuch"),
    ],
    "onnx": _ONNX,
    "onnx-without-past": _ONNX[:2],
    "gguf": [
        *UNTRUE,
        (kept("f32.gguf", slice(-500)), {}, "not within the file bounds.*copy it again"),
        (kept("f32.gguf", slice(1000)), {}, "failed to read key-value pairs.*copy it again"),
        (put("f32.gguf", "hello"), {}, "is not a GGUF file: .* got b'hell'"),
        (put("f32.gguf", POINTER), {}, "Git LFS pointer"),
        (without("f32.gguf"), {}, "no such file:"),
        (None, {"path": "nowhere", "backend": "llama.cpp"}, r"reads a file that ends in \.gguf"),
        (None, {"path": None, "backend": "llama.cpp"}, r"expected path: of a \.gguf file"),
        (None, {"dtype": "float16"}, r"\.dtype: the engine llama\.cpp does not support it"),
        (None, {"load": {"n_thread": 2}}, r"no option 'n_thread' \(did you mean 'n_threads'\?\)"),
        (None, {"load": {"flash_attn": 1}}, "expected true or false, got 1"),
        (None, {"load": {"type_k": "f12"}}, "expected one of f32, f16"),
        (None, {"device": "cuda"}, "the device 'cuda' cannot be used"),
    ],
    "server": _SERVED,
    "server-of-llama.cpp": _SERVED[1:5],
    "server-of-vllm": _SERVED[1:5],
    "vllm": [
        *UNTRUE,
        *_CHECKPOINT[:3],
        (None, {"dtype": "float64"}, r"\.dtype: vLLM computes in float32, bfloat16"),
        (None, {"load": {"dtype": "half"}}, r"\.load\.dtype: put dtype: next to load:"),
        (None, {"load": {"seed": 1}}, r"\.load\.seed: the engine sets it"),
        (None, {"load": {"speculative_config": {"model": "a"}}}, "it adds a model or code"),
        (None, {"load": {"max_model_len": "2k"}}, "expected a whole number from 1, got '2k'"),
        (None, {"path": None}, "the engine vllm expects path: or hub:"),
        (in_config(architectures=["StrangeForCausalLM"]), {}, "StrangeForCausalLM.* not supported"),
        (None, {"load": {"max_model_length": 9}}, "unexpected keyword argument"),
    ],
}
