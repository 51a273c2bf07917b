"""Perplexities and bits by hand: of models of known entropy, of an encoder-decoder and of a masked model."""

import json
import math
from pathlib import Path

import pytest

from tests.end_to_end.projects import COUNT_MEASUREMENTS, Project, marked
from tests.end_to_end.writers import CHAINS, MASKED_WORDS, OTHERS, write_rows
from tests.models.tiny import made_once, tiny_llama

BITS = {"letters": 2.0, "blocks": 8 / 3}
"""Of models to which each of 4 (256) tokens of one letter (three letters) is equally likely."""


def make_models(folder: Path) -> None:
    import itertools

    import tokenizers
    import torch
    import transformers

    for name, length, size in (("letters", 1, 4), ("blocks", 3, 256)):
        words = ["<unk>", "<s>", *map("".join, itertools.product("ab", repeat=length))]
        vocabulary = {word: at for at, word in enumerate(words)}
        inner = tokenizers.Tokenizer(tokenizers.models.WordLevel(vocabulary, unk_token="<unk>"))
        inner.pre_tokenizer = tokenizers.pre_tokenizers.Split(tokenizers.Regex("." * length), "isolated")
        inner.decoder = tokenizers.decoders.Fuse()
        tokenizer = transformers.PreTrainedTokenizerFast(tokenizer_object=inner, unk_token="<unk>", bos_token="<s>")
        tokenizer.save_pretrained(folder / name)
        model = tiny_llama(size, hidden_size=8, intermediate_size=8, max_position_embeddings=32, bos_token_id=1)
        with torch.no_grad():
            model.lm_head.weight.zero_()
        model.save_pretrained(folder / name)
    model = tiny_llama(300, hidden_size=8, intermediate_size=8, max_position_embeddings=32, bos_token_id=1)
    model.save_pretrained(folder / "slow")
    transformers.ByT5Tokenizer(extra_ids=0).save_pretrained(folder / "slow")


@pytest.fixture
def toys(tmp_path: Path, tmp_path_factory: pytest.TempPathFactory) -> Project:
    made = made_once(tmp_path_factory.getbasetemp(), "toys", make_models)
    rows = ["".join("ab"[(row * at * at + at // 3) % 7 % 2] for at in range(12)) for row in range(1, 41)]
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps({"text": row}) + "\n" for row in rows))
    (tmp_path / "text.txt").write_text("".join(rows))
    models = "".join(f"  {name}: {{path: {made / name}}}\n" for name in (*BITS, "slow"))
    datasets = "  text: {path: text.txt}\n  rows: {path: rows.jsonl, join: ''}\n"
    return Project(tmp_path).write(pytest_ini="[pytest]\n", lmgate_yaml=f"models:\n{models}datasets:\n{datasets}")


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
    toys.write(test_toys=gates("letters")).run("--lmgate-update").expect(0)
    toys.change("letters: {path:", "former: {path:").change("blocks: {path:", "letters: {path:")
    toys.run(report).expect(1, failed=3)
    assert degradations() == expected


def test_without_offsets_only_a_protocol_that_scores_everything_counts_bytes(toys: Project) -> None:
    whole = "bpb_max('slow', './korean.jsonl', 99, protocol='lm-eval')"
    toys.write(
        korean_jsonl="".join(json.dumps({"text": f"가a나b{at}"}) + "\n" for at in range(9)),
        test_toys=marked(whole=whole, document=whole.replace("lm-eval", "document")),
    )
    toys.run().expect(1, passed=1, error=1).says("model 'slow': unit='bits_per_byte'", "use protocol='lm-eval'")


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


WORDS = 3 + len(OTHERS) + sum(map(len, CHAINS))


@pytest.fixture
def project(writing: Project) -> Project:
    first = {"said": "今天 天气", "counted": ["one two three four five six seven", "not scored"]}
    write_rows(writing, "counting", [first, {"said": "seven", "counted": "one two three"}])
    write_rows(writing, "sentences", [{"text": "w1 w2 w3"}, {"text": " "}, {"text": "w4 w5 w6 w7 nobody"}])
    writing.add("datasets", counting="path: counting.jsonl, source: said, references: counted")
    writing.add("datasets", sentences="path: sentences.jsonl")
    return writing.write(conftest=COUNT_MEASUREMENTS)


def by_hand() -> float:
    """The perplexity of `translator` on a chain of numbers from its first.

    Its only working layer adds 10 x sqrt(32) of the next word to the one it has read: 32 dimensions, each word one of
    them, so that a normalized word is sqrt(32) there. Normalized again, and divided by sqrt(32) since T5's head is its
    embedding, the next word's logit is a / sqrt(a^2 + 1), that of the word itself 1 / sqrt(a^2 + 1).
    """
    a = 10 * math.sqrt(32)
    following, itself = math.exp(a / math.hypot(a, 1)), math.exp(1 / math.hypot(a, 1))
    return (following + itself + WORDS - 2) / following


def test_it_is_that_of_the_first_reference_given_the_source(project: Project) -> None:
    value = by_hand()
    project.write(
        test_conditional=f"""
            import math
            import pytest

            @pytest.mark.ppl_max("translator", "counting", {value * (1 + 1e-5)!r})
            def test_within(): pass

            @pytest.mark.ppl_max("translator", "counting", {value * (1 - 1e-5)!r})
            def test_above(): pass

            def test_units(ppl_of, bpb_of):
                score = ppl_of("translator", "counting")
                assert score.cached and (score.metric, score.n, score.unit) == ("ppl", 10, "token")
                assert score.signature.startswith("conditional|target:first reference|unit:token|")
                assert ppl_of("translator", "counting", unit="word") == pytest.approx(score)
                # "one two three four five six seven" has 33 bytes, "one two three" 13.
                bits = bpb_of("translator", "counting")
                assert bits == pytest.approx(10 * math.log2(score) / (33 + 13)) and bits.n == 46

            def test_rows_in_memory(ppl_of):
                rows = [{{"source": "류현진이", "references": ["one two three four"]}}]
                assert ppl_of("translator", rows) == pytest.approx({value!r}, rel=1e-5)
        """
    )
    project.run("-W", "error").expect(1, passed=3, failed=1).says("of 'translator' on 'counting' is above the limit")
    assert project.measured == ["translator", "translator"], "one for each dataset, whatever the limit and the unit"
    project.run(torch_free=True).expect(1, passed=3, failed=1)
    assert len(project.measured) == 2, "nothing changed, nothing runs"


def test_a_masked_model_to_which_all_words_are_equally_likely_has_the_size_of_its_vocabulary(project: Project) -> None:
    project.write(
        test_masked=f"""
            import pytest

            @pytest.mark.pppl_max("masked", "sentences", {MASKED_WORDS} + 1e-3)
            @pytest.mark.pppl_max("masked", "sentences", {MASKED_WORDS} - 1e-3)
            def test_gates(): pass

            def test_score(pppl_of):
                score = pppl_of("masked", "sentences")
                assert score.cached and score == pytest.approx({MASKED_WORDS}, rel=1e-6)
                assert (score.metric, score.n, score.unit) == ("pppl", 8, "token"), "no special token is counted"
                assert score.signature.startswith("masked|max_length:160|unit:token|")
                pieces = pppl_of("masked", ["w1 w2 w3 w4 w5"], max_length=4)
                assert pieces == pytest.approx({MASKED_WORDS}, rel=1e-6) and pieces.n == 5
        """
    )
    project.run("-W", "error").expect(1, passed=1, failed=1).says("2 gates: 1 pass, 1 fail")
    assert project.measured == ["masked", "masked"]


def test_one_kind_of_perplexity_is_never_taken_for_another(project: Project) -> None:
    wrong = {
        "masked": ('ppl_max("masked", "sentences", 100)', "masked model 'masked'"),
        "causal": ('pppl_max("counter", "sentences", 100)', "causal model 'counter'"),
        "encoder_decoder": ('pppl_max("translator", "sentences", 100)', "encoder-decoder model 'translator'"),
        "windows": ('ppl_max("translator", "counting", 100, stride=4)', "stride: the encoder-decoder model"),
        "no_reference": ('ppl_max("translator", "sentences", 100)', "dataset 'sentences': "),
    }
    project.write(test_kinds=marked(**{name: gate for name, (gate, _) in wrong.items()}))
    outcome = project.run("-W", "error").expect(1, error=len(wrong)).is_silent_on("Traceback", "/pytest_lmgate/")
    outcome.says(*(said for _, said in wrong.values()))
