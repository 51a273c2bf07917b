from __future__ import annotations

import json
import shutil
import subprocess
from itertools import islice

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, AutoTokenizer

from example_project.weather.corpus import Bulletin, draw_bulletins
from example_project.weather.notes import prompt
from example_project.weather.quiz import held_out_questions
from example_project.weather.references import held_out_records
from example_project.weather.tokenizer import word_tokenizer
from tests.end_to_end.projects import environment
from tests.warm import warm_python


@pytest.fixture
def train_writer(script):
    return script("train_writer")


def test_bulletins_and_their_end_are_predicted_but_not_prompts_and_padding(train_writer):
    tokenizer = word_tokenizer()
    bulletins = draw_bulletins(train_writer.SEED)
    for ids, targets in islice(train_writer.batches(tokenizer), 3):
        assert ids.shape == targets.shape
        assert ids.shape[0] == train_writer.BATCH
        assert ids.shape[1] <= train_writer.CONTEXT
        for row, target, bulletin in zip(ids, targets, bulletins, strict=False):
            predicted = target != train_writer.NO_TARGET
            assert torch.equal(row[predicted], target[predicted])
            text = tokenizer.decode(row[predicted].tolist(), skip_special_tokens=False)
            assert text == f"{bulletin.text}</s>"
            before = row[: int(predicted.nonzero()[0])]
            assert tokenizer.decode(before.tolist(), skip_special_tokens=False) == prompt(bulletin.record)
            after = row[int(predicted.nonzero()[-1]) + 1 :]
            assert set(after.tolist()) <= {tokenizer.token_to_id("<pad>")}


def test_nothing_held_out_is_learned(train_writer, monkeypatch):
    held_out = [record for record, _ in held_out_records()] + [each.record for each in held_out_questions()]
    free = next(draw_bulletins(seed=10))
    drawn = [*(Bulletin(record, "told otherwise", 1.0) for record in held_out), free]
    # As the script has them: its records are of a module of their own.
    own = {repr(bulletin.record): bulletin for bulletin in drawn}
    monkeypatch.setattr(train_writer, "draw_bulletins", lambda seed: iter(map(as_its_own(train_writer), own.values())))
    assert list(train_writer.examples()) == [(prompt(free.record), f"{free.text}</s>")]


def as_its_own(module):
    """Return what turns a bulletin into the script's own kind: it imports `weather`, not `example_project.weather`."""
    from weather.record import Period, Record

    def turned(bulletin):
        periods = tuple(Period(**vars(period)) for period in bulletin.record.periods)
        record = Record(bulletin.record.season, bulletin.record.place, periods)
        return Bulletin(record, bulletin.text, bulletin.surprisal)

    return turned


def test_training_repeats_itself(train_writer, capsys):
    def weights():
        tokenizer = word_tokenizer()
        model = train_writer.untrained(tokenizer)
        train_writer.train(model, train_writer.batches(tokenizer), 3)
        return model.state_dict()

    threads = torch.get_num_threads()
    try:
        first, second = weights(), weights()
    finally:
        torch.use_deterministic_algorithms(False)
        torch.set_num_threads(threads)
    assert all(torch.equal(first[name], second[name]) for name in first)
    assert capsys.readouterr().out.splitlines() == ["158,656 parameters, 264 tokens"] * 2


def test_the_committed_writer_is_of_the_script_s_shape_in_float16(train_writer, script, example):
    config = script("train").small_llama(word_tokenizer()).config
    committed = json.loads((example / "models" / "writer" / "config.json").read_text("utf-8"))
    for key in ("vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "max_position_embeddings"):
        assert committed[key] == getattr(config, key)
    weights = load_file(example / "models" / "writer" / "model.safetensors")
    assert {weight.dtype for weight in weights.values()} == {torch.float16}


def test_the_script_writes_the_committed_files_but_for_what_training_changes(example, tmp_path):
    """One step in place of all of them, in a copy of the example."""
    shutil.copytree(example, tmp_path / "copy", ignore=shutil.ignore_patterns("models", ".*", "__pycache__"))
    written, committed = tmp_path / "copy" / "models" / "writer", example / "models" / "writer"
    written.mkdir(parents=True)
    one_step = "import train_writer; train_writer.STEPS = 1; train_writer.main()"
    python = warm_python(environment())
    subprocess.run([python, "-c", one_step], cwd=tmp_path / "copy", check=True, capture_output=True)
    names = {path.name for path in committed.iterdir()}
    assert {path.name for path in written.iterdir()} == names
    for name in names - {"model.safetensors"}:
        assert (written / name).read_bytes() == (committed / name).read_bytes(), name


@pytest.mark.parametrize(("name", "least", "most"), [("writer", 57, 60), ("broken-writer", 0, 3)])
def test_the_writer_tells_what_the_note_says_and_the_broken_one_does_not(example, tells, name, least, most):
    """Word for word, one row at a time and without the package."""
    model = AutoModelForCausalLM.from_pretrained(example / "models" / name, dtype=torch.float32)
    tokenizer = AutoTokenizer.from_pretrained(example / "models" / name)
    right = 0
    for record, _ in held_out_records():
        ids = torch.tensor([tokenizer(prompt(record))["input_ids"]])
        with torch.inference_mode():
            new = model.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=128, do_sample=False)
        right += tells(tokenizer.decode(new[0, ids.shape[1] :], skip_special_tokens=True), record)
    assert least <= right <= most
