"""Served models in sessions: the cache, resuming, servers that change, the context, secrets."""

import json
import math
import shutil
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("httpx2", reason="httpx2 is NOT installed; make test-server runs these tests")

from pytest_lmgate.errors import LmgateError
from pytest_lmgate.measure import loop
from pytest_lmgate.settings.decoding import parse_fixture_call
from tests.engines.contract.bench import evaluator_of, write_data
from tests.engines.projects import Project
from tests.engines.server.conftest import entry_of
from tests.engines.server.faulty import Causal, FaultyServer, changed_values

QUICK = {"context": 642, "retries": 0, "timeout": 5}
# A request that is on its way when another has failed leaves its socket to the collector.
pytestmark = pytest.mark.filterwarnings("ignore:Exception ignored in. <socket:pytest.PytestUnraisableExceptionWarning")
KEY = "sk-very-secret-1234"
SAVE_AT_ONCE = "from pytest_lmgate.measure import loop\nloop.SAVE_SECONDS = 0.0\n"
PPL = "ppl_max: {model: served, dataset: text, limit: 999999, max_length: 96, stride: 32}"
# A session without a served model leaves the engine and its library alone.
UNTOUCHED = """
def pytest_sessionfinish():
    import sys
    assert not {"httpx2", "pytest_lmgate.engines.server"} & sys.modules.keys()
"""
Session = Callable[..., float]


@pytest.fixture
def session(tmp_path: Path, files: Path, monkeypatch: pytest.MonkeyPatch) -> Session:
    """Measures a perplexity of an entry in a session of its own, whose partial results are kept at once."""
    write_data(tmp_path)
    monkeypatch.setattr(loop, "SAVE_SECONDS", 0.0)

    def measure(entry: str, fixture: str = "ppl_of", dataset: str = "text", **how: Any) -> float:
        models = {"served": json.loads(entry.replace("{files}", str(files)))}
        named = ["served"]
        if "reference" in how:
            models["float"] = {"path": str(files / "float")}
            named = [how.pop("reference"), "served"]  # the reference is served
        evaluator = evaluator_of(tmp_path, models, tmp_path / "cache")
        how = how or {"max_length": 96, "stride": 32}
        try:
            return float(evaluator.evaluate(parse_fixture_call(fixture, (*named, dataset), how)))
        finally:
            evaluator.close()
            evaluator.measurements.close_models()

    return measure


def test_a_measurement_of_a_server_is_kept_with_a_revision_alone_and_then_needs_no_server(
    session: Session, faulty: FaultyServer
) -> None:
    value = session(entry_of(faulty.url, load=QUICK))
    once = len(faulty.scored)
    for url in (faulty.url, faulty.url.replace("127.0.0.1", "localhost")):
        before = len(faulty.scored)
        assert session(entry_of(faulty.url, load=QUICK)) == value
        assert session(entry_of(url, load=QUICK, revision="build-1")) == value
        assert len(faulty.scored) == before + 2 * once
    faulty.close()
    assert session(entry_of(faulty.url, load=QUICK, revision="build-1")) == value


def test_a_session_with_a_cluster_asks_servers_itself(project: Project, faulty: FaultyServer) -> None:
    pytest.importorskip("ray", reason="Ray is NOT installed: no session with a cluster is checked")
    options = "--lmgate-executor=ray://nowhere.invalid:1"
    said = project.run([PPL], {"served": entry_of(faulty.url, load=QUICK)}, PYTEST_ADDOPTS=options)
    assert project.status == 0, said
    assert faulty.scored


def test_wrong_numbers_are_errors_whenever_they_begin(session: Session, faulty: FaultyServer) -> None:
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
    for name, says in (
        ("base-2", "does it give them to base 2, or of another temperature?"),
        ("renamed", "it answers as the model 'another': expected 'renamed'"),
        ("bad-later", "the likelihoods of one text changed by .*(is discarded|nothing of this measurement is kept)"),
    ):
        with pytest.raises(LmgateError, match=says):
            session(entry_of(faulty.url, model=name, revision="1", load=QUICK))
    session(entry_of(faulty.url, model="dated", revision="1", load=QUICK), "accuracy_of", "quiz", variant="acc")

    faulty.bodies.clear()
    faulty.spoil = lambda _, body, answer: answer | {"model": body["model"]}
    value, count = session(entry_of(faulty.url, model="bad-later", revision="1", load=QUICK)), len(faulty.scored)
    faulty.bodies.clear()
    assert session(entry_of(faulty.url, model="dated", revision="2", load=QUICK)) == value
    assert len(faulty.scored) == count, "nothing was kept of what may be wrong"


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
    said = project.run([PPL], {"served": entry}, PYTEST_ADDOPTS="--showlocals --lmgate-explain-cache -vv", **env)
    assert project.status == 1, "test_it fails, so that its locals are shown"
    header = faulty.headers[-1]["Authorization"]
    assert header == f"Bearer {KEY}" if where == "key" else header.startswith("Basic ")
    # A server may repeat what it was sent.
    faulty.spoil = lambda *_: (401, {"error": {"message": f"Incorrect key {KEY}"}})
    faulty.models = (404, {})
    models = {"served": entry, "other": entry.replace('"1"', '"2"')}
    said += project.run([PPL.replace("served", "other")], models, PYTEST_ADDOPTS="--showlocals", **env)
    assert "HTTP 401: Incorrect key ***" in said
    (project.folder / "lmgate.yaml").unlink()
    assert KEY not in said
    kept = (path for path in project.folder.rglob("*") if path.is_file())
    assert not any(KEY.encode() in path.read_bytes() for path in kept)


@pytest.mark.parametrize(
    ("server", "got"),
    [
        ("localhost:8000", "got"),
        ("http://a:b@h/v1?k=1", "got 'h/v1'"),
        (f"http://h/v1#{KEY}", "got 'http://h/v1'"),
        (f"http://a:{KEY[:4]}#{KEY[4:]}@h/v1", r"got '\*\*\*'"),
        (f"http://h/v1?k=@{KEY}", r"got '\*\*\*'"),
    ],
)
def test_a_wrong_address_is_refused_without_its_secret(session: Session, server: str, got: str) -> None:
    with pytest.raises(LmgateError, match=f"as in http://localhost:8000/v1, without .* and #, {got}") as refused:
        session(entry_of(server, load=QUICK))
    assert KEY[4:] not in str(refused.value)


def test_the_context_is_the_servers_else_the_tokenizers_else_an_error(
    session: Session, faulty: FaultyServer, files: Path, tmp_path: Path
) -> None:
    def refused(says: str, max_length: int = 9999, **entry: Any) -> None:
        with pytest.raises(LmgateError, match=says):
            session(entry_of(faulty.url, **entry), max_length=max_length)

    refused("longer than the context of the model 'served', 640 tokens")
    faulty.models = {"data": [{"id": "tiny"}]}
    refused("neither its server nor its tokenizer gives its context length")
    folder = Path(shutil.copytree(files / "float", tmp_path / "words"))
    own = json.loads((folder / "tokenizer_config.json").read_text())
    (folder / "tokenizer_config.json").write_text(json.dumps({**own, "model_max_length": 300}))
    refused("longer than the context of the model 'served', 298 tokens", tokenizer=str(folder))
    faulty.models = {"data": [{"id": "tiny", "max_model_len": 500}]}
    refused(r"models\.served\.load\.context: expected 500 at most, as the server, got 600", 96, load={"context": 600})


def test_a_session_without_a_served_model_never_imports_the_engine(project: Project) -> None:
    from tests.engines import fair_die

    (project.folder / "conftest.py").write_text(Path(fair_die.__file__).read_text(encoding="utf-8") + UNTOUCHED)
    (project.folder / "four.die").write_text('{"sides": 4}')
    project.python = sys.executable  # a warm one has imported httpx2 with transformers
    gate = "ppl_max: {model: die, dataset: text, limit: 5, max_length: 32}"
    served = {"server": "http://127.0.0.1:9/v1", "model": "tiny", "tokenizer": "{files}/float"}
    said = project.run([gate], {"die": "{path: four.die}", "served": json.dumps(served)})
    assert project.status == 0, said


def test_a_server_that_cuts_prompts_while_it_writes_diverges_from_itself(
    session: Session, faulty: FaultyServer, tokenizer: Any, files: Path
) -> None:
    import transformers

    model, served = transformers.AutoModelForCausalLM.from_pretrained(files / "float"), entry_of(faulty.url, load=QUICK)
    how = {"max_new_tokens": 24}
    faulty.bigrams = Causal(model, tokenizer)
    assert session(served, "self_kl_of", **how) < 0.0001
    faulty.bigrams = Causal(model, tokenizer, keeps=8)
    assert session(served, "self_kl_of", **how) > 0.001
    # What it writes is compared as it reads it, so that this divergence needs the other one.
    assert session(served, "kl_of", reference="float", estimator="sampled", **how) < 0.0001
