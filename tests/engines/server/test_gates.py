"""Served models gated in real pytest processes: the cache, resuming, secrets, what an entry may say, errors."""

import json
import math
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("httpx2", reason="httpx2 is NOT installed; make test-server runs these tests")

from tests.engines.projects import Project, damaged, require_refusals, require_sampled_kl
from tests.engines.server.conftest import entry_of
from tests.engines.server.faulty import Causal, FaultyServer, changed_values

PPL = "ppl_max: {model: MODEL, dataset: text, limit: 999999, max_length: 96, stride: 32}"
QUICK = {"context": 642, "retries": 0, "timeout": 5}
KEY = "sk-very-secret-1234"
SAVE_AT_ONCE = "from pytest_lmgate.measure import loop\nloop.SAVE_SECONDS = 0.0\n"
# A session without a served model leaves the engine and its library alone.
UNTOUCHED = """
def pytest_sessionfinish():
    import sys
    assert not {"httpx2", "pytest_lmgate.engines.server"} & sys.modules.keys()
"""


def ppl(model: str = "served") -> str:
    return PPL.replace("MODEL", model)


def test_nothing_of_a_server_is_kept_without_a_revision(project: Project, faulty: FaultyServer) -> None:
    models = {"served": entry_of(faulty.url, load=QUICK)}
    said = project.run([ppl()], models)
    assert project.status == 0, said
    assert "served" in said
    assert "its engine gives no digest of the model" in said
    once, value = len(faulty.scored), project.values
    project.run([ppl()], models)
    assert len(faulty.scored) == 2 * once
    assert project.values == value


def test_with_a_revision_a_measurement_is_kept_and_needs_no_server(project: Project, faulty: FaultyServer) -> None:
    revised = {"served": entry_of(faulty.url, load=QUICK, revision="build-1")}
    said = project.run([ppl()], revised)
    assert project.status == 0, said
    value, asked = project.values, len(faulty.headers)
    assert asked
    project.run([ppl()], {"served": entry_of(faulty.url, load={**QUICK, "concurrency": 2}, revision="build-1")})
    assert (project.status, len(faulty.headers), project.values) == (0, asked, value)
    for other in (
        entry_of(faulty.url, load=QUICK, revision="build-2"),
        entry_of(faulty.url.replace("127.0.0.1", "localhost"), load=QUICK, revision="build-1"),
    ):
        before = len(faulty.scored)
        project.run([ppl()], {"served": other})
        assert project.status == 0
        assert len(faulty.scored) > before
    faulty.close()
    project.run([ppl()], revised)
    assert (project.status, project.values) == (0, value)


def test_a_session_with_a_cluster_asks_servers_itself(project: Project, faulty: FaultyServer) -> None:
    pytest.importorskip("ray", reason="Ray is NOT installed: no session with a cluster is checked")
    nowhere = "ray://nowhere.invalid:1"
    said = project.run(
        [ppl()], {"served": entry_of(faulty.url, load=QUICK)}, PYTEST_ADDOPTS=f"--lmgate-executor={nowhere}"
    )
    assert project.status == 0, said
    assert faulty.scored


def test_a_server_that_dies_half_way_is_asked_for_the_rest_when_it_is_back(
    project: Project, faulty: FaultyServer
) -> None:
    (project.folder / "conftest.py").write_text(SAVE_AT_ONCE)
    load = {**QUICK, "concurrency": 1}
    models = {"served": entry_of(faulty.url, load=load, revision="1")}
    faulty.spoil = lambda number, _, answer: answer if number < 26 else None
    said = project.run([ppl()], models)
    assert project.status == 1
    assert "Server disconnected without sending a response (tried once, up to 5 s each)" in said
    first = faulty.scored[:-1]  # the last was not answered
    faulty.bodies.clear()
    faulty.spoil = lambda _, body, answer: answer
    said = project.run([ppl()], models)
    assert project.status == 0, said
    rest, value = faulty.scored, project.values
    faulty.bodies.clear()
    project.run([ppl()], {"served": entry_of(faulty.url, load=load, revision="2")})
    assert project.values == value
    # The other texts are drawn in each session, to see whether the server has changed.
    first, rest = ([ids for ids in asked if ids in faulty.scored] for asked in (first, rest))
    kept = first[: len(first) // 4 * 4]
    assert len(kept) >= 8
    assert rest
    assert not [ids for ids in rest if ids in kept], "only the rest was asked for"


def test_wrong_numbers_are_errors_whenever_they_begin(project: Project, faulty: FaultyServer) -> None:
    names = ["base-2", "bad-later", "renamed", "dated"]
    faulty.models = {"data": [{"id": name, "max_model_len": 642} for name in names]}
    to_base_2, asked = changed_values(lambda value: value / math.log(2)), Counter[str]()

    def spoil(number: int, body: Any, answer: Any) -> Any:
        name = body["model"]
        asked[name] += body.get("prompt_logprobs") == 1
        if name == "base-2" or (name == "bad-later" and asked[name] > 20):
            answer = to_base_2(number, body, answer)
        return {**answer, "model": {"renamed": "another", "dated": "dated-2026-01-31"}.get(name, name)}

    faulty.spoil = spoil
    models = {name: entry_of(faulty.url, model=name, revision="1", load=QUICK) for name in names}
    short = "accuracy_min: {model: MODEL, dataset: quiz, limit: 0.001}"
    gates = [ppl("bad-later"), *(short.replace("MODEL", name) for name in names if name != "bad-later")]
    (project.folder / "conftest.py").write_text(SAVE_AT_ONCE)
    said = project.run(gates, models)
    assert project.status == 1
    assert "1 passed, 3 errors" in said, said[-2000:]
    assert "does it give them to base 2, or of another temperature?" in said
    assert "model 'renamed': the server" in said
    assert "it answers as the model 'another': expected 'renamed'; check models.renamed.model" in said
    assert "the likelihoods of one text changed by" in said
    # By which of two checks, is up to which comes first.
    assert "the measurement is discarded" in said or "nothing of this measurement is kept" in said

    faulty.bodies.clear()
    faulty.spoil = lambda _, body, answer: answer | {"model": body["model"]}
    project.run([ppl("bad-later")], models)
    assert project.status == 0
    value, count = project.values, len(faulty.scored)
    faulty.bodies.clear()
    project.run([ppl("bad-later")], {"bad-later": entry_of(faulty.url, model="dated", revision="2", load=QUICK)})
    assert (project.values, len(faulty.scored)) == (value, count), "nothing was kept of what may be wrong"


def texts_below(folder: Path) -> str:
    return " ".join(path.read_bytes().decode(errors="replace") for path in folder.rglob("*") if path.is_file())


@pytest.mark.parametrize("where", ["key", "password"])
def test_a_secret_is_sent_and_appears_nowhere(project: Project, faulty: FaultyServer, where: str) -> None:
    url, more, env = faulty.url, {"key": "MY_KEY"}, {"MY_KEY": KEY}
    if where == "password":
        url, more, env = url.replace("http://", f"http://me:{KEY}@"), {}, {}
    entry = entry_of(url, revision="1", load=QUICK, **more)
    (project.folder / "test_it.py").write_text(
        "import pytest_lmgate as lmgate\n"
        "def test_it(ppl_of):\n"
        "    score = ppl_of(lmgate.model('served', revision='3'), 'text', max_length=96)\n"
        "    print(repr(score))\n"
        "    assert score < 0\n"
    )
    said = project.run([ppl()], {"served": entry}, PYTEST_ADDOPTS="--showlocals --lmgate-explain-cache -vv", **env)
    assert project.status == 1, "test_it fails, so that its locals are shown"
    header = faulty.headers[-1]["Authorization"]
    assert header == f"Bearer {KEY}" if where == "key" else header.startswith("Basic ")
    # A server may repeat what it was sent.
    faulty.spoil = lambda *_: (401, {"error": {"message": f"Incorrect key {KEY}"}})
    faulty.models = (404, {})
    said += project.run(
        [ppl("other")], {"served": entry, "other": entry.replace('"1"', '"2"')}, PYTEST_ADDOPTS="--showlocals", **env
    )
    assert "HTTP 401: Incorrect key ***" in said
    (project.folder / "lmgate.yaml").unlink()
    assert KEY not in said
    assert KEY not in texts_below(project.folder)


ENTRY = {"server": "http://127.0.0.1:9/v1", "model": "tiny", "tokenizer": "{files}/float"}


WRONG: list[tuple[dict[str, Any], str]] = [
    ({"tokenizer": None}, "models.x.tokenizer: a served model needs the folder or hub id of its tokenizer"),
    ({"tokenizer": "{files}"}, "model 'x': no tokenizer in"),
    ({"model": None}, "models.x.model: expected the server's name for the model, as GET {server}/models lists it"),
    (
        {"server": "localhost:8000"},
        "models.x.server: expected an address as in http://localhost:8000/v1, without ? and #, got",
    ),
    ({"server": "http://a:b@h/v1?k=1"}, "as in http://localhost:8000/v1, without ? and #, got 'h/v1'"),
    ({"server": f"http://h/v1#{KEY}"}, "as in http://localhost:8000/v1, without ? and #, got 'http://h/v1'"),
    ({"server": f"http://a:{KEY[:4]}#{KEY[4:]}@h/v1"}, "http://localhost:8000/v1, without ? and #, got '***'"),
    ({"server": f"http://h/v1?k=@{KEY}"}, "http://localhost:8000/v1, without ? and #, got '***'"),
    ({"key": "NO_KEY"}, "models.x.key: the environment variable 'NO_KEY' is not set; set it to the server's key"),
    ({"key": "EMPTY"}, "models.x.key: the environment variable 'EMPTY' is empty"),
    ({"key": "BROKEN"}, "models.x.key: the environment variable 'BROKEN' contains white space"),
    (
        {"server": "http://a:b@127.0.0.1/v1", "key": "EMPTY"},
        "models.x.key: the address under server: has a user name already",
    ),
    ({"load": {"timeouts": 3}}, "models.x.load: a server has no option 'timeouts' (did you mean 'timeout'?)"),
    ({"load": {"retries": -1}}, "models.x.load.retries: expected a whole number from 0, got -1"),
    ({"load": {"concurrency": True}}, "models.x.load.concurrency: expected a whole number from 1, got True"),
    ({"dtype": "float16"}, "models.x.dtype: the engine server does not support it: the server decides it"),
    ({"adapter": "a"}, "models.x.adapter: the engine server does not support it: have the server load the adapter"),
    ({"batch_size": 4}, "models.x.batch_size: the engine server does not support it: the server makes its batches"),
    ({"server": None, "backend": "server"}, "models.x: the engine server needs server:, an address as in"),
    ({"load": {"retries": 0}}, "ConnectError"),
    ({"server": "http://192.0.2.1/v1", "load": QUICK}, "is not on this machine, and --lmgate-offline forbids"),
]


def test_keys_for_servers_at_another_engine_are_refused_at_collection(project: Project) -> None:
    entries = [{**ENTRY, "backend": "transformers"}, {"path": "{files}/float", "model": "m"}]
    models = {f"x{number}": json.dumps(entry) for number, entry in enumerate(entries)}
    said = project.run([ppl(name) for name in models], models)
    assert project.status == 4, said
    assert "models.x0.server: the engine transformers does not support it" in said
    assert "models.x1.model: the engine transformers does not support it: it is for" in said


def test_a_wrong_entry_is_one_clear_sentence(project: Project) -> None:
    entries = [json.dumps({k: v for k, v in {**ENTRY, **entry}.items() if v is not None}) for entry, _ in WRONG]
    models = {f"x{number}": entry for number, entry in enumerate(entries)}
    env = {"EMPTY": "", "BROKEN": "a b", "LMGATE_OFFLINE": "1"}
    said = project.run([ppl(name) for name in models], models, **env)
    assert project.status == 1, said
    assert f"{len(WRONG)} errors" in said
    assert "Traceback" not in said
    assert KEY not in said
    assert KEY[4:] not in said
    for name, (_, message) in zip(models, WRONG, strict=True):
        assert message.replace(".x.", f".{name}.").replace("'x'", f"'{name}'").replace("s.x:", f"s.{name}:") in said


def test_the_context_is_the_servers_else_the_tokenizers_else_an_error(project: Project, faulty: FaultyServer) -> None:
    longer = "ppl_max: {model: MODEL, dataset: text, limit: 999999, max_length: 9999}".replace("MODEL", "served")
    served = {"served": entry_of(faulty.url)}
    assert "is longer than the context of the model 'served', 640 tokens" in project.run([longer], served)
    unknown = {"served": entry_of(faulty.url, model="tinny")}
    assert "has no model 'tinny' (did you mean 'tiny'?); it has tiny: check" in project.run([longer], unknown)
    faulty.models = {"data": [{"id": "tiny"}]}
    assert "neither its server nor its tokenizer gives its context length" in project.run([longer], served)
    own = json.loads((project.files / "float" / "tokenizer_config.json").read_text())
    folder = project.folder / "words"
    folder.mkdir()
    for file in (project.files / "float").glob("*token*"):
        (folder / file.name).write_bytes(file.read_bytes())
    (folder / "tokenizer_config.json").write_text(json.dumps({**own, "model_max_length": 300}))
    said = project.run([longer], {"served": entry_of(faulty.url, tokenizer=str(folder))})
    assert "is longer than the context of the model 'served', 298 tokens" in said
    faulty.models = {"data": [{"id": "tiny", "max_model_len": 500}]}
    said = project.run([ppl()], {"served": entry_of(faulty.url, load={"context": 600})})
    assert "models.served.load.context: expected 500 at most, as the server, got 600" in said


def test_what_a_server_cannot_do_is_one_clear_sentence(project: Project, faulty: FaultyServer) -> None:
    require_refusals(project, "served", {"served": entry_of(faulty.url)}, compares=False)


def test_chats_are_put_into_the_tokenizers_template(project: Project, faulty: FaultyServer, tokenizer: Any) -> None:
    gate = "ter_max: {model: served, dataset: chats, limit: 99999, max_new_tokens: 4}"
    said = project.run([gate], {"served": entry_of(faulty.url)})
    assert project.status == 0, said
    prompts = [tokenizer.decode(body["prompt"]) for body in faulty.bodies if body["max_tokens"] == 4]
    assert len(prompts) == 8
    assert all(prompt.startswith("<s>user: ") for prompt in prompts)


def test_a_session_without_a_served_model_never_imports_the_engine(project: Project) -> None:
    from tests.engines import fair_die

    (project.folder / "conftest.py").write_text(Path(fair_die.__file__).read_text(encoding="utf-8") + UNTOUCHED)
    (project.folder / "four.die").write_text('{"sides": 4}')
    project.python = sys.executable  # a warm one has imported httpx2 with transformers
    gate = "ppl_max: {model: die, dataset: text, limit: 5, max_length: 32}"
    said = project.run([gate], {"die": "{path: four.die}", "served": json.dumps(ENTRY)})
    assert project.status == 0, said


def test_a_missing_package_says_what_to_install(project: Project, faulty: FaultyServer) -> None:
    (project.folder / "conftest.py").write_text("import sys\nsys.modules['httpx2'] = None\n")
    said = project.run([ppl()], {"served": entry_of(faulty.url)})
    assert project.status == 1
    assert "pip install 'pytest-lmgate[server]'" in said


def test_a_sampled_divergence_from_transformers_finds_a_server_of_damaged_weights(
    project: Project, faulty: FaultyServer, tokenizer: Any, files: Path
) -> None:
    model = load(files)
    faulty.bigrams = Causal(model, tokenizer)
    other = FaultyServer(tokenizer)
    other.bigrams = Causal(damaged(model), tokenizer)
    require_sampled_kl(
        project,
        "served",
        "wrong",
        {"served": entry_of(faulty.url, load=QUICK), "wrong": entry_of(other.url, load=QUICK)},
    )
    other.close()


def test_a_server_that_cuts_prompts_while_it_writes_diverges_from_itself(
    project: Project, faulty: FaultyServer, tokenizer: Any, files: Path
) -> None:
    model, models = load(files), {"served": entry_of(faulty.url, load=QUICK)}
    how = "dataset: text, limit: 0.0001, max_new_tokens: 24"
    gates = [f"self_kl_max: {{model: served, {how}}}"]
    # What it writes is compared as it reads it, so that this gate needs the other one.
    gates += [f"kl_max: {{model: float, reference: served, estimator: sampled, {how}}}"]
    faulty.bigrams = Causal(model, tokenizer)
    said = project.run(gates, models)
    assert project.status == 0, said
    faulty.bigrams = Causal(model, tokenizer, keeps=8)
    said = project.run(gates, models)
    assert project.status == 1, said
    own, reference = project.values.values()
    assert own > 0.001
    assert reference < 0.0001


def load(files: Path) -> Any:
    import transformers

    return transformers.AutoModelForCausalLM.from_pretrained(files / "float")
