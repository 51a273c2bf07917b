"""Texts in batches are those of ``model.generate`` one row at a time, under the gate's settings and no others."""

from __future__ import annotations

from typing import Any

import peft
import pytest
import torch
import transformers

from pytest_lmgate.backends.hf import decoding
from pytest_lmgate.backends.hf.decoding import Decoding
from pytest_lmgate.backends.hf.models.loading import quiet
from pytest_lmgate.engine.loop import Progress
from pytest_lmgate.errors import ConfigError, EngineError, ModelError, NonFiniteError
from tests.engine.writing import PROMPTS, alone, prompts, written
from tests.models.encoders import ENCODER_DECODERS, encoder_decoder, framed_tokenizer
from tests.models.zoo import build, word_tokenizer

TOKENIZER = word_tokenizer()
BATCH_SIZES = (1, 3, 16, "auto")
CAUSAL = ("bloom", "falcon_h1", "gemma2", "gpt2", "gpt_neox", "llama", "mamba", "mixtral", "mpt", "opt", "phi", "rwkv")


@pytest.fixture(scope="module")
def llama() -> Any:
    return build("llama")


@pytest.mark.parametrize("name", CAUSAL)
def test_a_causal_model_writes_the_same_in_any_batch_as_alone(name: str) -> None:
    model = build(name)
    expected = alone(model, TOKENIZER, PROMPTS)
    assert len(set(expected)) > 4
    for size in BATCH_SIZES:
        assert written(model, TOKENIZER, PROMPTS, batch_size=size) == expected


@pytest.mark.parametrize("name", ENCODER_DECODERS)
def test_an_encoder_decoder_model_writes_the_same_in_any_batch_as_alone(name: str) -> None:
    model, tokenizer = encoder_decoder(name), framed_tokenizer()
    expected = alone(model, tokenizer, PROMPTS)
    assert len(set(expected)) > 1
    for size in BATCH_SIZES:
        assert written(model, tokenizer, PROMPTS, batch_size=size) == expected


def test_greedy_is_the_most_likely_token_step_by_step(llama: Any) -> None:
    expected = []
    for prompt in PROMPTS:
        ids = TOKENIZER(prompt, return_tensors="pt")["input_ids"]
        begin = ids.shape[1]
        for _ in range(12):
            with torch.no_grad():
                token = llama(input_ids=ids).logits[0, -1].argmax()
            if token == TOKENIZER.eos_token_id:
                break
            ids = torch.cat([ids, token[None, None]], 1)
        expected.append(TOKENIZER.decode(ids[0, begin:], skip_special_tokens=True))
    assert written(llama, TOKENIZER, PROMPTS) == expected


@pytest.mark.parametrize("beams", [2, 5])
@pytest.mark.parametrize("name", ["llama", "t5", "bart"])
def test_beam_search_is_that_of_generate(name: str, beams: int) -> None:
    model, tokenizer = (build(name), TOKENIZER) if name == "llama" else (encoder_decoder(name), framed_tokenizer())
    expected = alone(model, tokenizer, PROMPTS, num_beams=beams)
    assert expected != alone(model, tokenizer, PROMPTS)
    for size in (1, 3, "auto"):
        assert written(model, tokenizer, PROMPTS, num_beams=beams, batch_size=size) == expected


@pytest.mark.parametrize("count", [1, 7])
def test_a_text_has_so_many_tokens_at_most(llama: Any, count: int) -> None:
    lengths = [len(text.split()) for text in written(llama, TOKENIZER, PROMPTS, max_new_tokens=count)]
    assert max(lengths) == count


def test_texts_come_in_the_order_of_the_prompts_and_equal_prompts_have_equal_texts(llama: Any) -> None:
    once = dict(zip(PROMPTS, written(llama, TOKENIZER, PROMPTS), strict=True))
    order = [*reversed(PROMPTS), *PROMPTS]
    assert written(llama, TOKENIZER, order, batch_size=3) == [once[prompt] for prompt in order]


def test_no_prompts_are_no_texts(llama: Any) -> None:
    assert written(llama, TOKENIZER, []) == []


class HeedlessLlama(transformers.LlamaForCausalLM):
    """It does not look at the attention mask, as some models with code of their own."""

    def forward(self, input_ids: Any = None, attention_mask: Any = None, position_ids: Any = None, **how: Any) -> Any:
        return super().forward(input_ids=input_ids, **how)


@pytest.mark.parametrize(
    ("name", "sizes"),
    [
        ("llama", [7]),
        ("heedless", [3, 1, 3]),  # padding changes what it writes: those of one length go together
        ("rwkv", [1] * 7),  # mixes the states of a batch: each row for itself
    ],
)
def test_rows_share_batches_unless_that_changes_what_a_model_writes(
    name: str, sizes: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    model = build("llama" if name == "heedless" else name)
    if name == "heedless":
        model.__class__ = HeedlessLlama
    rows = prompts(5, 9, 5, 9, 7, 9, 5)
    write, found = Decoding.texts, []

    def watched(self: Decoding, batch: Any, numbers: Any) -> Any:
        found.append(len(batch))
        return write(self, batch, numbers)

    monkeypatch.setattr(Decoding, "texts", watched)
    assert written(model, TOKENIZER, rows) == alone(model, TOKENIZER, rows)
    assert found == sizes


GENERATION_CONFIG = {
    "repetition_penalty": 9.0, "no_repeat_ngram_size": 1, "min_new_tokens": 12, "num_beams": 3, "do_sample": True,
    "temperature": 0.1, "top_k": 2, "max_length": 4, "max_new_tokens": 2, "length_penalty": 3.0, "use_cache": False,
    "encoder_no_repeat_ngram_size": 1, "exponential_decay_length_penalty": (1, 9.0), "early_stopping": True,
}  # fmt: skip


@pytest.mark.parametrize("name", ["llama", "t5"])
@pytest.mark.parametrize("beams", [1, 2])
def test_the_checkpoints_own_way_of_decoding_stays_out(name: str, beams: int) -> None:
    model, tokenizer = (build(name), TOKENIZER) if name == "llama" else (encoder_decoder(name), framed_tokenizer())
    expected = written(model, tokenizer, PROMPTS, num_beams=beams)
    model.generation_config.update(**GENERATION_CONFIG)
    before = model.generation_config.to_dict()
    assert written(model, tokenizer, PROMPTS, num_beams=beams) == expected
    assert model.generation_config.to_dict() == before


def test_the_checkpoints_own_way_of_decoding_comes_back_after_a_failure() -> None:
    model = build("gpt2")
    own = model.generation_config
    with pytest.raises(EngineError, match=r"running row 0 of 'rows', 90 tokens failed: IndexError"):
        written(model, TOKENIZER, prompts(90), context=None)
    assert model.generation_config is own


def test_an_adapters_model_keeps_its_own_way_of_decoding() -> None:
    base = build("llama")
    base.generation_config.update(**GENERATION_CONFIG)
    own = base.generation_config
    with quiet():
        torch.manual_seed(0)
        model = peft.get_peft_model(base, peft.LoraConfig(target_modules=["q_proj"], init_lora_weights=False)).eval()
    texts = written(model, TOKENIZER, PROMPTS)
    assert base.generation_config is own
    assert model.generation_config is own
    assert texts == alone(model.merge_and_unload(), TOKENIZER, PROMPTS)
    assert texts != written(build("llama"), TOKENIZER, PROMPTS)


def test_tokens_that_end_a_text_are_the_checkpoints() -> None:
    model = build("llama")
    plain = written(model, TOKENIZER, PROMPTS)
    ends = plain[1].split()[5]
    model.generation_config.eos_token_id = [2, TOKENIZER.convert_tokens_to_ids(ends)]
    cut = written(model, TOKENIZER, PROMPTS)
    assert cut[1] == " ".join(plain[1].split()[:5])
    assert cut == [text.split(ends)[0].strip() if ends in text.split() else text for text in plain]


def test_tokens_that_a_model_must_not_write_or_must_write_first_are_the_checkpoints() -> None:
    model, tokenizer = encoder_decoder("bart"), framed_tokenizer()
    never = tokenizer.convert_tokens_to_ids(written(model, tokenizer, PROMPTS)[0].split()[0])
    model.generation_config.bad_words_ids = [[never]]
    model.generation_config.forced_bos_token_id = tokenizer.convert_tokens_to_ids("w7")
    texts = written(model, tokenizer, PROMPTS)
    assert {text.split()[0] for text in texts} == {"w7"}
    assert not any(tokenizer.convert_ids_to_tokens(never) in text.split() for text in texts)


@pytest.mark.parametrize("pad", ["<pad>", "</s>", None])
def test_any_padding_token_will_do(llama: Any, pad: str | None) -> None:
    tokenizer = word_tokenizer()
    tokenizer.pad_token = pad
    assert written(llama, tokenizer, PROMPTS) == alone(llama, TOKENIZER, PROMPTS)


def test_a_tokenizer_without_end_and_padding_writes_to_the_last_token() -> None:
    model, tokenizer = build("llama"), word_tokenizer()
    expected = alone(model, TOKENIZER, PROMPTS, eos_token_id=None)
    tokenizer.pad_token = tokenizer.eos_token = None
    model.generation_config.eos_token_id = None
    assert written(model, tokenizer, PROMPTS) == [text.replace("</s>", "").strip() for text in expected]


def test_a_model_in_training_writes_without_dropout_and_goes_on_training() -> None:
    model = build("gpt2", resid_pdrop=0.5, embd_pdrop=0.5)
    expected = written(model, TOKENIZER, PROMPTS)
    model.train()
    assert written(model, TOKENIZER, PROMPTS) == expected
    assert model.training


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_damaged_weights_are_an_error_not_a_text(value: float) -> None:
    model = build("llama")
    with torch.no_grad():
        model.model.norm.weight[3] = value
    with pytest.raises(NonFiniteError, match="NaN or infinite logits while generating"):
        written(model, TOKENIZER, PROMPTS)


def test_a_model_that_cannot_generate_is_an_error() -> None:
    with pytest.raises(ModelError, match="expected one that generates, got Linear"):
        written(torch.nn.Linear(2, 2), TOKENIZER, PROMPTS)


def test_more_tokens_than_the_model_can_write_are_an_error(llama: Any) -> None:
    with pytest.raises(ConfigError, match="has a context of 64 tokens and can write 63 at most, got 64"):
        written(llama, TOKENIZER, PROMPTS, max_new_tokens=64)
    with pytest.raises(ConfigError, match="can write 63 at most, got 64"):
        written(encoder_decoder("bart"), framed_tokenizer(), PROMPTS, max_new_tokens=64)


def test_a_batch_holds_as_many_rows_as_the_budget_has_tokens_for(llama: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(decoding, "_CPU_TOKENS", 3 * (9 + 12))
    rows: list[int] = []
    many = prompts(*[9] * 7)
    written(llama, TOKENIZER, many, report=lambda progress: rows.append(progress.done))
    assert rows == [3, 6, 7]
    rows.clear()
    written(llama, TOKENIZER, many, num_beams=3, report=lambda progress: rows.append(progress.done))
    assert rows == [1, 2, 3, 4, 5, 6, 7]
    rows.clear()
    written(llama, TOKENIZER, many, batch_size=2, report=lambda progress: rows.append(progress.done))
    assert rows == [2, 4, 6, 7]


def test_out_of_memory_halves_the_batch_and_goes_on_with_smaller_ones(
    llama: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = written(llama, TOKENIZER, PROMPTS * 2)
    generate, sizes = llama.generate, []

    def scarce(input_ids: torch.Tensor, **how: Any) -> Any:
        sizes.append(len(input_ids))
        if len(input_ids) > 4:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return generate(input_ids=input_ids, **how)

    monkeypatch.setattr(llama, "generate", scarce)
    assert written(llama, TOKENIZER, PROMPTS * 2) == expected
    # After the two runs that try out whether rows may share a batch: 14, 7, then parts of at most 3.
    assert sizes[2:4] == [14, 7]
    assert max(sizes[4:]) == 3


def test_out_of_memory_with_one_row_is_an_error_that_names_it(llama: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def scarce(**_: Any) -> Any:
        raise torch.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr(llama, "generate", scarce)
    with pytest.raises(EngineError, match="out of memory with row 1 of 'rows', 9 tokens alone on cpu"):
        written(llama, TOKENIZER, prompts(3, 9), batch_size=1)


def test_an_interrupted_run_goes_on_with_the_rows_that_are_missing(llama: Any) -> None:
    expected, saved = written(llama, TOKENIZER, PROMPTS), list[dict[int, str]]()

    def interrupt(texts: dict[int, str]) -> None:
        saved.append(dict(texts))
        if len(texts) >= 4:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        written(llama, TOKENIZER, PROMPTS, batch_size=2, save=interrupt, every=0.0)
    assert [len(texts) for texts in saved] == [2, 4, 4], "the last time by the interrupt"
    assert all(expected[row] == text for row, text in saved[-1].items())
    told: list[Progress] = []
    marked = {row: f"kept {row}" for row in saved[-1]}
    again = written(llama, TOKENIZER, PROMPTS, batch_size=2, known=marked, report=told.append)
    assert again == [marked.get(row, text) for row, text in enumerate(expected)]
    assert [(each.done, each.resumed) for each in told] == [(6, 4), (7, 4)]


def test_a_finished_run_is_not_saved_in_part(llama: Any) -> None:
    saved: list[int] = []
    written(llama, TOKENIZER, PROMPTS, batch_size=3, save=lambda texts: saved.append(len(texts)), every=0.0)
    assert saved == [3, 6]


def test_texts_of_rows_that_are_gone_are_not_taken(llama: Any) -> None:
    assert written(llama, TOKENIZER, PROMPTS[:2], known={1: "kept", 2: "gone"})[1:] == ["kept"]


def test_progress_counts_texts_and_tokens(llama: Any) -> None:
    told: list[Progress] = []
    texts = written(llama, TOKENIZER, PROMPTS, batch_size=3, report=told.append)
    assert [each.done for each in told] == [3, 6, 7]
    assert {each.of for each in told} == {7}
    # Every text is so many words, and where it is shorter than allowed, one end token.
    assert told[-1].tokens == sum(len(text.split()) + (len(text.split()) < 12) for text in texts)


def test_a_line_of_progress_says_how_far_how_fast_and_how_long() -> None:
    progress = Progress("int8", "news", 1200, 3000, 45_000, 30.0, "1,200 of 3,000 texts", resumed=200)
    assert progress.line == "int8 on news: 1,200 of 3,000 texts, 1,500 tokens/s, 0:00:54 left"
    assert Progress("int8", "news", 0, 3, 0, 0.0, "none").line == "int8 on news: none, 0 tokens/s, 0:00:00 left"
