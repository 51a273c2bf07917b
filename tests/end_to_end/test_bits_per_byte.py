"""Bits per byte of models of known entropy: equal to it in every protocol, and comparable across tokenizers."""

import json
from pathlib import Path

import pytest

from tests.end_to_end.projects import Project, marked
from tests.models.tiny import made_once, tiny_llama

BITS = {"letters": 2.0, "blocks": 8 / 3}
"""Of models to which each of 4 (256) tokens of one letter (three letters) is equally likely."""


def make_models(folder: Path) -> None:
    import itertools

    import tokenizers
    import torch
    import transformers

    def save(name: str, inner: tokenizers.Tokenizer, size: int) -> None:
        model = tiny_llama(size, hidden_size=8, intermediate_size=8, max_position_embeddings=32, bos_token_id=1)
        with torch.no_grad():
            model.lm_head.weight.zero_()
        model.save_pretrained(folder / name)
        tokenizer = transformers.PreTrainedTokenizerFast(tokenizer_object=inner, unk_token="<unk>", bos_token="<s>")
        tokenizer.save_pretrained(folder / name)

    for name, length, size in (("letters", 1, 4), ("blocks", 3, 256)):
        words = ["<unk>", "<s>", *map("".join, itertools.product("ab", repeat=length))]
        inner = tokenizers.Tokenizer(
            tokenizers.models.WordLevel({word: at for at, word in enumerate(words)}, unk_token="<unk>")
        )
        pieces = tokenizers.Regex("." * length)
        inner.pre_tokenizer = tokenizers.pre_tokenizers.Split(pieces, "isolated")
        inner.decoder = tokenizers.decoders.Fuse()
        save(name, inner, size)
    model = tiny_llama(300, hidden_size=8, intermediate_size=8, max_position_embeddings=32, bos_token_id=1)
    model.save_pretrained(folder / "slow")
    transformers.ByT5Tokenizer(extra_ids=0).save_pretrained(folder / "slow")


@pytest.fixture
def toys(tmp_path: Path, tmp_path_factory: pytest.TempPathFactory) -> Project:
    made = made_once(tmp_path_factory.getbasetemp(), "toys", make_models)
    rows = ["".join("ab"[(row * at * at + at // 3) % 7 % 2] for at in range(12)) for row in range(1, 41)]
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps({"text": row}) + "\n" for row in rows))
    (tmp_path / "text.txt").write_text("".join(rows))
    (tmp_path / "korean.jsonl").write_text("".join(json.dumps({"text": f"가a나b{at}"}) + "\n" for at in range(9)))
    models = "".join(f"  {name}: {{path: {made / name}}}\n" for name in (*BITS, "slow"))
    datasets = "  text: {path: text.txt}\n  rows: {path: rows.jsonl, join: ''}\n"
    return Project(tmp_path).write(
        pytest_ini="[pytest]\n", lmgate_yaml=f"models:\n{models}datasets:\n{datasets}  korean: {{path: korean.jsonl}}\n"
    )


def test_every_protocol_gives_the_entropy_per_byte_and_per_word_of_the_text_that_it_scores(toys: Project) -> None:
    toys.write(
        test_toys=f"""
        import math
        import pytest

        BITS = {BITS!r}

        @pytest.mark.parametrize("model", BITS)
        @pytest.mark.parametrize(("dataset", "how"), [
            ("text", dict(protocol="sliding", max_length=10, stride=4)),
            ("text", dict(protocol="disjoint", max_length=7)),
            ("text", dict(protocol="bos-chunks", max_length=16)),
            ("text", dict(protocol="llama.cpp", max_length=16)),
            ("rows", dict(protocol="sliding")),
            ("rows", dict(protocol="document")),
            ("rows", dict(protocol="document", max_length=3, stride=1)),
            ("rows", dict(protocol="lm-eval")),
        ])
        def test_bits(ppl_of, bpb_of, model, dataset, how):
            bits = bpb_of(model, dataset, **how)
            assert bits == pytest.approx(BITS[model], rel=1e-6)
            units = [("byte", 1), ("char", 1)]
            if how["protocol"] in ("document", "lm-eval"):  # others read a word of 480 letters
                units.append(("word", 12))
            for unit, size in units:
                found = ppl_of(model, dataset, unit=unit, **how)
                assert math.log2(found) == pytest.approx(BITS[model] * size, rel=1e-6)
            assert bits.n == round(bits.details["targets"] * (1 if model == "letters" else 3))
        """
    )
    toys.run().expect(0, passed=16)


def test_a_worse_model_with_longer_tokens_fails_against_a_model_and_a_baseline(toys: Project) -> None:
    def gates(model: str, other: str = "") -> str:
        against = f", against={other!r}" if other else ""
        return marked(
            document=f"no_regression('bpb', {model!r}, 'rows', '1%', protocol='document'{against})",
            whole=f"no_regression('bpb', {model!r}, 'rows', '1%', protocol='lm-eval'{against})",
            word=f"no_regression('ppl', {model!r}, 'rows', '1%', protocol='document', unit='char'{against})",
        )

    def degradations() -> list[float]:
        return sorted(gate["comparison"]["degradation"] for gate in toys.report()["gates"])

    report, expected = "--lmgate-report=json:report.json", pytest.approx([1 / 3, 1 / 3, 2 ** (2 / 3) - 1], rel=1e-6)
    worse = toys.write(test_toys=gates("blocks", "letters")).run(report).expect(1, failed=3)
    worse.says("score different parts of the text, 360 bytes and 440 bytes: protocol='lm-eval' scores all of it")
    assert degradations() == expected
    toys.write(test_toys=gates("letters", "blocks")).run().expect(0, passed=3)
    toys.write(test_toys=gates("letters")).run("--lmgate-update").expect(0)
    toys.change("letters: {path:", "former: {path:").change("blocks: {path:", "letters: {path:")
    toys.run(report).expect(1, failed=3)
    assert degradations() == expected


def test_without_offsets_only_a_protocol_that_scores_everything_counts_bytes(toys: Project) -> None:
    toys.write(
        test_toys=marked(
            document="bpb_max('slow', 'korean', 99, protocol='document')",
            whole="bpb_max('slow', 'korean', 99, protocol='lm-eval')",
            tokens="ppl_max('slow', 'korean', 9999, protocol='document')",
            cached="ppl_max('slow', 'korean', 9999, protocol='document', unit='byte')",
        )
    )
    done = toys.run().expect(1, passed=2, error=2)
    done.says("model 'slow': unit='bits_per_byte'", "model 'slow': unit='byte'", "use protocol='lm-eval'")


def test_what_a_tokenizer_loses_of_questions_is_said_and_their_targets_are_not_compared_with_anothers(
    toys: Project,
) -> None:
    rows = [{"q": "aba", "t": "abcaba", "c": ["abcaba", "bababa"], "a": at % 2} for at in range(8)]
    (toys.folder / "lost.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    asked = "path: lost.jsonl, question: q, delimiter: ''"
    toys.add("datasets", quiz=f"{asked}, choices: c, answer: a", last=f"{asked}, target: t").add_gates(
        "accuracy_min: {model: blocks, dataset: quiz, limit: 0.1}",
        "no_regression: {metric: target_ppl, model: blocks, against: letters, dataset: last, tolerance: 1%}",
    )
    lost = "does not give the text back"
    toys.run().says(f"quiz: the tokenizer of 'blocks' {lost}", f"'letters': a tokenizer {lost}", "1 pass, 1 error")
