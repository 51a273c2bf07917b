"""What a model reads of a prompt: special tokens, chat templates, prompts that do not fit."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import transformers

from pytest_lmgate.errors import DataError, ModelError
from tests.engine.writing import PROMPTS, alone, prompts, written
from tests.models.encoders import encoder_decoder, framed_tokenizer
from tests.models.zoo import build, word_tokenizer

TOKENIZER = word_tokenizer()
# Roles as the words w1, w2 and w3, and w4 where the assistant is to answer.
TEMPLATE = (
    "{% for message in messages %}"
    "{{ {'system': 'w1 ', 'user': 'w2 ', 'assistant': 'w3 '}[message.role] + message.content + ' ' }}"
    "{% endfor %}{% if add_generation_prompt %}w4{% endif %}"
)


@pytest.fixture(scope="module")
def llama() -> Any:
    return build("llama")


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


def test_the_tokenizers_first_token_is_read(llama: Any, read: list[list[int]]) -> None:
    written(llama, word_tokenizer(adds_bos=True), ["w5 w6"])
    assert read == [[1, *ids("w5 w6")]]


@pytest.mark.parametrize(("template", "before"), [("$A </s>", []), ("<s> $A </s>", [1]), ("<s> $A </s> </s>", [1])])
def test_a_causal_model_does_not_read_an_end_behind_the_prompt(
    llama: Any, read: list[list[int]], template: str, before: list[int]
) -> None:
    texts = written(llama, framed_tokenizer(template), PROMPTS)
    plain = framed_tokenizer(template)
    expected = [[*before, *plain(prompt, add_special_tokens=False)["input_ids"]] for prompt in PROMPTS]
    assert sorted(read) == sorted(expected)
    assert texts != [""] * len(PROMPTS)


def test_an_end_that_the_prompt_itself_has_is_read(llama: Any, read: list[list[int]]) -> None:
    written(llama, framed_tokenizer(), ["w5 </s>"])
    assert read == [[6 + 4, 2]]


@pytest.mark.parametrize("template", ["$A </s>", "<s> $A </s>"])
def test_an_encoder_reads_what_the_tokenizer_puts_around_a_text(read: list[list[int]], template: str) -> None:
    tokenizer = framed_tokenizer(template)
    written(encoder_decoder("bart"), tokenizer, ["w5 w6"])
    assert read == [tokenizer("w5 w6")["input_ids"]]


def test_a_prompt_without_a_token_is_an_error_that_names_the_row(llama: Any) -> None:
    with pytest.raises(DataError, match=r"dataset 'rows': row 1: expected a prompt, got one without a token: ''"):
        written(llama, TOKENIZER, ["w1", ""])


def test_an_empty_prompt_is_the_first_token_where_the_tokenizer_has_one(llama: Any, read: list[list[int]]) -> None:
    written(llama, word_tokenizer(adds_bos=True), [""])
    written(encoder_decoder("t5"), framed_tokenizer(), [""])
    assert read == [[1], [2]]


def test_a_prompt_longer_than_the_room_is_an_error_that_names_the_row(llama: Any) -> None:
    rows = prompts(3, 52, 53)
    assert len(written(llama, TOKENIZER, rows[:2])) == 2
    message = (
        r"dataset 'rows': row 2: the prompt has 53 tokens, but the model 'LlamaForCausalLM' has room for 52 \(context "
        r"64, max_new_tokens 12\); shorten it, lower max_new_tokens, or say truncate='left'"
    )
    with pytest.raises(DataError, match=message):
        written(llama, TOKENIZER, rows)


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
    written(llama, word_tokenizer(adds_bos=True), [row], truncate="left")
    written(encoder_decoder("bart"), framed_tokenizer("<s> $A </s>"), prompts(80), truncate="left", context=40)
    tokens = framed_tokenizer()(prompts(80)[0])["input_ids"][:-1]
    assert read == [[1, *ids(row)[-51:]], [1, *tokens[-38:], 2]]


def test_no_prompt_is_cut_where_it_fits(llama: Any) -> None:
    assert written(llama, TOKENIZER, PROMPTS, truncate="left") == written(llama, TOKENIZER, PROMPTS)


def test_a_context_without_a_limit_takes_any_prompt(llama: Any) -> None:
    assert len(written(llama, TOKENIZER, prompts(80), context=None)) == 1


CHAT = (("system", "w10"), ("user", "w11 w12"), ("assistant", "w13"), ("user", "w14"))


def test_a_chat_is_read_as_the_template_writes_it(llama: Any, read: list[list[int]]) -> None:
    tokenizer = word_tokenizer(adds_bos=True)  # which the template does not write, and so is not read
    tokenizer.chat_template = TEMPLATE
    (text,) = written(llama, tokenizer, [CHAT])
    as_text = "w1 w10 w2 w11 w12 w3 w13 w2 w14 w4"
    assert read == [ids(as_text)]
    assert text == written(llama, TOKENIZER, [as_text])[0]


def test_special_tokens_that_a_template_writes_are_read_once(llama: Any, read: list[list[int]]) -> None:
    tokenizer = framed_tokenizer("<s> $A </s>")
    tokenizer.chat_template = "<s> {{ messages[0].content }} </s>"
    written(llama, tokenizer, [(("user", "w7"),)])
    assert read == [[1, 7 + 5, 2]]


def test_a_chat_without_a_template_is_an_error(llama: Any) -> None:
    with pytest.raises(
        ModelError, match=r"chat: true, but its tokenizer has no chat template; add chat_template.jinja"
    ):
        written(llama, TOKENIZER, [CHAT])


def test_a_template_that_refuses_a_chat_is_an_error_that_says_why(llama: Any) -> None:
    tokenizer = word_tokenizer()
    tokenizer.chat_template = (
        "{% if messages[0].role == 'system' %}{{ raise_exception('System role not supported') }}{% endif %}w1"
    )
    message = (
        "its chat template refuses a chat of system, user, assistant, user: TemplateError: System role not supported"
    )
    with pytest.raises(ModelError, match=message):
        written(llama, tokenizer, [CHAT])


def test_a_long_chat_is_an_error_or_cut_as_any_prompt(llama: Any, read: list[list[int]]) -> None:
    tokenizer = word_tokenizer()
    tokenizer.chat_template = TEMPLATE
    chat = (("user", prompts(60)[0]),)
    with pytest.raises(DataError, match="row 0: the prompt has 62 tokens"):
        written(llama, tokenizer, [chat])
    written(llama, tokenizer, [chat], truncate="left")
    assert read == [[*ids(prompts(60)[0])[-51:], *ids("w4")]]
