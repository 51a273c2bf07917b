"""What every engine uses of a checkpoint, without torch: its folder, kind, context, tokenizer and content."""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

from pytest_lmgate.data.corpus import is_lfs_pointer, pull_hint
from pytest_lmgate.engines.base import Kind, Model, ModelEntry, Runner
from pytest_lmgate.errors import ConfigError, ModelError, OfflineError
from pytest_lmgate.identity import Snapshot, checkpoint_files, folders_below, is_file, texts_in

_PICKLES = (".bin", ".pt", ".pth", ".ckpt")
_LONGEST_HEADER = 10**8  # as in the library safetensors
# Weights that are not read if there are others in safetensors.
_OTHER_WEIGHTS = (*_PICKLES, ".gguf", ".h5", ".msgpack", ".onnx", ".ot", ".tflite")
_CONTEXT_KEYS = (
    "max_position_embeddings", "n_positions", "n_ctx", "max_seq_len", "max_sequence_length", "seq_length",
    "context_length",
)  # fmt: skip
# Architectures whose positions begin behind the padding token's id, as fairseq counts them: RoBERTa's 514 positions are
# a context of 512.
_OFFSET_POSITIONS = frozenset(
    {"camembert", "data2vec-text", "esm", "ibert", "longformer", "luke", "mpnet", "roberta", "roberta-prelayernorm",
     "xlm-roberta", "xlm-roberta-xl", "xmod"}
)  # fmt: skip
# A multimodal model's language model is described in a config of its own.
_TEXT_PARTS = ("text_config", "llm_config", "language_config", "language_model")
_TOKENIZER_FILES = (
    "tokenizer.json", "tokenizer.model", "tokenizer_config.json", "vocab.json", "vocab.txt", "spiece.model",
    "sentencepiece.bpe.model", "tekken.json", "tokenizer.tiktoken",
)  # fmt: skip
_SHARD = re.compile(r"-\d{5}-of-\d{5}\.")
# Files that no engine reads together with a model's own: an adapter's, Mistral's format, a variant such as fp16.
_APART = re.compile(r"adapter_|consolidated|model\.(?!safetensors)")
# Files of these suffixes in a tokenizer's folder cannot change its tokens.
WEIGHTS = (".safetensors", ".bin", ".pt", ".pth", ".ckpt", ".gguf")
# What to fetch from the hub, and what not.
_NEVER = ["*.md", "*.png", "*.jpg", "*.msgpack", "*.h5", "*.onnx", "*.ot", "*.tflite", "onnx/*", "original/*"]
_PICKLE_PATTERNS = ["*.bin", "*.pt", "*.pth", "*.ckpt"]
_TOKENIZERS = ["tokenizer*", "vocab*", "tekken.json", "*.model"]
_WEIGHTS = ["*.safetensors", "*.gguf", *_PICKLE_PATTERNS]


@dataclass(frozen=True)
class Architecture:
    """What a model's config says of its kind; the name is for messages."""

    name: str
    config: Mapping[str, Any]

    @property
    def architecture(self) -> str:
        """The config's first architecture, such as ``LlamaForCausalLM``."""
        named = self.config.get("architectures") or ["unknown"]
        return str(named[0])

    @property
    def context(self) -> int | None:
        """Tokens that the model can read at once; None where its config names no limit."""
        for config in (self.config, *(self.config.get(part) or {} for part in _TEXT_PARTS)):
            for key in _CONTEXT_KEYS:
                if (length := _positive(config.get(key))) is not None:
                    return length - _offset(config)
        return None

    @property
    def kind(self) -> Kind:
        if "ForMaskedLM" in self.architecture or "ForPreTraining" in self.architecture:
            return "masked"
        return "encoder-decoder" if self.config.get("is_encoder_decoder") else "causal"


class Stored(NamedTuple):
    """Where a tensor is, by the header of its file."""

    file: Path
    name: str
    shape: Sequence[int]


@dataclass(frozen=True)
class Checkpoint(Architecture):
    folder: Path

    @property
    def files(self) -> dict[str, Path]:
        """Every file that can change what the model computes, by its name within the folder, sorted."""
        return checkpoint_files(self.folder)

    @property
    def weight_bytes(self) -> int:
        return sum(path.stat().st_size for path in self.files.values() if path.suffix in (".safetensors", *_PICKLES))

    @property
    def is_quantized(self) -> bool:
        return "quantization_config" in self.config

    @cached_property
    def tensors(self) -> dict[str, Stored]:
        """The tensors that an engine reads, by name; torch reads the names in pickles."""
        return self._as_indexed("model", ".safetensors") or self._as_indexed("pytorch_model", ".bin")

    def require_safe_weights(self, *, pickle_weights: bool) -> None:
        """Refuse weights that run code when read, and a folder without weights."""
        files = self.files
        suffixes = {path.suffix for path in files.values()}
        read = [path for path in files.values() if ".safetensors" not in suffixes or path.suffix not in _OTHER_WEIGHTS]
        _require_content(read, name=self.name)
        if ".safetensors" in suffixes:
            self._require_one_set("model", ".safetensors")
        if suffixes & {".safetensors", ".gguf"}:
            return
        if not suffixes & set(_PICKLES):
            exported = next((name for name, path in files.items() if path.suffix == ".onnx"), None)
            hint = f"; it holds {exported}, which runs with backend: onnx" if exported else ""
            raise ModelError(f"model {self.name!r}: no weights in {self.folder}: expected *.safetensors{hint}")
        if not pickle_weights:
            pickles = ", ".join(name for name, path in self.files.items() if path.suffix in _PICKLES)
            raise ModelError(
                f"model {self.name!r}: {self.folder} has its weights only as pickle ({pickles}), which can run any "
                "code when loaded; convert them with save_pretrained to safetensors, or set pickle_weights: true if "
                "you trust them"
            )
        self._require_one_set("pytorch_model", ".bin")

    def _weight_files(self, stem: str, suffix: str) -> tuple[list[str], Mapping[str, str] | None]:
        """Return the files of weights that an engine reads, and the index that says which tensor is in which file."""
        file = self.folder / f"{stem}{suffix}.index.json"
        if not file.is_file():
            return ([f"{stem}{suffix}"] if (self.folder / f"{stem}{suffix}").is_file() else []), None
        try:
            index = {str(tensor): str(where) for tensor, where in json.loads(file.read_bytes())["weight_map"].items()}
        except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            raise ModelError(
                f"model {self.name!r}: {file}: expected the JSON of an index with a weight_map: {error!r}"
            ) from error
        return sorted(set(index.values())), index

    def _require_one_set(self, stem: str, suffix: str) -> None:
        """Refuse files of weights that contradict each other: engines differ in which of them they read."""
        files, index = self._weight_files(stem, suffix)
        if not files:
            return  # of another name, which the entry gives
        where, told = f"model {self.name!r}: {self.folder}", f"{stem}{suffix}.index.json"
        if absent := [file for file in files if not (self.folder / file).is_file()]:
            raise ModelError(f"{where}: {told} names {absent[0]}, which is not there: copy the whole model again")
        # For pickles torch would be imported; see `tensors`.
        stored = self._as_indexed(stem, suffix).keys() if suffix not in _PICKLES else set[str]()
        for other in sorted(set(self.files) - set(files)):
            if not other.endswith(suffix) or "/" in other or _APART.match(other):
                continue
            is_whole = other == f"{stem}{suffix}" or _SHARD.search(other)
            if is_whole or (stored and stored & _stored_in(self.folder / other).keys()):
                read = files[0] if index is None else told
                raise ModelError(
                    f"{where} holds two sets of weights, {other} and what {read} has, of which engines "
                    "read one or the other: remove the one that is out of date"
                )

    def _as_indexed(self, stem: str, suffix: str) -> dict[str, Stored]:
        """Return the tensors of files, unless their index says others: which of two is loaded is chance."""
        files, index = self._weight_files(stem, suffix)
        mapped: dict[str, set[str]] = {file: set() for file in files}
        for tensor, file in (index or {}).items():
            mapped[file].add(tensor)
        tensors: dict[str, Stored] = {}
        for file in files:
            stored = _stored_in(self.folder / file)
            tensors |= stored
            if index is not None and stored and (wrong := sorted(stored.keys() ^ mapped[file])):
                raise ModelError(
                    f"model {self.name!r}: {self.folder}: {file} and {stem}{suffix}.index.json disagree about "
                    f"{len(wrong)} tensors, such as {wrong[0]}, which is {'' if wrong[0] in stored else 'not '}in the "
                    "file: files and index are of two models; save one again into an empty folder"
                )
        return tensors


def _stored_in(file: Path) -> dict[str, Stored]:
    """Return the tensors of a file by its header; none of a damaged file, of which the loader says more."""
    if file.suffix in _PICKLES:
        return {name: Stored(file, name, [*tensor.shape]) for name, tensor in pickled_in(file).items()}
    try:
        with file.open("rb") as opened:
            size = int.from_bytes(opened.read(8), "little")
            header = json.loads(opened.read(size)) if size < _LONGEST_HEADER else {}
        return {name: Stored(file, name, facts["shape"]) for name, facts in header.items() if name != "__metadata__"}
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return {}


def pickled_in(file: Path) -> dict[str, Any]:
    """Return the tensors of a file that torch saved, which are read when they are used."""
    import torch

    try:
        loaded = torch.load(file, map_location="cpu", mmap=True, weights_only=True)
    except Exception:  # an old format, or damage, of which the loader says more
        return {}
    return {name: value for name, value in loaded.items() if isinstance(value, torch.Tensor)}


def require_safe_adapter(folder: Path, *, name: str, pickle_weights: bool) -> None:
    """Refuse an adapter that runs code when read, by the file names that PEFT looks for."""
    config, safe, pickled = (
        folder / file for file in ("adapter_config.json", "adapter_model.safetensors", "adapter_model.bin")
    )
    if not folder.exists():
        raise ModelError(f"model {name!r}: no such folder: {folder}; check its adapter:")
    if not config.is_file():
        raise ModelError(f"model {name!r}: no adapter_config.json in {folder}: expected a folder saved by PEFT")
    if safe.is_file() or (pickle_weights and pickled.is_file()):
        _require_content([config, safe if safe.is_file() else pickled], name=name)
        return
    if not pickled.is_file():
        raise ModelError(f"model {name!r}: no weights in {folder}: expected {safe.name}")
    raise ModelError(
        f"model {name!r}: {folder} has its weights only as pickle ({pickled.name}), which can run any code when "
        f"loaded; save it as {safe.name}, or set pickle_weights: true if you trust it"
    )


def require_own_code(folder: Path, *, name: str) -> None:
    """Refuse code in another repository, as in ``"auto_map": {"AutoModel": "org/repo--modeling.Class"}``.

    Our digests do not cover it.
    """
    for file in (folder / "config.json", folder / "tokenizer_config.json"):
        try:
            mapped = json.loads(file.read_bytes()).get("auto_map")
        except (OSError, ValueError, AttributeError, RecursionError):
            continue  # absent, or reported elsewhere as malformed
        if (foreign := re.search(r'"([^"]+)--', json.dumps(mapped))) is not None:
            raise ModelError(
                f"model {name!r}: {file} takes its code from another repository, {foreign[1]}, where it may change: "
                "copy its .py files into the folder, and leave the repository out of auto_map"
            )


def open_checkpoint(folder: Path, *, name: str) -> Checkpoint:
    if not folder.is_dir():
        hint = "" if "/" in name else f"; check models.{name}.path"
        raise ModelError(f"model {name!r}: no such folder: {folder}{hint}")
    if (folder / "adapter_config.json").is_file():
        # The loader would take the base model that this file names, and pass over the weights in the folder.
        raise ModelError(
            f"model {name!r}: {folder} holds a PEFT adapter: put its folder under adapter: and its base "
            "model's under path:"
        )
    file = folder / "config.json"
    if not file.is_file():
        raise ModelError(f"model {name!r}: no config.json in {folder}: expected a folder made by save_pretrained")
    _require_content([file], name=name)
    try:
        config = json.loads(file.read_bytes())
    except RecursionError:
        raise ModelError(f"model {name!r}: {file}: nested too deeply to be a model's config") from None
    except OSError as error:
        raise ModelError(f"model {name!r}: {file}: cannot be read: {error.strerror}") from error
    except ValueError as error:
        raise ModelError(f"model {name!r}: {file}: not JSON: {error}") from error
    if not isinstance(config, dict):
        raise ModelError(f"model {name!r}: {file}: expected a JSON object, got {type(config).__name__}")
    return Checkpoint(name, config, folder)


def require_tokenizer(folder: Path, *, name: str) -> None:
    """Refuse a folder without a tokenizer: a library may invent an empty one for it."""
    _require_content((folder / file for file in _TOKENIZER_FILES), name=name)
    if not any((folder / file).exists() for file in _TOKENIZER_FILES):
        raise ModelError(
            f"model {name!r}: no tokenizer in {folder}: expected tokenizer.json or tokenizer.model; save it there with "
            "tokenizer.save_pretrained, or set tokenizer: to the folder that has it"
        )


def _require_content(files: Iterable[Path], *, name: str) -> None:
    for file in files:
        if is_lfs_pointer(file):
            raise ModelError(f"model {name!r}: {pull_hint(file)}")


def _offset(config: Mapping[str, Any]) -> int:
    """Return how many positions no token ever has."""
    if config.get("model_type") not in _OFFSET_POSITIONS:
        return 0
    pad = config.get("pad_token_id")
    return (1 if pad is None else int(pad)) + 1


def _positive(value: object) -> int | None:
    # Some configs write 1e30 for "no limit".
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < 1e9:
        return None
    return int(value)


def checkpoint_folder(entry: ModelEntry, engine: str) -> Path:
    """Return the folder of a model's entry, fetched if it is of the hub."""
    spec, name = entry.spec, entry.name
    if spec.path is not None:
        return entry.path(spec.path)
    if spec.hub is None:
        raise ConfigError(f"models.{name}: the engine {engine} expects path: or hub:")
    try:
        return fetch_checkpoint(
            spec.hub, spec.revision, name=name, offline=entry.offline, pickle_weights=spec.pickle_weights
        )
    except ModelError as error:
        if name.partition("@")[0] != spec.hub:
            raise
        # `org/name`, written instead of a name, may have been meant as a path.
        raise type(error)(
            f"{str(error).rstrip('.')}; there is no folder {spec.hub} either (write ./{spec.hub}, or name it in "
            "lmgate.yaml)"
        ) from error


def fetch_checkpoint(
    repo: str,
    revision: str | None,
    *,
    name: str,
    offline: bool,
    pickle_weights: bool = False,
    only_tokenizer: bool = False,
) -> Path:
    """Return the local folder of a hub model; missing files are fetched.

    A branch is looked up in each session; a full commit only if the local cache lacks a part of it. Weights in pickle
    files are fetched only with `pickle_weights`, and no weights at all with `only_tokenizer`.
    """
    import huggingface_hub
    from huggingface_hub.errors import LocalEntryNotFoundError

    ignored = _NEVER + (_WEIGHTS if only_tokenizer else [] if pickle_weights else _PICKLE_PATTERNS)
    if not offline and revision is not None and re.fullmatch(r"[0-9a-f]{40}", revision):
        with contextlib.suppress(LocalEntryNotFoundError):
            local = Path(huggingface_hub.snapshot_download(repo, revision=revision, local_files_only=True))
            # If only a model was loaded, a snapshot has no tokenizer.
            has_tokenizer = any(path for pattern in _TOKENIZERS for path in local.glob(pattern))
            if has_tokenizer and (only_tokenizer or _has_weights(local)):
                return local
    where = f"hub:{repo}{'@' + revision if revision else ''}"
    try:
        folder = huggingface_hub.snapshot_download(
            repo, revision=revision, local_files_only=offline, ignore_patterns=ignored
        )
    except Exception as error:
        if offline:
            raise OfflineError(
                f"model {name!r}: {where} is not in the local hub cache, and --lmgate-offline forbids fetching it; "
                "run once without it, or give a local path"
            ) from error
        raise ModelError(f"model {name!r}: {where} cannot be fetched: {error}") from error
    return Path(folder)


def _has_weights(folder: Path) -> bool:
    """Return whether a snapshot has its config and all its weights; a download may have been cut off."""
    if not (folder / "config.json").exists():
        return False
    index = folder / "model.safetensors.index.json"
    if not index.exists():
        return (folder / "model.safetensors").exists()
    shards = json.loads(index.read_bytes())["weight_map"].values()
    return all((folder / shard).exists() for shard in shards)


def find_tokenizer(entry: ModelEntry, tokenizer: str) -> Path:
    """Return the folder that ``tokenizer:`` of an entry names, fetched if it is a hub id."""
    folder = entry.path(tokenizer)
    if not folder.is_dir():
        if (hub_id := entry.hub_id(tokenizer)) is None:
            raise ModelError(f"model {entry.name!r}: no such folder: {folder}; check its tokenizer:")
        folder = fetch_checkpoint(*hub_id, name=entry.name, offline=entry.offline, only_tokenizer=True)
    require_tokenizer(folder, name=entry.name)
    return folder


@dataclass(frozen=True)
class TokenizerFolder:
    """The folder of a model's tokenizer, and how it is loaded."""

    name: str  # the model's, for messages
    path: Path
    options: Mapping[str, Any] = field(default_factory=dict)  # for the tokenizer's from_pretrained
    trust_remote_code: bool = False

    @classmethod
    def of(cls, entry: ModelEntry, own: Path | None = None) -> TokenizerFolder:
        """Return the folder that an entry names, fetched if it is of the hub, or else the model's `own`."""
        name, spec = entry.name, entry.spec
        path = own if spec.tokenizer_path is None else find_tokenizer(entry, spec.tokenizer_path)
        if path is None:
            raise ConfigError(
                f"models.{name}.tokenizer: expected path:, a folder or a hub id, because the model has no folder"
            )
        require_tokenizer(path, name=name)
        for part in {own or path, path} if spec.trust_remote_code else ():
            require_own_code(part, name=name)
        return cls(name, path, spec.tokenizer_options, spec.trust_remote_code)

    @property
    def files(self) -> dict[str, Path]:
        """The files that can change the tokens, by their names in an address."""
        files = checkpoint_files(self.path).items()
        return {f"tokenizer/{file}": path for file, path in files if path.suffix not in WEIGHTS} | self.named_files

    @property
    def named_files(self) -> dict[str, Path]:
        """The files that the options name."""
        texts = {text: (Path(text), self.path / text) for text in texts_in(self.options)}
        return {f"tokenizer.{text}": path for text, paths in texts.items() for path in paths if is_file(path)}

    @property
    def ingredients(self) -> dict[str, str]:
        """What the options add to an address; nothing without any."""
        return {"tokenizer": json.dumps(_ordered(self.options), default=str)} if self.options else {}


class Contents(NamedTuple):
    """A model's files as they were when they were hashed."""

    ingredients: dict[str, str]  # digests of the files, and the entry's options that change numbers, as text
    snapshot: Snapshot  # the status of files and folders
    hashed: frozenset[str]  # paths of the files
    parts: Mapping[str, Path]  # the folders ``model``, ``tokenizer`` and ``adapter``
    entry: ModelEntry  # the model's entry
    tokenizer: TokenizerFolder
    unknown: str  # why it is not known what code runs; empty if it is, or if the user gave a revision

    def model(self, checkpoint: Checkpoint, open_: Callable[[], Runner], **own: Any) -> Model:
        """Return the described model; `own` are the fields that its files do not decide."""
        return Model(
            self.entry.name,
            open_,
            content=self.ingredients,
            weight_bytes=checkpoint.weight_bytes,
            architecture=checkpoint.architecture,
            not_kept=self.unknown,
            files=self.snapshot,
            changed=self.changed,
            **own,
        )

    def changed(self) -> list[str]:
        """Return the files that have changed since, were added or removed."""
        if not (moved := self.snapshot.moved):
            return []
        there = {str(path) for path in _files(self.parts, self.entry, self.tokenizer).values()}  # a file may be new
        return sorted((there ^ self.hashed) | (set(moved) & self.hashed))


def contents_of(entry: ModelEntry, *, model: Path, tokenizer: TokenizerFolder, adapter: Path | None = None) -> Contents:
    """Hash the folders of a model, of its tokenizer, which may be the same, and of its adapter."""
    spec, parts = entry.spec, {"model": model, "tokenizer": tokenizer.path}
    if adapter is not None:
        parts["adapter"] = adapter
    files = _files(parts, entry, tokenizer)
    folders = [where for paths in parts.values() for where in folders_below(paths)]
    snapshot, ingredients = entry.hash_files(files, folders)
    ingredients |= {
        "load": json.dumps(_ordered(spec.load), default=str),
        "dtype": entry.dtype,
        "trust_remote_code": str(spec.trust_remote_code),
        **tokenizer.ingredients,
    }
    unknown, paths = "", frozenset(map(str, files.values()))
    if spec.trust_remote_code and spec.revision is None:
        code = ", ".join(sorted(Path(path).name for path in paths if path.endswith(".py")))
        unknown = f"it runs code of its own ({code}), whose imports are not part of the cache key" if code else ""
    return Contents(ingredients, snapshot, paths, parts, entry, tokenizer, unknown)


def _files(parts: Mapping[str, Path], entry: ModelEntry, tokenizer: TokenizerFolder) -> dict[str, Path]:
    """Return the files of a model's parts by their names in an address."""
    files = tokenizer.named_files
    for part, where in parts.items():
        if part == "model" or where != parts["model"]:
            for file, path in checkpoint_files(where, everything=entry.spec.trust_remote_code).items():
                if part != "tokenizer" or path.suffix not in WEIGHTS:
                    files[f"{part}/{file}"] = path
    for text in texts_in(entry.spec.load):  # as in gguf_file: inner/model.gguf
        for path in (Path(text), parts["model"] / text):
            if is_file(path):
                files[f"load/{text}"] = path
    return files


def _ordered(value: Any) -> Any:
    """Turn mappings into sorted lists of items; keys of YAML may be numbers and texts, which do not sort."""
    if isinstance(value, Mapping):
        return sorted(([repr(key), _ordered(item)] for key, item in value.items()), key=lambda item: item[0])
    return [_ordered(item) for item in value] if isinstance(value, list) else value
