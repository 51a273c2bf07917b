"""A pair in memory of the libraries' classes is found again; a pair with code of the user's is measured each time."""

from __future__ import annotations

from pathlib import Path

from tests.end_to_end.projects import FACES, Project

PAIRS = """
    import argparse
    import functools
    import os
    import re

    import numpy as np
    import torch
    import transformers
    from where import FACES, MODELS

    # Whether all that is below is to be otherwise.
    OTHER = bool(os.environ.get("OTHER"))
    WORDS = re.compile(r"\\S" if OTHER else r"\\S+")

    def model():
        return transformers.AutoModelForCausalLM.from_pretrained(f"{MODELS}/sure")

    def tokenizer(kind=transformers.AutoTokenizer):
        return kind.from_pretrained(f"{MODELS}/sure")

    class Scaled(transformers.LlamaForCausalLM):
        def forward(self, *args, **kwargs):
            output = super().forward(*args, **kwargs)
            output.logits = output.logits * self.factor()
            return output

    class OfNamespace(Scaled):
        factor = lambda self: self.args.scale

    class OfScalar(Scaled):
        factor = lambda self: float(self.scale)

    class OfRange(Scaled):
        factor = lambda self: 1 / len(self.layers_on)

    @functools.lru_cache
    def remembered():
        return 0.5 if OTHER else 1.0

    class OfFunction(Scaled):
        factor = lambda self: remembered()

    def of(kind, **held):
        made = model()
        made.__class__ = kind
        vars(made).update(held)
        return made, tokenizer()

    class Outer(torch.nn.Module):
        def __init__(self):
            super().__init__()
            torch.manual_seed(0)
            self.inner = transformers.Gemma2ForCausalLM(transformers.Gemma2Config(
                vocab_size=FACES, hidden_size=16, intermediate_size=32, num_hidden_layers=1, num_attention_heads=2,
                num_key_value_heads=2, head_dim=8, max_position_embeddings=32,
                final_logit_softcapping=1e-6 if OTHER else 50.0, bos_token_id=1, eos_token_id=2,
            )).eval()

        def forward(self, **given):
            return self.inner(**given)

        def get_input_embeddings(self):
            return self.inner.get_input_embeddings()

    class Cutting(transformers.PreTrainedTokenizerFast):
        def __call__(self, text, **options):
            return super().__call__(text[: self.keep], **options)

    class ByPattern:
        bos_token_id, eos_token_id = 1, 2

        def __call__(self, text, **options):
            return {"input_ids": [len(word) for word in WORDS.findall(text)]}

    class Factor(torch.nn.Module):
        def forward(self, weight):
            return weight * self.factor

    def parametrized():
        made, factor = model(), Factor()
        factor.factor = np.float32(0.5 if OTHER else 1)
        torch.nn.utils.parametrize.register_parametrization(made.lm_head, "weight", factor)
        return made, tokenizer()

    def tensor():
        made = model()
        made.set_attn_implementation("eager")
        made.model.layers[0].self_attn.scaling = torch.tensor(3000.0 if OTHER else 0.0)
        return made, tokenizer()

    def cutting():
        made = tokenizer(Cutting)
        made.keep = 100 if OTHER else 200
        return model(), made

    def replaced():
        made = tokenizer()
        plain, keep = made._encode_plus, 100 if OTHER else 200
        made._encode_plus = lambda text, *args, **kwargs: plain(text[:keep], *args, **kwargs)
        return model(), made

    MADE = {
        "namespace": lambda: of(OfNamespace, args=argparse.Namespace(scale=0.5 if OTHER else 1)),
        "scalar": lambda: of(OfScalar, scale=np.float32(0.5 if OTHER else 1)),
        "range": lambda: of(OfRange, layers_on=range(2 if OTHER else 1)),
        "cached function": lambda: of(OfFunction),
        "inner config": lambda: (Outer(), tokenizer()),
        "parametrization": parametrized,
        "tensor": tensor,
        "tokenizer's attribute": cutting,
        "tokenizer's method": replaced,
        "tokenizer's pattern": lambda: (model(), ByPattern()),
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
    project.write(where=f"MODELS, FACES = {str(models)!r}, {FACES}", pairs=PAIRS, test_pairs=TEST)
    runs = []
    for env in ({}, {"OTHER": "1"}, {"OTHER": "1", "PYTHONHASHSEED": "7"}, {"PYTHONHASHSEED": "8"}):
        outcome = project.run(env=env).expect(0)
        outcome.says("not kept, measured again in each session: in-memory ", "which no installed library defines")
        runs.append(_said(project))

    first, other, again, plain = runs
    assert len(first) == 10
    for run, found in zip(runs, (set(), set(), {"tensor"}, {"tensor"}), strict=True):
        assert {kind for kind, (_, cached) in run.items() if cached} == found
    assert {kind for kind, (value, _) in other.items() if value == first[kind][0]} == set(), "nothing is tested"
    assert {kind: value for kind, (value, _) in again.items()} == {kind: value for kind, (value, _) in other.items()}
    assert {kind: value for kind, (value, _) in plain.items()} == {kind: value for kind, (value, _) in first.items()}
    assert len(project.entries) == 2


def test_a_revision_keeps_a_pair_with_code_of_the_users(project: Project, models: Path) -> None:
    project.write(
        where=f"MODELS, FACES = {str(models)!r}, {FACES}",
        pairs=PAIRS,
        test_pairs="""
            import os

            import pytest
            import pytest_lmgate as lmgate
            from pairs import MADE

            @pytest.fixture
            def pair():
                return lmgate.model(*MADE["namespace"](), revision=os.environ["REVISION"])

            @pytest.mark.ppl_max(lmgate.fixture("pair"), "words", 1e300)
            def test_gate(): pass

            @pytest.mark.ppl_max(lmgate.model("sure", revision="1"), "words", 1e300)
            def test_named(): pass
        """,
    )
    for revision, cached in (("1", False), ("1", True), ("2", False)):
        project.run("--lmgate-report", "json:report.json", env={"REVISION": revision}).expect(0, passed=2).is_silent_on(
            "not kept"
        )
        rows = {gate["id"].partition("::")[2].partition("::")[0]: gate for gate in project.report()["gates"]}
        assert rows["test_gate"]["cached"] == cached
        assert "ppl_max[sure-words]" in rows["test_named"]["id"]


def test_how_a_tokenizer_in_memory_joins_words_is_part_of_the_texts(project: Project, models: Path) -> None:
    project.write(
        where=f"MODELS = {str(models)!r}",
        test_texts="""
            import transformers
            from where import MODELS

            def test_texts(exact_of):
                rows = [{"source": "w1 w2", "references": ["w3"]}]
                model = transformers.AutoModelForCausalLM.from_pretrained(f"{MODELS}/sure")
                for cleaned in (False, True):
                    for found in (False, True):
                        tokenizer = transformers.AutoTokenizer.from_pretrained(f"{MODELS}/sure")
                        tokenizer.clean_up_tokenization_spaces = cleaned
                        assert exact_of((model, tokenizer), rows, max_new_tokens=4).cached == found
        """,
    )
    project.run().expect(0, passed=1)
