"""A pair in memory of the libraries' classes is found again; a pair with code of the user's is measured each time."""

from __future__ import annotations

from pathlib import Path

from tests.end_to_end.projects import Project

PAIRS = """
    import os

    import torch
    import transformers
    from where import MODELS

    # Whether all that is below is to be otherwise.
    OTHER = bool(os.environ.get("OTHER"))

    def model():
        return transformers.AutoModelForCausalLM.from_pretrained(f"{MODELS}/sure")

    def tokenizer(kind=transformers.AutoTokenizer):
        return kind.from_pretrained(f"{MODELS}/sure")

    def tensor():
        made = model()
        made.set_attn_implementation("eager")
        made.model.layers[0].self_attn.scaling = torch.tensor(3000.0 if OTHER else 0.0)
        return made, tokenizer()

    def replaced():
        made = tokenizer()
        plain, keep = made._encode_plus, 100 if OTHER else 200
        made._encode_plus = lambda text, *args, **kwargs: plain(text[:keep], *args, **kwargs)
        return model(), made

    MADE = {
        "tensor": tensor,
        "tokenizer's method": replaced,
    }
"""
TEST = """
    import pathlib

    import pytest
    from pairs import MADE
    from where import MODELS

    TEXTS = [" ".join(f"w{(i * 7 + j) % 50}" for i in range(60)) for j in range(2)]
    SAID = pathlib.Path(__file__).with_name("said.txt")

    @pytest.mark.parametrize("kind", MADE)
    def test_pair(kind, ppl_of):
        score = ppl_of(MADE[kind](), TEXTS, protocol="document", max_length=32, stride=16)
        with SAID.open("a") as file:
            file.write(f"{kind}|{float(score)!r}|{score.cached}\\n")
"""


def _said(project: Project) -> dict[str, tuple[float, bool]]:
    file = project.folder / "said.txt"
    rows = [line.split("|") for line in file.read_text().splitlines()]
    file.unlink()
    return {kind: (float(value), cached == "True") for kind, value, cached in rows}


def test_only_a_pair_of_the_libraries_classes_is_found_again(project: Project, models: Path) -> None:
    project.write(where=f"MODELS = {str(models)!r}", pairs=PAIRS, test_pairs=TEST)
    runs = []
    # The last in another interpreter: the hashes of its texts begin with other random numbers.
    for env, early in (({}, False), ({"OTHER": "1"}, False), ({"OTHER": "1"}, True)):
        outcome = project.run(env=env, early=early).expect(0)
        outcome.says("not kept, measured again in each session: in-memory ")
        runs.append(_said(project))

    first, other, again = runs
    assert len(first) == 2
    for run, found in zip(runs, (set(), set(), {"tensor"}), strict=True):
        assert {kind for kind, (_, cached) in run.items() if cached} == found
    assert {kind for kind, (value, _) in other.items() if value == first[kind][0]} == set(), "nothing is tested"
    assert {kind: value for kind, (value, _) in again.items()} == {kind: value for kind, (value, _) in other.items()}
    assert len(project.entries) == 2
