"""Faults of served models: what the server is asked, and that its answers come back as they are."""

import json
import subprocess
import sys
import urllib.request
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

pytest.importorskip("httpx2", reason="httpx2 is NOT installed; make test-server runs these tests")

from pytest_lmgate.errors import LmgateError
from pytest_lmgate.settings.gate_options import GenerationSettings
from pytest_lmgate.tools.drill.faults import known_faults
from pytest_lmgate.tools.drill.in_server import InServer
from pytest_lmgate.tools.drill.planting import NotPlanted
from pytest_lmgate.windows.tokens import PromptIds
from tests.end_to_end.projects import environment
from tests.engines.numbers import one_window
from tests.engines.projects import Project, text_of
from tests.engines.server.conftest import entry_of
from tests.engines.server.faulty import NAME, Bigrams, FaultyServer, normalized
from tests.engines.server.kills import FAKE, command_of, started

FAULTS = known_faults()
NEW, EOS = 12, 2
QUICK = {"context": 642, "retries": 0, "timeout": 20}
TEMPLATE = "{} says {}\n"


class Ending(Bigrams):
    """Texts end with their end token, repetitions are penalized on request, and chats have a template."""

    def __init__(self, tokenizer: Any) -> None:
        super().__init__(tokenizer)
        scores = np.random.default_rng(1).normal(size=self.logprobs.shape)
        scores[::7, EOS] = 9
        self.logprobs = self.reported = normalized(scores)
        self.end = EOS

    def weighed(self, row: Any, ids: list[int], body: dict[str, Any]) -> Any:
        row = row.copy()
        for token, bias in body.get("logit_bias", {}).items():
            row[int(token)] += bias
        row[list(set(ids))] *= body.get("repetition_penalty", 1.0)
        return row

    def answer(self, body: dict[str, Any]) -> dict[str, Any]:
        if messages := body.get("messages"):
            text = "".join(TEMPLATE.format(turn["role"], turn["content"]) for turn in messages)
            answer = self.answer({**body, "prompt": text, "messages": None})
            answer["choices"][0]["message"] = {"role": "assistant", "content": answer["choices"][0].pop("text")}
            return answer
        return super().answer(body)


@pytest.fixture
def ending(tokenizer: Any) -> Iterator[FaultyServer]:
    server = FaultyServer(tokenizer)
    server.bigrams = Ending(tokenizer)
    yield server
    server.close()


def broken(runner: Any, name: str, strength: int) -> Any:
    return FAULTS[name].planted(InServer(runner), strength).open()


def prompts(tokenizer: Any) -> list[PromptIds]:
    texts = [text_of(9, seed) for seed in range(6)]
    return [PromptIds(row, text, tuple(tokenizer(text)["input_ids"])) for row, text in enumerate(texts)]


def written(runner: Any, some: list[PromptIds], **settings: Any) -> list[str]:
    asked = GenerationSettings(max_new_tokens=NEW, **settings)
    with runner.measuring():
        runner.prepare_writing(some, asked)
        return [text for text, _, _ in runner.generate(some, asked)]


def asked(url: str, body: dict[str, Any]) -> Any:
    """Ask the server by this test's own hand."""
    how = {"model": NAME, "max_tokens": NEW, "temperature": 0.0, "return_token_ids": True}
    content = json.dumps({**how, **body}).encode()
    with urllib.request.urlopen(urllib.request.Request(f"{url}/completions", content)) as answer:
        return json.loads(answer.read())["choices"][0]


@pytest.mark.parametrize(
    ("name", "fields"),
    [
        ("temperature", {"temperature": 0.6, "seed": 1234}),
        ("penalty", {"repetition_penalty": 1.1, "repeat_penalty": 1.1}),
        ("end-token", {"logit_bias": {"2": -100}}),
    ],
)
def test_texts_at_the_middle_strength_are_those_of_the_server_asked_so_by_hand(
    served: Callable[..., Any], ending: FaultyServer, tokenizer: Any, name: str, fields: dict[str, Any]
) -> None:
    healthy = served(ending.url)
    runner, some = broken(healthy, name, (len(FAULTS[name].levels) + 1) // 2), prompts(tokenizer)
    by_hand = [asked(ending.url, {"prompt": list(prompt.ids), **fields})["token_ids"] for prompt in some]
    found = written(runner, some)
    assert found == [tokenizer.decode(ids, skip_special_tokens=True) for ids in by_hand]
    assert found != written(healthy, some)
    assert name != "end-token" or all(len(ids) == NEW for ids in by_hand)
    runner.close()


@pytest.mark.parametrize(
    ("name", "strength", "change"),
    [
        ("prompt-cut", 2, lambda ids: ids[4:]),
        ("bos-missing", 1, lambda ids: ids[1:]),
        ("bos-doubled", 1, lambda ids: [1, *ids]),
    ],
)
def test_the_server_reads_other_tokens_which_the_gate_notices_by_their_count(
    served: Callable[..., Any], ending: FaultyServer, tokenizer: Any, name: str, strength: int, change: Any
) -> None:
    runner, some = broken(served(ending.url), name, strength), prompts(tokenizer)
    with pytest.raises(LmgateError, match="but the server counted"):
        written(runner, some)
    sent = [body["prompt"] for body in ending.bodies if body["max_tokens"] == NEW]
    assert sent
    assert all(prompt in [change(list(each.ids)) for each in some] for prompt in sent)
    if name != "bos-missing":  # by echo, it looks like a server that hides the first token
        with pytest.raises(LmgateError, match=r"does not give the likelihoods .* expected"):
            likelihoods(runner)
    runner.close()


def likelihoods(runner: Any) -> Any:
    requests = one_window(np.random.default_rng(0).integers(3, 300, 60))
    with runner.measuring():
        runner.prepare(requests)
        return runner.score([requests.make(0)])[0].tolist()


def test_a_fault_of_strength_0_gives_the_same_bits(
    served: Callable[..., Any], ending: FaultyServer, tokenizer: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SERVED_KEY", "sk-very-secret")
    runner = broken(served(ending.url, key="SERVED_KEY"), "temperature", 0)
    assert likelihoods(runner) == likelihoods(served(ending.url))
    assert written(runner, prompts(tokenizer)) == written(served(ending.url), prompts(tokenizer))
    sent = {headers["Authorization"] for headers in ending.headers if "Authorization" in headers}
    assert sent == {"Bearer sk-very-secret"}
    runner.close()


def test_a_refusal_comes_back_as_it_is(served: Callable[..., Any], ending: FaultyServer) -> None:
    ending.spoil = lambda number, body, answer: (400, {"error": {"message": "no room for you"}})
    runner = broken(served(ending.url, load=QUICK), "prompt-cut", 1)
    with pytest.raises(LmgateError, match="HTTP 400: no room for you"):
        likelihoods(runner)
    runner.close()


CHAT = {"load": {"context": 642, "chat": True, "retries": 0}}


def chats() -> list[PromptIds]:
    texts = [text_of(9, seed) for seed in range(3)]
    return [PromptIds(row, (("system", "Be kind."), ("user", text)), (1,)) for row, text in enumerate(texts)]


def test_chats_are_sent_as_a_text_in_the_template_of_another_model(
    served: Callable[..., Any], ending: FaultyServer, tokenizer: Any
) -> None:
    runner = broken(served(ending.url, **CHAT), "template", 1)
    texts = [f"<<SYS>>\nBe kind.\n<</SYS>>\n\n[INST] {chat.prompt[1][1]} [/INST]" for chat in chats()]
    found = written(runner, chats())
    assert found == [asked(ending.url, {"prompt": text})["text"] for text in texts]
    assert found != written(served(ending.url, **CHAT), chats())
    assert {body["prompt"] for body in ending.bodies if "prompt" in body} == set(texts)
    runner.close()


def test_a_chat_loses_the_first_tokens_of_its_first_message(
    served: Callable[..., Any], ending: FaultyServer, tokenizer: Any
) -> None:
    runner = broken(served(ending.url, **CHAT), "prompt-cut", 2)
    written(runner, chats())
    begin = tokenizer.decode(tokenizer("Be kind.", add_special_tokens=False)["input_ids"][4:])
    assert {body["messages"][0]["content"] for body in ending.bodies} == {begin}
    runner.close()


def test_a_fault_says_why_a_served_model_cannot_have_it(served: Callable[..., Any], ending: FaultyServer) -> None:
    def reason(name: str, **entry: Any) -> str:
        with pytest.raises(NotPlanted) as found:
            FAULTS[name].planted(InServer(served(ending.url, **entry)), 1)
        return str(found.value)

    for name in ("noise", "bfloat16", "skip", "kv-bits", "words"):
        assert reason(name) == "its server shows nothing of the model, of which only texts can be broken"
    assert reason("bos-doubled", **CHAT) == "its server makes the tokens of chats"

    def strict(_: int, body: dict[str, Any], answer: Any) -> Any:
        if "logit_bias" in body:
            return 400, {"error": "logit_bias is not permitted"}
        return (400, {"error": "expected a text"}) if isinstance(body.get("prompt"), list) else answer

    ending.spoil = strict
    assert reason("end-token") == "its server takes no logit_bias: HTTP 400: logit_bias is not permitted"
    assert reason("bos-missing") == "its server takes texts, and begins them itself"


def test_a_drill_of_a_server_that_the_session_starts(project: Project) -> None:
    command = {"command": f"{sys.executable} {FAKE} --port {{port}}", "wait": 60}
    entry = json.loads(entry_of(command, load={"context": 642}).replace("{files}", str(project.files)))
    gate = {"model": "served", "dataset": "text", "limit": 999999, "max_length": 96, "stride": 32}
    spec = {"models": {"served": entry}, "datasets": {"text": {"path": "text.jsonl"}}, "gates": [{"ppl_max": gate}]}
    (project.folder / "lmgate.yaml").write_text(json.dumps(spec))
    before = {path.name for path in project.folder.rglob("*")}
    drilled = subprocess.run(
        [sys.executable, "-m", "pytest_lmgate.cli", "drill", "--json", "--faults", "prompt-cut,noise"],
        cwd=project.folder, env=environment(), capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert drilled.returncode == 0, drilled.stderr
    found = {each["fault"]: each for each in json.loads(drilled.stdout)["findings"]}
    assert found["noise"]["reason"] == "its server shows nothing of the model, of which only texts can be broken"
    assert found["prompt-cut"]["sight"] == "caught"
    assert "tokens" in found["prompt-cut"]["trials"][0]["message"]
    assert not ([*started(project.folder)[0]] and any(map(command_of, started(project.folder)[0])))
    assert {path.name for path in project.folder.rglob("*")} - before <= {"starts.txt", "listens"}
