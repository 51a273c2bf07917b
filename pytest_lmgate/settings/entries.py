"""The shape of lmgate.yaml: frozen, typed specs of models and datasets, and the project with its folder.

Decoding is in `settings.file`.
"""

from __future__ import annotations

import errno
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta
from msgspec.structs import fields

from pytest_lmgate.errors import ConfigError, nearest
from pytest_lmgate.settings.extraction import Steps, read_extractions
from pytest_lmgate.settings.gate_options import GenerationRequest
from pytest_lmgate.settings.metrics import Direction
from pytest_lmgate.settings.options import FILE_NAME, misspelt

DEVICES = ("auto", "cuda", "mps", "cpu", "xpu")
_DTYPES = {
    **dict.fromkeys(("fp16", "f16", "half"), "float16"),
    **dict.fromkeys(("bf16", "bfloat"), "bfloat16"),
    **dict.fromkeys(("fp32", "f32", "float", "single"), "float32"),
    **dict.fromkeys(("fp64", "f64", "double"), "float64"),
}
_DEVICE = {
    "words": f"one of {', '.join(DEVICES)}, or one of several as in cuda:1",
    "names": list(DEVICES),
    "synonyms": {"gpu": "cuda", "rocm": "cuda", "hip": "cuda"},  # torch calls AMD's GPUs cuda too
}
Dtype = Annotated[Literal["auto", "float64", "float32", "bfloat16", "float16"], Meta(extra={"synonyms": _DTYPES})]
Device = Annotated[str, Meta(pattern=rf"^({'|'.join(DEVICES)}|(cuda|mps|xpu|cpu):\d+)$", extra=_DEVICE)]
BatchSize = Literal["auto"] | Annotated[int, Meta(ge=1)]
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


# Arguments of a tokenizer's from_pretrained of which the same holds.
_BESIDE_TOKENIZER = {
    "trust_remote_code": "trust_remote_code",
    "revision": "path",
    "subfolder": "path",
    "config": "path",
}


class Defaults(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Defaults for models whose entries do not set these keys.

    Attributes:
        device: ``auto`` (cuda, else mps, else cpu), or a torch device such as ``cpu`` or ``cuda:1``.
        dtype: ``auto`` is the checkpoint's own.
        batch_size: Windows per batch, or ``auto`` for a budget of tokens.
    """

    device: Device = "auto"
    dtype: Dtype = "auto"
    batch_size: BatchSize = "auto"


class Requirements(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """What a machine needs to run a server; elsewhere the server's gates are skipped.

    Attributes:
        gpus: Number of GPUs.
        command: A program in PATH, such as ``nvidia-smi``.
    """

    gpus: Annotated[int, Meta(ge=1)] | None = None
    command: Annotated[str, Meta(min_length=1)] | None = None


class ServerSpec(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A server that the session starts, under ``server:`` of a model.

    Attributes:
        command: The command that starts it, with ``{port}`` for the port; split like a shell command and run without a
            shell, in the folder of lmgate.yaml.
        env: Environment variables in addition to those of pytest.
        wait: Seconds until it must answer.
        health: Path that it answers once it is ready.
        content: Files and folders that decide its numbers; with them its measurements are cached.
        image: Digest of the container that it runs in, as in ``sha256:4f53..``; with it its measurements are cached.
        versions: Packages in pytest's environment that decide its numbers.
        requires: What the machine needs, as in ``{gpus: 2, command: nvidia-smi}``; elsewhere its gates are skipped.
        together: Whether it fits on the machine together with other servers that have this key.
    """

    command: Annotated[str, Meta(min_length=1)]
    env: dict[str, str | int] = msgspec.field(default_factory=dict)
    wait: Annotated[int, Meta(ge=1)] = 600
    health: Annotated[str, Meta(pattern="^/", extra={"words": "a path as in /health"})] = "/v1/models"
    content: list[str] = msgspec.field(default_factory=list)
    image: (
        Annotated[str, Meta(pattern="sha256:[0-9a-f]{64}$", extra={"words": "a digest as in sha256:4f53.."})] | None
    ) = None
    versions: list[str] = msgspec.field(default_factory=list)
    requires: Requirements | None = None
    together: bool = False


class ResultsSpec(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Results that another tool measured, under ``results:`` of a model.

    Attributes:
        path: File or folder of lm-evaluation-harness, inspect_ai, lighteval or Every Eval Ever, or a table, relative to
            lmgate.yaml.
        id: Column of a table that names the row.
        score: Column of a table with the row's score.
        cluster: Column of a table with what rows that belong together share.
        better: Which scores are better, if neither the files nor the metric's name tell.
    """

    path: Annotated[str, Meta(min_length=1)]
    id: str = ""
    score: str = ""
    cluster: str = ""
    better: Direction | None = None


class ModelSpec(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """One entry of ``models:`` with one of `path`, `hub`, `server`, `command` and `results`, or a `backend` alone.

    Attributes:
        path: Folder of the checkpoint, relative to lmgate.yaml.
        hub: Hub id, as in ``org/name``.
        server: Address of a server that runs the model, as in ``http://localhost:8000/v1``, or how to start one, as in
            ``{command: "vllm serve models/int8 --port {port}"}``.
        results: File or folder of results that another tool measured, which gates read and no model runs; of a table
            with its columns, as in ``{path: scores.csv, id: question, score: correct}``.
        model: The server's name for the model.
        key: Environment variable with the server's key.
        command: Command of a program of your own that reads token ids and prints log-probabilities, as in
            ``python score.py models/phone.pte``; split like a shell command and run without a shell, in the folder of
            lmgate.yaml.
        env: Environment variables of that program in addition to those of pytest.
        content: Files and folders that decide that program's numbers; with them its measurements are cached.
        versions: Packages in pytest's environment that decide that program's numbers.
        requires: What the machine needs to run that program, as in ``{gpus: 1, command: adb}``; elsewhere its gates are
            skipped.
        revision: Branch, tag or commit of the hub id. With a path, any text; change it when code changes that this
            package cannot identify; see docs/cache.md.
        backend: Name of the engine; by default that of the path's suffix, else transformers.
        tokenizer: Folder or hub id of the tokenizer, if not the model's own; or this as `path`, if it is another, and
            options of the tokenizer's ``from_pretrained``, as in ``{fix_mistral_regex: true}``.
        adapter: Folder of a PEFT adapter to put on the model.
        load: Passed on to ``from_pretrained``; ``{dequantize: true}`` measures the dequantized weights of a quantized
            checkpoint.
        dtype: See `Defaults`.
        device: See `Defaults`.
        batch_size: See `Defaults`.
        trust: ``hub`` takes the SHA-256 by which the hub's cache names a large file of a hub id for its content, and
            reads the file only to load it: seconds less for each gigabyte, and damage on the disk stays unseen.
        trust_remote_code: Permit Python code that comes with the checkpoint to run.
        pickle_weights: Permit weights in pickle files (.bin, .pt), which can run any code.
        chat_template_kwargs: Variables of its chat template, as in ``{enable_thinking: false}``; before those of a
            dataset.
    """

    path: str | None = None
    hub: str | None = None
    server: str | ServerSpec | None = None
    results: Annotated[str, Meta(min_length=1)] | ResultsSpec | None = None
    model: str | None = None
    key: str | None = None
    command: Annotated[str, Meta(min_length=1)] | None = None
    env: dict[str, str | int] = msgspec.field(default_factory=dict)
    content: list[str] = msgspec.field(default_factory=list)
    versions: list[str] = msgspec.field(default_factory=list)
    requires: Requirements | None = None
    revision: str | None = None
    backend: str | None = None
    tokenizer: str | dict[str, Any] | None = None
    adapter: str | None = None
    load: dict[str, Any] = msgspec.field(default_factory=dict)
    dtype: Dtype | None = None
    device: Device | None = None
    batch_size: BatchSize | None = None
    trust: Literal["hub"] | None = None
    trust_remote_code: bool = False
    pickle_weights: bool = False
    chat_template_kwargs: dict[str, Any] = msgspec.field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.results is not None:
            for field in fields(ModelSpec):
                if field.name != "results" and getattr(self, field.name) not in (None, False, {}, []):
                    raise ConfigError.of(field.name, "results: are only read, so no other key has a use; remove it")
        elif self.backend is None or self.path or self.hub or self.server or self.command:
            several = {"hub": self.hub, "server": self.server, "command": self.command, "results": self.results}
            _exactly_one(path=self.path, **several)
        if self.trust and not self.hub:
            raise ConfigError.of("trust", "expected it at a model with hub:, since only the hub's cache names files so")
        for key, instead in _BESIDE_LOAD.items():
            if self.backend in (None, "transformers") and key in self.load:
                raise ConfigError.of(f"load.{key}", f"put {instead}: next to load:, not inside it")
        for key in self.tokenizer_options:
            if key in _BESIDE_TOKENIZER:
                raise ConfigError.of(f"tokenizer.{key}", f"the key {_BESIDE_TOKENIZER[key]}: of the model decides it")
        if not isinstance(self.tokenizer_path, str | None):
            raise ConfigError.of("tokenizer.path", f"expected a folder or a hub id, got {self.tokenizer_path!r}")

    @property
    def results_spec(self) -> ResultsSpec | None:
        return ResultsSpec(path=self.results) if isinstance(self.results, str) else self.results

    @property
    def tokenizer_path(self) -> str | None:
        """Folder or hub id of the tokenizer; None for the model's own."""
        return self.tokenizer.get("path") if isinstance(self.tokenizer, dict) else self.tokenizer

    @property
    def tokenizer_options(self) -> dict[str, Any]:
        given = self.tokenizer if isinstance(self.tokenizer, dict) else {}
        return {key: value for key, value in given.items() if key != "path"}


class RowSample(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Some rows of a dataset, drawn without replacement, in the file's order.

    Attributes:
        rows: Number of rows to draw.
        seed: Another seed draws other rows.
        by: Column of strata, such as a subject, each of which gets its share of the rows.
    """

    rows: Annotated[int, Meta(ge=1)]
    seed: Annotated[int, Meta(ge=0)] = 0
    by: Annotated[str, Meta(min_length=1)] | None = None


_SAMPLE = {"words": "rows (1 or more), and if wanted a seed and a column, as in {rows: 500, seed: 0, by: subject}"}


_Extraction = str | list[str | dict[str, Any]]


class TaskSpec(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The task of lm-evaluation-harness whose own code scores a dataset's texts, or the likelihoods of its choices.

    Attributes:
        file: Its YAML file, relative to lmgate.yaml or to the harness's own tasks.
        metrics: Its metrics, and which values of each are better.
    """

    file: str
    metrics: Annotated[dict[str, Direction], Meta(min_length=1)]


def is_task_metric(name: str) -> bool:
    """Whether a metric is a dataset's ``task:``, or ``task.NAME`` for another metric of the task than its first."""
    return name.partition(".")[0] == "task"


class DatasetSpec(GenerationRequest, frozen=True, forbid_unknown_fields=True, kw_only=True, omit_defaults=False):
    r"""One entry of ``datasets:``; exactly one of `path` and `hub` is given.

    What it says of generated texts, such as `max_new_tokens`, is for gates that do not say it.

    Attributes:
        path: File (text, .jsonl, .csv, .tsv, .parquet) or a folder saved by datasets, relative to lmgate.yaml.
        hub: Hub id, with `name` (configuration), `split` and `revision`.
        text: Column that holds the text.
        counted: Column of the texts whose words, characters and bytes are counted, if not those of `text`: wikitext
            before its tokens were joined, for example. Only protocols that read row by row use it.
        join: Separator between rows that are read as one text; two newlines by default.
        limit: Number of rows to read from the start.
        sample: Rows to draw instead, as in ``{rows: 500, seed: 0, by: subject}``.
        tokens: For a text file that is one text: read its beginning, as far as it has this many of the model's tokens.
        lines: For .txt: each line is a row; by default the file is one unchanged text.
        prompt: Template with ``{column}`` fields that a text is generated from.
        source: Column instead of a template, for models that take the bare text.
        references: Columns that hold references, a text or a list of texts each.
        chat: Put the prompt, or the question, into the model's chat template.
        messages: Column of whole chats, lists of ``{role, content}``, instead of `source` or `question`; an
            assistant's turn at the end is continued.
        chat_template_kwargs: Variables of the chat template, with `chat` or `messages`.
        system: Text of the chat's system message; without `chat`, text before everything.
        examples: File of rows shown before each prompt with their first reference, or before each question with their
            right choice (few-shot).
        question: Column or template that a choice or a target follows; with `target` and `answer`, a column that holds
            a list of questions, one for each choice.
        choices: A column that holds a list, or the columns that hold one choice each.
        answer: Column of the right choice, its index from 0 or its text; a list holds all right choices.
        target: Column or template of the text that follows the question, instead of choices, or each question of a
            list.
        delimiter: Separator between question and choice or target; by default a space, with `chat` nothing.
        cluster: Column that groups rows that are not independent.
        average_by: Column of groups, such as a benchmark's tasks; the score is the mean of the groups' means instead
            of the mean of all rows.
        tags: Columns such as a language or a length, by which a comparison says where it got worse.
        extract: Steps that cut the answer out of a generated text, or the name of a preset; or names with these, of
            which a gate chooses one by `variant`.
        task: Task of lm-evaluation-harness whose own code scores the texts or choices: its YAML file (`file`), and the
            metrics with their directions (`metrics`). `lmgate import` writes it.
    """

    path: str | None = None
    hub: str | None = None
    name: str | None = None
    split: str | None = None
    revision: str | None = None
    text: str = "text"
    counted: str | None = None
    join: str | msgspec.UnsetType = msgspec.UNSET
    limit: Annotated[int, Meta(ge=1)] | None = None
    sample: Annotated[RowSample, Meta(extra=_SAMPLE)] | None = None
    tokens: Annotated[int, Meta(ge=1)] | None = None
    lines: bool = False
    prompt: str | None = None
    source: str | None = None
    references: str | list[str] | None = None
    chat: bool = False
    messages: str | None = None
    chat_template_kwargs: dict[str, Any] = msgspec.field(default_factory=dict)
    system: str | None = None
    examples: str | None = None
    question: str | None = None
    choices: str | list[str] | None = None
    answer: str | None = None
    target: str | None = None
    delimiter: str | msgspec.UnsetType = msgspec.UNSET
    cluster: str | None = None
    average_by: str | None = None
    tags: str | list[str] | None = None
    extract: _Extraction | dict[str, _Extraction] | None = None
    task: TaskSpec | None = None

    def __post_init__(self) -> None:
        _exactly_one(path=self.path, hub=self.hub)
        if self.prompt is not None and self.source is not None:
            raise ConfigError(
                "prompt, source: expected one of them, got both; source: column is short for prompt: {column}"
            )
        listed = self.choices if isinstance(self.choices, list) else []
        if twice := next((column for column in listed if listed.count(column) > 1), None):
            raise ConfigError.of("choices", f"the column {twice!r} is listed twice: no model could tell them apart")
        if self.lines and (self.path is None or not self.path.endswith(TEXT_SUFFIXES)):
            raise ConfigError.of("lines", "only text files have lines:; the other formats have rows")
        if self.path is not None and self.path.endswith(TEXT_SUFFIXES):
            columns = {key: getattr(self, key) for key in ("counted", "tags", "cluster", "average_by")}
            columns["sample.by"] = self.sample is not None and self.sample.by
            for key, given in {**columns, "text": self.text != "text"}.items():
                if given:
                    raise ConfigError.of(key, "a text file has no columns; use .jsonl, .csv, .tsv or .parquet")
            if self.join is not msgspec.UNSET and not self.lines:
                raise ConfigError.of("join", "it separates rows, but a text file is one text; set lines: true")
            for key in ("limit", "sample"):
                if getattr(self, key) is not None and not self.lines:
                    raise ConfigError.of(
                        key, "it counts rows, but a text file is one text; set lines: true, or use tokens:"
                    )
        elif self.tokens is not None:
            raise ConfigError.of("tokens", "only a text file has it; rows are counted by limit: or sample:")
        if self.tokens is not None and (self.lines or self.prompt or self.source or self.question):
            raise ConfigError.of("tokens", "it cuts one text, but here each line is a row; use limit: or sample:")
        if self.limit is not None and self.sample is not None:
            raise ConfigError.of("sample", "expected limit: (the first rows) or sample: (drawn rows), got both")
        if self.hub is None and (self.name or self.revision):
            raise ConfigError("name, revision: only a hub id has them")
        if self.split is not None and self.path is not None and self.path.endswith(DATA_SUFFIXES):
            raise ConfigError.of("split", "only a hub id has splits, or a folder saved by datasets")
        self._require_use()

    def _require_use(self) -> None:
        """Refuse keys that no gate on the dataset could use."""
        begins = self.has_prompts
        writes = begins and self.references is not None
        self._require_chat()
        if self.references is not None and not begins:
            raise ConfigError.of("references", "texts to compare need prompt:, source: or messages: to be written from")
        asks = self._require_question()
        self._require_texts(writes, asks)
        if self.counted is not None and (begins or asks):
            raise ConfigError.of("counted", "only a perplexity of texts counts words; remove it")
        if self.delimiter is not msgspec.UNSET and not asks:
            raise ConfigError.of("delimiter", "only multiple choice has it: question:, choices: and answer:")
        for key in ("chat", "system", "examples", "cluster", "average_by"):
            if getattr(self, key) and not writes and not asks and not (begins and key in ("chat", "system")):
                raise ConfigError.of(
                    key,
                    "only texts (prompt: or source:, and references:) and multiple choice (question:, choices: and "
                    "answer:) use it; a perplexity reads the rows as they are",
                )

    def _require_question(self) -> bool:
        """Return whether the entry has questions; refuse keys of which one needs another."""
        if self.target is None:
            asked = "question" if self.messages is None else "messages"
            keys = {f"{key}:": getattr(self, key) for key in (asked, "choices", "answer")}
            given = [key for key, value in keys.items() if value is not None]
            if given == ["messages:"]:
                return False
            if given and (lacking := " and ".join(key for key, value in keys.items() if value is None)):
                key, named = given[0][:-1], " and ".join(given)
                raise ConfigError.of(key, f"a multiple-choice dataset with {named} also needs {lacking}")
            return bool(given)
        if self.messages is not None and self.answer is not None:
            raise ConfigError.of("target", "with messages: it follows one chat; remove answer:")
        if self.question is None and self.messages is None:
            raise ConfigError.of("target", "it needs question:, the column or template of the text that it follows")
        if self.answer is None and self.choices is not None:
            raise ConfigError.of("choices", "with target: they need answer: too; without choices, remove the key")
        if self.answer is not None and "{" in str(self.question):
            raise ConfigError.of(
                "question",
                "with target: and answer:, expected a column that holds a list of questions, one for each choice, got "
                f"the template {self.question!r}; without answer:, a target follows one question",
            )
        return True

    def _require_chat(self) -> None:
        """Refuse keys that make a chat, next to a column of whole chats, and variables of a template without a chat."""
        if self.messages is not None:
            for key in ("prompt", "source", "question", "chat", "system", "examples"):
                if getattr(self, key):
                    raise ConfigError.of(key, "messages: is the whole chat; remove one of them")
        if self.chat_template_kwargs and not self.is_chat:
            raise ConfigError.of("chat_template_kwargs", "only a chat uses it: chat: true, or messages:")

    @property
    def has_prompts(self) -> bool:
        """Whether a model can go on from its rows; comparing what it writes needs `references` too."""
        return any(each is not None for each in (self.prompt, self.source, self.messages))

    @property
    def is_chat(self) -> bool:
        """Whether the model's chat template makes the prompts."""
        return self.chat or self.messages is not None

    def _require_texts(self, writes: bool, asks: bool) -> None:
        """Refuse settings of generated texts that contradict each other, or that nothing would read."""
        said = [key for key in self.given if key != "truncate" or not asks]
        said += ["extract"] if self.extract is not None else []
        if said and not writes:
            raise ConfigError.of(said[0], "only generated texts use it: prompt: or source:, and references:")
        if self.task is not None and not writes and self.answer is None:
            raise ConfigError.of("task", "its code scores texts or choices, and the dataset has neither; remove it")
        self.settings()
        if self.extract is not None:
            read_extractions(self.extract)

    def steps(self, variant: str) -> Steps | None:
        """Return the steps of an extraction, without a name those of the first; None if there is none."""
        known = {} if self.extract is None else read_extractions(self.extract)
        if not variant:
            return next(iter(known.values()), None)
        if variant not in known:
            names = ", ".join(filter(None, known)) or "none with a name"
            raise ConfigError.of(
                "variant",
                f"expected an extraction of the dataset, got {variant!r}{nearest(variant, known)}; it has {names}",
            )
        return known[variant]

    @property
    def between(self) -> str:
        """Separator between question and choice; with `chat` the template has it, unless `delimiter` is set."""
        if isinstance(self.delimiter, msgspec.UnsetType):
            return "" if self.is_chat else " "
        return self.delimiter


class ProjectSpec(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The whole of lmgate.yaml.

    Attributes:
        devices: Names of GPUs, as reports show them, whose numbers count as one GPU's, or ``equal`` for all GPUs; a
            machine without a GPU then takes their numbers from the cache.
        label: Name of the machine in the baseline, as in ``${RUNNER_CLASS}``: each has an entry of its own. By default
            GPUs are told apart by name, and processors are not.
    """

    devices: Literal["equal"] | Annotated[list[str], Meta(min_length=1)] = msgspec.field(default_factory=list)
    label: str = ""
    defaults: Defaults = msgspec.field(default_factory=Defaults)
    models: dict[str, ModelSpec] = msgspec.field(default_factory=dict)
    datasets: dict[str, DatasetSpec] = msgspec.field(default_factory=dict)

    def __post_init__(self) -> None:
        if "$" in re.sub(r"\$\{\w+\}", "", self.label):
            raise ConfigError.of("label", f"expected variables as in ${{RUNNER_CLASS}} alone, got {self.label!r}")


def _exactly_one(**keys: object) -> None:
    given = [f"{key}:" for key, value in keys.items() if value]
    if len(given) != 1:
        *some, last = (f"{key}:" for key in keys)
        got = " and ".join(given) or ("neither" if len(keys) == 2 else "none of them")
        raise ConfigError(f"expected exactly one of {', '.join(some)} and {last}, got {got}")


@dataclass(frozen=True)
class Project:
    """A decoded lmgate.yaml and the folder that its paths are relative to."""

    folder: Path
    file: Path | None = None
    spec: ProjectSpec = field(default_factory=ProjectSpec)

    @property
    def origin(self) -> str:
        """Where the names come from, for messages."""
        if self.file:
            return str(self.file)
        misnamed = "".join(f"; {file.name} is not read" for file in misspelt(self.folder))
        return f"no {FILE_NAME} in {self.folder} or above{misnamed}"

    def path(self, written: str) -> Path:
        """Resolve a path of the file; it need not exist."""
        try:
            path = self.folder / Path(written).expanduser()
            path.lstat()
        except (ValueError, RuntimeError) as error:
            raise ConfigError(f"{written[:60]!r} cannot be a path: {error}") from error
        except OSError as error:
            if error.errno == errno.ENAMETOOLONG:
                raise ConfigError(
                    f"{written[:60]!r}... ({len(written):,} characters) cannot be a path: {error.strerror}"
                ) from error
        return path
