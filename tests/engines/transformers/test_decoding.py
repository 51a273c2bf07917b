"""Texts in batches are those of ``model.generate`` one row at a time, under the gate's settings and no others."""

import itertools
from typing import Any

import pytest
import torch
import transformers

from pytest_lmgate.engines.tokenizers import tokenizer_facts
from pytest_lmgate.engines.transformers import decoding
from pytest_lmgate.engines.transformers.decoding import Decoding
from pytest_lmgate.errors import ConfigError, DataError, EngineError, ModelError, NonFiniteError
from pytest_lmgate.measure.loop import Progress
from pytest_lmgate.settings.requests import GenerationSettings
from tests.engines.transformers.writing import PROMPTS, TOKENIZER, alone, prompts, subject, written
from tests.models.encoders import encoder_decoder, framed_tokenizer
from tests.models.zoo import build, loaded, lora, word_tokenizer

# Hybrid, windows of attention, learnt positions, rotary ones, state space, experts, and recurrent.
CAUSAL = ("falcon_h1", "gemma2", "gpt2", "llama", "mamba", "mixtral", "rwkv")
TRANSLATORS = ("bart", "encoder-decoder", "led", "prophetnet", "t5", "t5gemma")


@pytest.fixture(scope="module")
def llama() -> Any:
    return build("llama")


@pytest.mark.parametrize("name", [*CAUSAL, *TRANSLATORS])
def test_a_model_writes_the_same_in_any_batch_as_alone(name: str) -> None:
    model, tokenizer = subject(name)
    expected = alone(model, tokenizer, PROMPTS)
    assert len(set(expected)) > (4 if name in CAUSAL else 1)
    for size in (1, 3, 16, "auto") if name == "llama" else ("auto",):  # all prompts, which have the most padding
        assert written(model, tokenizer, PROMPTS, batch_size=size) == expected


@pytest.mark.parametrize(("name", "beams"), [("llama", 3), ("t5", 2)])
def test_beam_search_is_that_of_generate(name: str, beams: int) -> None:
    model, tokenizer = subject(name)
    expected = alone(model, tokenizer, PROMPTS, num_beams=beams)
    assert expected != alone(model, tokenizer, PROMPTS)
    for size in (3, "auto"):
        assert written(model, tokenizer, PROMPTS, num_beams=beams, batch_size=size) == expected


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
    model, tokenizer = subject(name)
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
    model = lora(base, "q_proj")
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


def test_more_tokens_than_an_encoder_decoder_can_write_are_an_error() -> None:
    with pytest.raises(ConfigError, match="can write 63 at most, got 64"):
        written(encoder_decoder("bart"), framed_tokenizer(), PROMPTS, max_new_tokens=64)


def test_a_batch_holds_as_many_rows_as_the_budget_has_tokens_for(llama: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(decoding, "_CPU_TOKENS", 3 * (9 + 12))
    rows: list[int] = []
    many = prompts(*[9] * 7)
    written(llama, TOKENIZER, many, progress=lambda progress: rows.append(progress.done))
    assert rows == [3, 6, 7]
    rows.clear()
    written(llama, TOKENIZER, many, num_beams=3, progress=lambda progress: rows.append(progress.done))
    assert rows == [1, 2, 3, 4, 5, 6, 7]
    rows.clear()
    written(llama, TOKENIZER, many, batch_size=2, progress=lambda progress: rows.append(progress.done))
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
    again = written(llama, TOKENIZER, PROMPTS, batch_size=2, known=marked, progress=told.append)
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
    texts = written(llama, TOKENIZER, PROMPTS, batch_size=3, progress=told.append)
    assert [each.done for each in told] == [3, 6, 7]
    assert {each.of for each in told} == {7}
    # Every text is so many words, and where it is shorter than allowed, one end token.
    assert told[-1].tokens == sum(len(text.split()) + (len(text.split()) < 12) for text in texts)


def test_a_line_of_progress_says_how_far_how_fast_and_how_long() -> None:
    progress = Progress("int8", "news", 1200, 3000, 45_000, 30.0, "1,200 of 3,000 texts", resumed=200)
    assert progress.line == "int8 on news: 1,200 of 3,000 texts, 1,500 tokens/s, 0:00:54 left"
    assert Progress("int8", "news", 0, 3, 0, 0.0, "none").line == "int8 on news: none, 0 tokens/s, 0:00:00 left"


# What a model reads of a prompt: special tokens, chat templates, prompts that do not fit.


# Roles as the words w1, w2 and w3, and w4 where the assistant is to answer.
TEMPLATE = (
    "{% for message in messages %}"
    "{{ {'system': 'w1 ', 'user': 'w2 ', 'assistant': 'w3 '}[message.role] + message.content + ' ' }}"
    "{% endfor %}{% if add_generation_prompt %}w4{% endif %}"
)


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


def chatting(tokenizer: Any, template: str = TEMPLATE) -> Any:
    tokenizer.chat_template = template
    return tokenizer


CHAT = (("system", "w10"), ("user", "w11 w12"), ("assistant", "w13"), ("user", "w14"))


@pytest.mark.parametrize(
    ("tokenizer", "prompt", "expected"),
    [
        (word_tokenizer(adds_bos=True), "w5 w6", [1, *ids("w5 w6")]),
        (word_tokenizer(adds_bos=True), "", [1]),
        # A BOS of the prompt's own is the only one.
        (word_tokenizer(adds_bos=True), "<s> w5", [1, *ids("w5")]),
        (word_tokenizer(), "<s> w5", [1, *ids("w5")]),
        (framed_tokenizer("<s> $A </s>"), "<s> w5 <s>", [1, 5 + 5, 1]),
        # An end behind the prompt is not read, but one that the prompt itself has.
        (framed_tokenizer("$A </s>"), "w5", [5 + 5]),
        (framed_tokenizer("<s> $A </s>"), "w5", [1, 5 + 5]),
        (framed_tokenizer("<s> $A </s> </s>"), "w5", [1, 5 + 5]),
        (framed_tokenizer(), "w5 </s>", [5 + 5, 2]),
        # A chat is what its template writes, without what the tokenizer puts before texts; the last turn is continued.
        (chatting(word_tokenizer(adds_bos=True)), CHAT, ids("w1 w10 w2 w11 w12 w3 w13 w2 w14 w4")),
        (chatting(word_tokenizer()), CHAT[:3], ids("w1 w10 w2 w11 w12 w3 w13")),
        (
            chatting(framed_tokenizer("<s> $A </s>"), "<s> {{ messages[0].content }} </s>"),
            (("user", "w7"),),
            [1, 12, 2],
        ),
    ],
)
def test_a_causal_model_reads(
    llama: Any, read: list[list[int]], tokenizer: Any, prompt: Any, expected: list[int]
) -> None:
    (text,) = written(llama, tokenizer, [prompt])
    assert read == [expected]
    assert text


@pytest.mark.parametrize("template", ["$A </s>", "<s> $A </s>"])
@pytest.mark.parametrize("prompt", ["w5 w6", ""])
def test_an_encoder_reads_what_the_tokenizer_puts_around_a_text(
    read: list[list[int]], template: str, prompt: str
) -> None:
    tokenizer = framed_tokenizer(template)
    written(encoder_decoder("bart"), tokenizer, [prompt])
    assert read == [tokenizer(prompt)["input_ids"]]
    if "<s>" in template:
        written(encoder_decoder("bart"), tokenizer, [f"<s> {prompt}"])
        assert read[1:] == read[:1], "one BOS"


def test_the_whole_room_can_be_written_in() -> None:
    model = build("gpt2")
    (row,) = prompts(52)
    assert written(model, TOKENIZER, [row]) == alone(model, TOKENIZER, [row])


def test_an_encoder_has_the_whole_context_for_the_prompt() -> None:
    model, tokenizer = encoder_decoder("bart"), framed_tokenizer()
    assert len(written(model, tokenizer, prompts(63))) == 1
    with pytest.raises(DataError, match=r"the prompt has 65 tokens, .* has room for 64 \(context 64\); shorten it, or"):
        written(model, tokenizer, prompts(64))


def test_the_left_end_of_a_long_prompt_is_cut_where_that_is_said(llama: Any, read: list[list[int]]) -> None:
    rows = prompts(3, 60)
    texts = written(llama, TOKENIZER, rows, truncate="left")
    assert sorted(map(len, read)) == [3, 52]
    assert texts == written(llama, TOKENIZER, [rows[0], " ".join(rows[1].split()[-52:])])


def test_special_tokens_before_a_cut_prompt_are_kept(llama: Any, read: list[list[int]]) -> None:
    (row,) = prompts(60)
    written(llama, word_tokenizer(adds_bos=True), [f"<s> {row}"], truncate="left")
    assert read.pop() == [1, *ids(row)[-51:]]
    written(llama, word_tokenizer(adds_bos=True), [row], truncate="left")
    written(encoder_decoder("bart"), framed_tokenizer("<s> $A </s>"), prompts(80), truncate="left", context=40)
    tokens = framed_tokenizer()(prompts(80)[0])["input_ids"][:-1]
    assert read == [[1, *ids(row)[-51:]], [1, *tokens[-38:], 2]]


def test_a_context_without_a_limit_takes_any_prompt(llama: Any) -> None:
    assert len(written(llama, TOKENIZER, prompts(80), context=None)) == 1


def test_a_template_reads_its_variables_and_no_others() -> None:
    chat = tokenizer_facts(chatting(word_tokenizer(), TEMPLATE + "{% if thinks %} w5{% endif %}")).chat
    messages = [{"role": role, "content": content} for role, content in CHAT]
    assert chat(messages, thinks=True) == f"{chat(messages)} w5"
    with pytest.raises(ValueError, match="chat_template_kwargs: the template has no variable 'think'"):
        chat(messages, think=True)


def test_a_long_chat_is_an_error_or_cut_as_any_prompt(llama: Any, read: list[list[int]]) -> None:
    tokenizer, chat = chatting(word_tokenizer()), (("user", prompts(60)[0]),)
    with pytest.raises(DataError, match="row 0: the prompt has 62 tokens"):
        written(llama, tokenizer, [chat])
    written(llama, tokenizer, [chat], truncate="left")
    assert read == [[*ids(prompts(60)[0])[-51:], *ids("w4")]]


# A text ends before the first stop string in it, wherever that begins and ends among the tokens.


@pytest.fixture(scope="module")
def plain(llama: Any) -> list[str]:
    """What the model writes without a stop string: words as w17, a blank between two."""
    return alone(llama, TOKENIZER, PROMPTS)


def _cut(text: str, *stops: str) -> str:
    return text[: min((text.index(stop) for stop in stops if stop in text), default=len(text))]


@pytest.mark.parametrize(
    ("stops", "size"),
    [
        *((stops, 3) for stops in (("7",), ("w4",), ("2 w",), (" ",), ("w",), ("no such string",))),
        *((("5", "3 w3", "8"), size) for size in (1, 3, "auto")),
        (("no such string", "1"), 3),
    ],
)
def test_a_text_is_cut_before_the_first_stop_string(
    llama: Any, plain: list[str], stops: tuple[str, ...], size: int | str
) -> None:
    found = written(llama, TOKENIZER, PROMPTS, stop=list(stops), batch_size=size)
    assert found == [_cut(text, *stops) for text in plain]


def test_a_stop_string_over_many_tokens_is_found(llama: Any, plain: list[str]) -> None:
    stop = plain[2][5:40]
    assert len(stop.split()) > 5
    assert written(llama, TOKENIZER, PROMPTS, stop=stop) == [_cut(text, stop) for text in plain]


def test_a_stop_string_may_be_a_special_token_or_begin_before_one(llama: Any, plain: list[str]) -> None:
    first, second, third, *_ = plain[1].split()
    special = word_tokenizer()
    special.add_special_tokens({"additional_special_tokens": [third]})
    unstopped = " ".join(word for word in plain[1].split() if word != third)
    assert written(llama, special, [PROMPTS[1]]) == [unstopped]
    for stop, size in itertools.product((third, third[1:], f"{second[-1]} {third}"), (1, "auto")):
        expected = _cut(plain[1], stop).removesuffix(third[0] if stop == third[1:] else "").rstrip()
        found = written(llama, special, PROMPTS, stop=stop, batch_size=size)
        assert found[1].rstrip() == expected, stop
        assert len(set(found)) == len(set(plain)), "the other rows go on"
    assert first in expected


def test_the_tokenizers_eos_ends_a_text_too_but_no_sample(llama: Any, plain: list[str]) -> None:
    chat = word_tokenizer()
    chat.eos_token = plain[1].split()[3]
    assert written(llama, chat, PROMPTS) == [_cut(text, chat.eos_token).rstrip() for text in plain]
    settings = GenerationSettings(max_new_tokens=12, seed=1, temperature=1.0)
    rows = [tuple(ids(PROMPTS[1]))] * 2
    drawn = [Decoding(loaded(llama, each), settings).drawn(rows, [0, 1]) for each in (chat, TOKENIZER)]
    assert [tokens for tokens, _ in drawn[0]] == [tokens for tokens, _ in drawn[1]]


def test_an_encoder_decoder_model_stops_too() -> None:
    model, tokenizer = encoder_decoder("t5"), framed_tokenizer()
    plain = alone(model, tokenizer, PROMPTS)
    assert written(model, tokenizer, PROMPTS, stop="5") == [_cut(text, "5") for text in plain]
    assert any("5" in text for text in plain)


def test_the_prompts_own_text_stops_nothing(llama: Any, plain: list[str]) -> None:
    # The blank before the first word stands between prompt and text, and belongs to neither.
    prompt, text = PROMPTS[0], plain[0]
    assert written(llama, TOKENIZER, [prompt], stop=[prompt.split()[-1], prompt]) == [text]
    assert written(llama, TOKENIZER, [prompt], stop=f"{prompt.split()[-1]} {text.split()[0]}") == [text]


def test_a_batch_goes_on_until_its_last_row_has_stopped(llama: Any, plain: list[str]) -> None:
    told: list[Progress] = []
    stop = plain[1].split()[2]
    written(llama, TOKENIZER, [PROMPTS[1]] * 2, stop=stop, progress=told.append)
    assert told[-1].tokens == 2 * 3
    written(llama, TOKENIZER, [PROMPTS[1], PROMPTS[0]], stop=stop, progress=told.append)
    assert told[-1].tokens > 3 + 3


def test_beams_end_with_the_stop_string(llama: Any) -> None:
    for prompt, text in zip(PROMPTS, written(llama, TOKENIZER, PROMPTS, stop="7", num_beams=3), strict=True):
        assert "7" not in text
        assert written(llama, TOKENIZER, [prompt], stop="7", num_beams=3, batch_size=1) == [text]
