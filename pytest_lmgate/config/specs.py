"""The shape of lmgate.yaml: frozen, typed specs of models and datasets. Decoding is in `config.file`."""

from __future__ import annotations

__all__ = [
    "DATA_SUFFIXES",
    "DEVICES",
    "DTYPES",
    "TEXT_SUFFIXES",
    "DatasetSpec",
    "Defaults",
    "ModelSpec",
    "ProjectSpec",
    "check_device",
]

import re
from typing import Any

import msgspec

from pytest_lmgate.errors import ConfigError, nearest

DEVICES = ("auto", "cuda", "mps", "cpu", "xpu")
DTYPES = ("auto", "float64", "float32", "bfloat16", "float16")
_DEVICE_SYNONYMS = {"gpu": "cuda", "rocm": "cuda", "hip": "cuda"}  # torch calls AMD's GPUs cuda too
_DTYPE_SYNONYMS = {
    **dict.fromkeys(("fp16", "f16", "half"), "float16"),
    **dict.fromkeys(("bf16", "bfloat"), "bfloat16"),
    **dict.fromkeys(("fp32", "f32", "float", "single"), "float32"),
    **dict.fromkeys(("fp64", "f64", "double"), "float64"),
}
TEXT_SUFFIXES = (".txt", ".raw", ".text", ".md")
DATA_SUFFIXES = (*TEXT_SUFFIXES, ".jsonl", ".csv", ".tsv", ".parquet")
# Arguments of from_pretrained that the entry itself decides, by the key that does.
_BESIDE_LOAD = {
    "dtype": "dtype",
    "torch_dtype": "dtype",
    "trust_remote_code": "trust_remote_code",
    "use_safetensors": "pickle_weights",
    "revision": "revision",
    # What these name would be read, but not be in the measurement's address.
    "subfolder": "path",
    "config": "path",
    "adapter_kwargs": "adapter",
}


class Defaults(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """What a model gets where its own entry is silent.

    Attributes:
        device: ``auto`` (cuda, else mps, else cpu), or a torch device such as ``cpu`` or ``cuda:1``.
        dtype: ``auto`` is the checkpoint's own.
        batch_size: Windows per batch, or ``auto`` for a budget of tokens.
    """

    device: str = "auto"
    dtype: str = "auto"
    batch_size: int | str = "auto"

    def __post_init__(self) -> None:
        _check_running(self.dtype, self.device, self.batch_size)


class ModelSpec(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """One entry of ``models:``; exactly one of `path`, `hub` and `server` is given, unless `backend` names an engine.

    Attributes:
        path: Folder of the checkpoint, relative to lmgate.yaml.
        hub: Hub id, as in ``org/name``.
        server: Address of a server that runs the model, as in ``http://localhost:8000/v1``.
        model: Of a server, its name for the model.
        key: Of a server, the environment variable that holds its key.
        revision: Branch, tag or commit of the hub id. Of a path, a text that the user changes whenever code that this
            package cannot identify changes; see docs/cache.md.
        backend: Name of the engine; None takes the one of the path's suffix, else transformers.
        tokenizer: Folder or hub id of the tokenizer where it is not the model's own.
        adapter: Folder of a PEFT adapter to put on the model.
        load: Passed on to ``from_pretrained``.
        dtype: See `Defaults`; None takes the default.
        device: Likewise.
        batch_size: Likewise.
        trust_remote_code: Permit Python code that comes with the checkpoint to run.
        pickle_weights: Permit weights in pickle files (.bin, .pt), which can run any code when read.
    """

    path: str | None = None
    hub: str | None = None
    server: str | None = None
    model: str | None = None
    key: str | None = None
    revision: str | None = None
    backend: str | None = None
    tokenizer: str | None = None
    adapter: str | None = None
    load: dict[str, Any] = msgspec.field(default_factory=dict)
    dtype: str | None = None
    device: str | None = None
    batch_size: int | str | None = None
    trust_remote_code: bool = False
    pickle_weights: bool = False

    def __post_init__(self) -> None:
        if self.backend is None or self.path or self.hub or self.server:
            _exactly_one(path=self.path, hub=self.hub, server=self.server)
        for key, instead in _BESIDE_LOAD.items():
            if self.backend in (None, "transformers") and key in self.load:
                raise ConfigError.of(f"load.{key}", f"say {instead}: beside load:, not inside it")
        _check_running(self.dtype, self.device, self.batch_size)


class DatasetSpec(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    r"""One entry of ``datasets:``; exactly one of `path` and `hub` is given.

    Attributes:
        path: File (text, .jsonl, .csv, .tsv, .parquet) or a folder saved by datasets, relative to lmgate.yaml.
        hub: Hub id, with `name` (configuration), `split` and `revision`.
        text: Column that holds the text.
        join: What stands between rows when they are read as one text; two newlines unless said.
        limit: Use the first so many rows only.
        lines: For .txt: each line is a row; otherwise the file is one text, whole and unchanged.
        prompt: Template with ``{column}`` fields that a text is generated from.
        source: Column in place of a template, for models that take the bare text.
        references: Columns that hold references, a text or a list of texts each.
        chat: Put the prompt, or the question, into the model's chat template.
        system: Text of the chat's system message; without `chat`, text before everything.
        examples: File of rows shown before each prompt with their first reference, or before each question with their
            right choice (few-shot).
        question: Column or template that a choice follows.
        choices: A column that holds a list, or the columns that hold one choice each.
        answer: Column of the right choice, its index from 0 or its text.
        delimiter: What stands between question and choice; a space unless said, with `chat` nothing.
        cluster: Column that names what rows belong together, where they are not independent.
        tags: Columns such as a language or a length, by which a comparison says where it got worse.
    """

    path: str | None = None
    hub: str | None = None
    name: str | None = None
    split: str | None = None
    revision: str | None = None
    text: str = "text"
    join: str | msgspec.UnsetType = msgspec.UNSET
    limit: int | None = None
    lines: bool = False
    prompt: str | None = None
    source: str | None = None
    references: str | list[str] | None = None
    chat: bool = False
    system: str | None = None
    examples: str | None = None
    question: str | None = None
    choices: str | list[str] | None = None
    answer: str | None = None
    delimiter: str | msgspec.UnsetType = msgspec.UNSET
    cluster: str | None = None
    tags: str | list[str] | None = None

    def __post_init__(self) -> None:
        _exactly_one(path=self.path, hub=self.hub)
        if self.prompt is not None and self.source is not None:
            raise ConfigError(
                "prompt, source: expected one of them, got both; source: column is short for prompt: {column}"
            )
        if isinstance(self.choices, list) and (twice := _repeated(self.choices)):
            raise ConfigError.of("choices", f"the column {twice!r} is listed twice: no model could tell them apart")
        if self.limit is not None and self.limit < 1:
            raise ConfigError.of("limit", f"expected a number of rows from 1, got {self.limit}")
        if self.lines and (self.path is None or not self.path.endswith(TEXT_SUFFIXES)):
            raise ConfigError.of("lines", "only a text file is read by lines; the other formats have rows of their own")
        if self.path is not None and self.path.endswith(TEXT_SUFFIXES):
            for key, given in (("tags", self.tags), ("cluster", self.cluster), ("text", self.text != "text")):
                if given:
                    raise ConfigError.of(key, "a text file has no columns; use .jsonl, .csv, .tsv or .parquet")
            if self.join is not msgspec.UNSET and not self.lines:
                raise ConfigError.of("join", "it stands between rows, but a text file is one text; say lines: true")
            if self.limit is not None and not self.lines:
                raise ConfigError.of(
                    "limit", "it counts rows, but a text file is one text; say lines: true, or shorten it"
                )
        if self.hub is None and (self.name or self.revision):
            raise ConfigError("name, revision: only a hub id has them")
        if self.split is not None and self.path is not None and self.path.endswith(DATA_SUFFIXES):
            raise ConfigError.of("split", "only a hub id has splits, or a folder saved by datasets")
        self._require_use()

    def _require_use(self) -> None:
        """Refuse keys that no gate on the dataset could use, given the others."""
        writes = self.prompt is not None or self.source is not None
        if writes != (self.references is not None):
            asked = "prompt" if self.prompt is not None else "source"
            key, instead = (asked, "references:") if writes else ("references", "prompt: or source:")
            raise ConfigError.of(key, f"texts to write and to compare need {instead} beside {key}:")
        answers = {key: getattr(self, key) for key in ("question", "choices", "answer")}
        lacking = " and ".join(f"{key}:" for key, value in answers.items() if value is None)
        given = [key for key, value in answers.items() if value is not None]
        if lacking and given:
            beside = " and ".join(f"{key}:" for key in given)
            raise ConfigError.of(given[0], f"a multiple-choice dataset needs {lacking} beside {beside}")
        if self.delimiter is not msgspec.UNSET and not given:
            raise ConfigError.of("delimiter", "only multiple choice has it: question:, choices: and answer:")
        for key in ("chat", "system", "examples", "cluster"):
            if getattr(self, key) and not writes and not given:
                raise ConfigError.of(
                    key,
                    "only texts (prompt: or source:, and references:) and multiple choice (question:, choices: and "
                    "answer:) use it; a perplexity reads the rows as they are",
                )

    @property
    def between(self) -> str:
        """What stands between question and choice: in a chat the template has written it, unless `delimiter` is."""
        if isinstance(self.delimiter, msgspec.UnsetType):
            return "" if self.chat else " "
        return self.delimiter

    @property
    def tag_columns(self) -> tuple[str, ...]:
        """The columns of `tags`, each once."""
        written = [self.tags] if isinstance(self.tags, str) else self.tags or []
        return tuple(dict.fromkeys(written))


def _repeated(columns: list[str]) -> str | None:
    return next((column for column in columns if columns.count(column) > 1), None)


class ProjectSpec(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The whole of lmgate.yaml."""

    defaults: Defaults = msgspec.field(default_factory=Defaults)
    models: dict[str, ModelSpec] = msgspec.field(default_factory=dict)
    datasets: dict[str, DatasetSpec] = msgspec.field(default_factory=dict)


def check_device(device: str) -> None:
    """Refuse what no torch device is called.

    Raises:
        ConfigError: It is not one of `DEVICES`, nor one of several, as in ``cuda:1``.
    """
    if device not in DEVICES and not re.fullmatch(r"(cuda|mps|xpu|cpu):\d+", device):
        raise ConfigError.of(
            "device",
            f"expected one of {', '.join(DEVICES)}, or one of several as in cuda:1; got {device!r}"
            f"{nearest(device, DEVICES, _DEVICE_SYNONYMS)}",
        )


def _exactly_one(**keys: str | None) -> None:
    given = [f"{key}:" for key, value in keys.items() if value]
    if len(given) != 1:
        *some, last = (f"{key}:" for key in keys)
        got = " and ".join(given) or ("neither" if len(keys) == 2 else "none of them")
        raise ConfigError(f"expected exactly one of {', '.join(some)} and {last}, got {got}")


def _check_running(dtype: str | None, device: str | None, batch_size: int | str | None) -> None:
    if dtype is not None and dtype not in DTYPES:
        hint = nearest(dtype, DTYPES, _DTYPE_SYNONYMS)
        raise ConfigError.of("dtype", f"expected one of {', '.join(DTYPES)}; got {dtype!r}{hint}")
    if device is not None:
        check_device(device)
    if batch_size is not None and batch_size != "auto" and (not isinstance(batch_size, int) or batch_size < 1):
        raise ConfigError.of("batch_size", f"expected auto or a whole number of windows from 1, got {batch_size!r}")
