"""The engine server: describes a model behind an OpenAI-compatible HTTP server, of which nobody sees the weights."""

from __future__ import annotations

__all__ = ["Server"]

import json
from functools import partial
from pathlib import Path

from pytest_lmgate.backends.base import SAMPLING, Backend, Entry, Model, Runner
from pytest_lmgate.backends.entries import hashed, refuse_keys
from pytest_lmgate.backends.hf.models.tokenizer import facts_of_folder, find_tokenizer, tokenizer_files
from pytest_lmgate.backends.server.settings import ServerSettings
from pytest_lmgate.errors import ConfigError, ModelError, OfflineError
from pytest_lmgate.identity.libraries import versions

# Keys of an entry that mean nothing for a server, and what to do instead.
_NOT_HERE = {
    "path": "give server: and tokenizer:",
    "hub": "give server: and tokenizer:",
    "adapter": "have the server load the adapter as a model with its own name",
    "dtype": "the server decides it",
    "device": "the server decides it",
    "trust_remote_code": "only the tokenizer is read here, and its code is not run",
    "pickle_weights": "no weights are read here",
}
# A prompt ends with the target behind the last token that is read, and a server has to write a token of its own.
_TAKEN = 2
_NO_LIMIT = 10**7  # tokenizers without a limit have 1e30


class Server(Backend):
    """Models behind a server, with the tokens of a tokenizer's folder."""

    name = "server"
    offers = frozenset({"score", "generate"})

    def describe(self, entry: Entry) -> Model:
        """Describe a model; the server is asked for its context where the entry has none.

        Raises:
            ConfigError: The entry is not what it should be.
            ModelError: There is no tokenizer, no such model on the server, or no context.
            EngineError: The server cannot be reached.
        """
        spec, name = entry.spec, entry.name
        refuse_keys(entry, self.name, _NOT_HERE)
        settings = ServerSettings.of(entry)
        if spec.tokenizer is None:
            raise ConfigError(
                f"models.{name}.tokenizer: a served model needs the folder or hub id of its tokenizer, since windows "
                "and prompts are cut into tokens here"
            )
        folder = find_tokenizer(entry, spec.tokenizer)
        snapshot, digests = hashed(entry, tokenizer_files(folder))
        content = {**digests, "server": settings.url, "model": settings.model}

        def open_() -> Runner:
            from pytest_lmgate.backends.server.client import Client
            from pytest_lmgate.backends.server.runner import ServerRunner
            from pytest_lmgate.backends.server.tokens import tokens_of_folder

            _require_allowed(entry, settings)
            client = Client(name, settings)
            served = client.served_context()
            if served is not None and settings.context is not None and served < settings.context:
                raise ConfigError(
                    f"models.{name}.load.context: expected {served:,} at most, as the server, got {settings.context:,}"
                )
            return ServerRunner(client, tokens_of_folder(folder, name))

        return Model(
            name,
            open_,
            context=_context(entry, settings, folder) - _TAKEN,
            # Only the user knows when another build answers under the same address.
            content=content if spec.revision is not None else None,
            runtime={"device": "server", **versions(["transformers", "tokenizers"])},
            offers=self.offers,
            honours=SAMPLING,
            device="server",
            dtype="bfloat16",  # it may be
            writing=lambda: {"first space": "as the tokenizer has it"},  # earlier versions took the server's
            files=snapshot,
            changed=lambda: sorted(snapshot.moved),
            tokenizer=partial(facts_of_folder, name, folder),
        )


def _require_allowed(entry: Entry, settings: ServerSettings) -> None:
    if entry.offline and not settings.is_local:
        raise OfflineError(
            f"model {entry.name!r}: the server {settings.url} is not on this machine, and --lmgate-offline forbids the "
            "network; leave the option out, or forward a port of localhost to it"
        )


def _context(entry: Entry, settings: ServerSettings, folder: Path) -> int:
    """Return how many tokens prompt and text may have together, as the entry, the server or the tokenizer says.

    Raises:
        ModelError: Nobody says so.
    """
    if settings.context is not None:
        return settings.context
    from pytest_lmgate.backends.server.client import Client

    _require_allowed(entry, settings)
    client = Client(entry.name, settings)
    try:
        served = client.served_context()
    finally:
        client.close()
    if served is not None:
        return served
    try:
        length = json.loads((folder / "tokenizer_config.json").read_bytes()).get("model_max_length")
    except (OSError, ValueError, AttributeError):
        length = None
    if isinstance(length, int) and _TAKEN < length < _NO_LIMIT:
        return length
    raise ModelError(
        f"model {entry.name!r}: neither its server nor its tokenizer says how many tokens it can read; say so in "
        f"models.{entry.name}: load: {{context: 2048}}"
    )
