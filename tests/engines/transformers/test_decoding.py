"""Texts in batches are those of ``model.generate`` one row at a time, under the gate's settings and no others."""

from typing import Any

import pytest
import torch
import transformers

from pytest_lmgate.engines.transformers import decoding
from pytest_lmgate.engines.transformers.decoding import Decoding
from pytest_lmgate.errors import ConfigError, ModelError
from pytest_lmgate.measure import loop
from pytest_lmgate.measure.loop import Progress
from pytest_lmgate.settings.gate_options import GenerationSettings
from tests.engines.transformers.writing import NEW, PROMPTS, TOKENIZER, alone, prompts, subject, written
from tests.models.encoders import encoder_decoder, framed_tokenizer
from tests.models.zoo import build, loaded, lora, word_tokenizer, words

# Hybrid, windows of attention, learnt positions, rotary ones, state space, experts, and recurrent.
CAUSAL = ("falcon_h1", "gemma2", "gpt2", "llama", "mixtral", "rwkv")
TRANSLATORS = ("bart", "encoder-decoder", "led", "prophetnet", "t5gemma")


@pytest.fixture(scope="module")
def llama() -> Any:
    return build("llama")


@pytest.mark.parametrize("name", [*CAUSAL, *TRANSLATORS])
def test_a_model_writes_the_same_in_any_batch_as_alone(name: str) -> None:
    model, tokenizer = subject(name)
    expected = alone(model, tokenizer, PROMPTS)
    assert len(set(expected)) > (4 if name in CAUSAL else 1)
    for size in (1, 3, "auto") if name == "llama" else ("auto",):  # all prompts, which have the most padding
        assert written(model, tokenizer, PROMPTS, batch_size=size) == expected


@pytest.mark.parametrize(("name", "beams"), [("llama", 3), ("t5", 2)])
def test_beam_search_is_that_of_generate_and_the_checkpoints_own_way_of_decoding_stays_out(
    name: str, beams: int
) -> None:
    model, tokenizer = subject(name)
    expected = {count: alone(model, tokenizer, PROMPTS, num_beams=count) for count in (1, beams)}
    assert expected[1] != expected[beams]
    assert written(model, tokenizer, PROMPTS, num_beams=beams, batch_size=3) == expected[beams]
    model.generation_config.update(**GENERATION_CONFIG)
    before = model.generation_config.to_dict()
    for count, texts in expected.items():
        assert written(model, tokenizer, PROMPTS, num_beams=count) == texts
    assert model.generation_config.to_dict() == before


def test_a_padding_token_without_an_embedding_is_not_read(llama: Any) -> None:
    tokenizer = word_tokenizer()
    tokenizer.add_special_tokens({"pad_token": "<added>"})
    assert tokenizer.pad_token_id == llama.config.vocab_size
    assert written(llama, tokenizer, PROMPTS) == alone(llama, TOKENIZER, PROMPTS)


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


def test_an_adapters_model_keeps_its_own_way_of_decoding() -> None:
    base = build("llama")
    base.generation_config.update(**GENERATION_CONFIG)
    own = base.generation_config
    model = lora(base, "q_proj")
    texts = written(model, TOKENIZER, PROMPTS)
    assert base.generation_config is own
    assert model.generation_config is own
    assert texts == alone(model.merge_and_unload(), TOKENIZER, PROMPTS)
    assert texts != written(build("llama"), TOKENIZER, PROMPTS)


def test_tokens_that_a_model_must_not_write_or_must_write_first_are_the_checkpoints() -> None:
    model, tokenizer = encoder_decoder("bart"), framed_tokenizer()
    never = tokenizer.convert_tokens_to_ids(written(model, tokenizer, PROMPTS)[0].split()[0])
    model.generation_config.bad_words_ids = [[never]]
    model.generation_config.forced_bos_token_id = tokenizer.convert_tokens_to_ids("w7")
    texts = written(model, tokenizer, PROMPTS)
    assert {text.split()[0] for text in texts} == {"w7"}
    assert not any(tokenizer.convert_ids_to_tokens(never) in text.split() for text in texts)


def test_a_text_whose_end_is_forced_at_the_limit_was_cut(llama: Any, plain: list[str]) -> None:
    settings = GenerationSettings(max_new_tokens=NEW)
    rows = [ids(prompt) for prompt in PROMPTS]
    own = Decoding(loaded(llama, TOKENIZER), settings).texts(rows, range(len(rows)))
    llama.generation_config.forced_eos_token_id = 2
    try:
        found = Decoding(loaded(llama, TOKENIZER), settings).texts(rows, range(len(rows)))
    finally:
        llama.generation_config.forced_eos_token_id = None
    assert any(count == NEW and not ended for _, count, ended in own)
    assert found == [
        (text, count, ended) if ended else (text.rpartition(" ")[0], count - 1, ended) for text, count, ended in own
    ]


@pytest.mark.parametrize("pad", ["<pad>", "</s>", None])
def test_any_padding_token_will_do(llama: Any, plain: list[str], pad: str | None) -> None:
    tokenizer = word_tokenizer()
    tokenizer.pad_token = pad
    assert written(llama, tokenizer, PROMPTS) == plain


def test_a_tokenizer_without_end_and_padding_writes_to_the_last_token() -> None:
    model, tokenizer = build("llama"), word_tokenizer()
    expected = alone(model, TOKENIZER, PROMPTS, eos_token_id=None)
    tokenizer.pad_token = tokenizer.eos_token = None
    model.generation_config.eos_token_id = None
    assert written(model, tokenizer, PROMPTS) == [text.replace("</s>", "").strip() for text in expected]


def test_what_cannot_be_written_is_an_error() -> None:
    with pytest.raises(ModelError, match="expected one that generates, got Linear"):
        written(torch.nn.Linear(2, 2), TOKENIZER, PROMPTS)
    with pytest.raises(ConfigError, match="can write 63 at most, got 64"):
        written(encoder_decoder("bart"), framed_tokenizer(), PROMPTS, max_new_tokens=64)


@pytest.mark.parametrize(
    ("how", "done"),
    [({}, [3, 6, 7]), ({"num_beams": 3}, [1, 2, 3, 4, 5, 6, 7]), ({"batch_size": 2}, [2, 4, 6, 7])],
    ids=str,
)
def test_a_batch_holds_as_many_rows_as_the_budget_has_tokens_for(
    llama: Any, monkeypatch: pytest.MonkeyPatch, how: dict[str, int], done: list[int]
) -> None:
    monkeypatch.setattr(decoding, "_CPU_TOKENS", 3 * (9 + NEW))
    rows: list[int] = []
    written(llama, TOKENIZER, prompts(*[9] * 7), progress=lambda progress: rows.append(progress.done), **how)
    assert rows == done


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


def test_an_interrupted_run_goes_on_with_the_rows_that_are_missing(llama: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loop, "SAVE_SECONDS", 0.0)
    expected, saved = written(llama, TOKENIZER, PROMPTS), list[dict[int, str]]()

    def interrupt(texts: dict[int, str]) -> None:
        saved.append(dict(texts))
        if len(texts) >= 4:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        written(llama, TOKENIZER, PROMPTS, batch_size=2, save=interrupt)
    assert [len(texts) for texts in saved] == [2, 4, 4], "the last time by the interrupt"
    assert all(expected[row] == text for row, text in saved[-1].items())
    told: list[Progress] = []
    marked = {row: f"kept {row}" for row in saved[-1]}
    again = written(llama, TOKENIZER, PROMPTS, batch_size=2, known=marked, progress=told.append)
    assert again == [marked.get(row, text) for row, text in enumerate(expected)]
    assert [(each.done, each.resumed) for each in told] == [(6, 4), (7, 4)]


# What a model reads of a prompt: special tokens, chat templates, prompts that do not fit.


@pytest.fixture
def read(monkeypatch: pytest.MonkeyPatch) -> list[list[int]]:
    """Token ids of every row that a model was made to read, without padding; what was tried out is left out."""
    rows: list[list[int]] = []
    generate = transformers.GenerationMixin.generate

    def watched(self: Any, *, input_ids: torch.Tensor, attention_mask: torch.Tensor, **how: Any) -> Any:
        if not how["generation_config"].return_dict_in_generate:
            rows.extend(ids[mask.bool()].tolist() for ids, mask in zip(input_ids, attention_mask, strict=True))
        return generate(self, input_ids=input_ids, attention_mask=attention_mask, **how)

    monkeypatch.setattr(transformers.GenerationMixin, "generate", watched)
    return rows


def ids(text: str) -> list[int]:
    return TOKENIZER(text, add_special_tokens=False)["input_ids"]  # type: ignore[no-any-return]


@pytest.mark.parametrize("template", ["$A </s>", "<s> $A </s>"])
def test_an_encoder_reads_what_the_tokenizer_puts_around_a_text(read: list[list[int]], template: str) -> None:
    tokenizer, model = framed_tokenizer(template), encoder_decoder("bart")
    for prompt in ("w5 w6", "", "<s> w5"):
        written(model, tokenizer, [prompt])
    expected = [tokenizer(prompt)["input_ids"] for prompt in ("w5 w6", "", "w5")]
    assert read == [*expected[:2], expected[2] if "<s>" in template else tokenizer("<s> w5")["input_ids"]], "one BOS"


def test_special_tokens_before_a_cut_prompt_are_kept(llama: Any, read: list[list[int]]) -> None:
    (row,), bos = prompts(60), word_tokenizer(adds_bos=True)
    written(llama, bos, [f"<s> {row}"], truncate="left")
    written(llama, bos, [row], truncate="left")
    written(encoder_decoder("bart"), framed_tokenizer("<s> $A </s>"), prompts(80), truncate="left", context=40)
    tokens = framed_tokenizer()(prompts(80)[0])["input_ids"][:-1]
    assert read == [[1, *ids(row)[NEW - 63 :]], [1, *ids(row)[NEW - 63 :]], [1, *tokens[-38:], 2]]


@pytest.fixture(scope="module")
def plain(llama: Any) -> list[str]:
    """What the model writes without a stop string: words as w17, a blank between two."""
    return alone(llama, TOKENIZER, PROMPTS)


def _cut(text: str, *stops: str) -> str:
    return text[: min((text.index(stop) for stop in stops if stop in text), default=len(text))]


def test_the_tokenizers_eos_ends_a_text_too_but_no_sample(llama: Any, plain: list[str]) -> None:
    chat = word_tokenizer()
    chat.eos_token = plain[1].split()[3]
    assert written(llama, chat, PROMPTS) == [_cut(text, chat.eos_token).rstrip() for text in plain]
    settings = GenerationSettings(max_new_tokens=NEW, seed=1, temperature=1.0)
    rows = [tuple(ids(PROMPTS[1]))] * 2
    drawn = [Decoding(loaded(llama, each), settings).drawn(rows, [0, 1]) for each in (chat, TOKENIZER)]
    assert [tokens for tokens, _ in drawn[0]] == [tokens for tokens, _ in drawn[1]]


def test_an_encoder_decoder_model_stops_too() -> None:
    model, tokenizer = encoder_decoder("t5"), framed_tokenizer()
    plain = alone(model, tokenizer, PROMPTS)
    assert any("5" in text for text in plain)
    assert written(model, tokenizer, PROMPTS, stop="5") == [_cut(text, "5") for text in plain]


def test_a_stop_string_that_begins_in_the_prompt_stops_nothing(llama: Any, plain: list[str]) -> None:
    # The blank before the first word stands between prompt and text, and belongs to neither.
    prompt, text = PROMPTS[0], plain[0]
    assert written(llama, TOKENIZER, [prompt], stop=f"{prompt.split()[-1]} {text.split()[0]}") == [text]


def test_beams_end_with_the_stop_string(llama: Any) -> None:
    for prompt, text in zip(PROMPTS, written(llama, TOKENIZER, PROMPTS, stop="7", num_beams=3), strict=True):
        assert "7" not in text
        assert written(llama, TOKENIZER, [prompt], stop="7", num_beams=3, batch_size=1) == [text]


@pytest.mark.parametrize(
    ("tokenizer", "prompt", "expected"),
    [
        (word_tokenizer(adds_bos=True), "", [1]),
        # An end behind the prompt is not read, but one that the prompt itself has.
        (framed_tokenizer("<s> $A </s>"), "<s> w5 <s>", [1, 5 + 5, 1]),
        (framed_tokenizer("<s> $A </s> </s>"), "w5", [1, 5 + 5]),
        (framed_tokenizer(), "w5 </s>", [5 + 5, 2]),
    ],
)
def test_a_causal_model_reads(
    llama: Any, read: list[list[int]], tokenizer: Any, prompt: Any, expected: list[int]
) -> None:
    (text,) = written(llama, tokenizer, [prompt])
    assert read == [expected]
    assert text


@pytest.mark.parametrize("name", ["llama", "t5"])
def test_a_sample_does_not_depend_on_the_batch(name: str) -> None:
    model, tokenizer = subject(name)
    how = {"seed": 3, "temperature": 1.3, "top_k": 40, "top_p": 0.95}
    first = written(model, tokenizer, PROMPTS, batch_size=1, **how)
    assert all(written(model, tokenizer, PROMPTS, batch_size=size, **how) == first for size in (3, "auto"))


def test_sampling_leaves_the_generator_of_torch_as_it_was(llama: Any) -> None:
    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    written(llama, TOKENIZER, PROMPTS, seed=3, temperature=1.0)
    assert torch.equal(torch.rand(3), expected)


def test_of_samples_nothing_is_cut_off_unless_said() -> None:
    """generate's own default keeps the 50 most likely tokens only."""
    flat = build("llama", spread=1e-3)
    texts = written(flat, TOKENIZER, ["w9"] * 50, max_new_tokens=40, seed=1, temperature=1.0)
    assert {word for text in texts for word in text.split()} >= set(words())
