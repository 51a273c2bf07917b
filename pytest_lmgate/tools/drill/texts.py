"""Faults around a model: special tokens, prompts, the settings of generation, chat templates, and shifted answers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

from msgspec import structs

from pytest_lmgate.measure.rows import DatasetRows
from pytest_lmgate.tools.drill.faults import Broken, Fault, Kind, NotPlanted, some
from pytest_lmgate.windows.tokens import TokenizerFacts

_SEED = 1234


@dataclass(frozen=True)
class _InTexts(Fault):
    kind: ClassVar[Kind] = "texts"


class MissingBos(_InTexts):
    def plant(self, broken: Broken, level: float) -> None:
        facts = _with_bos(broken.tokenizer)

        def encode(text: str, special: bool) -> Sequence[int]:
            ids = facts.encode(text, special)
            return ids[1:] if list(ids[:1]) == [facts.bos] else ids

        broken.tokenizer = replace(facts, encode=encode, adds_bos=False, placed=lambda _, __: None)


class DoubledBos(_InTexts):
    def plant(self, broken: Broken, level: float) -> None:
        facts = _with_bos(broken.tokenizer)

        def encode(text: str, special: bool) -> Sequence[int]:
            ids = list(facts.encode(text, special))
            return [*ids[:1], *ids] if ids[:1] == [facts.bos] else ids

        broken.tokenizer = replace(facts, encode=encode, placed=lambda _, __: None)


def _with_bos(facts: TokenizerFacts) -> TokenizerFacts:
    if not facts.adds_bos:
        raise NotPlanted("its tokenizer puts no token in front of a text")
    return facts


class CutPrompts(_InTexts):
    def plant(self, broken: Broken, level: float) -> None:
        broken.prompt = lambda prompt: replace(prompt, ids=prompt.ids[min(int(level), len(prompt.ids) - 1) :])


class LostEnd(_InTexts):
    def plant(self, broken: Broken, level: float) -> None:
        config = getattr(broken.model, "generation_config", None)
        if config is None or (config.eos_token_id, broken.loaded.tokenizer.eos_token_id) == (None, None):
            raise NotPlanted("no token ends its texts")
        config.eos_token_id = None
        broken.loaded = replace(broken.loaded, tokenizer=_Endless(broken.loaded.tokenizer))


class _Endless:
    """A tokenizer without an end token."""

    eos_token_id = None

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer

    def __getattr__(self, name: str) -> Any:
        return getattr(self._tokenizer, name)

    def __call__(self, *given: Any, **named: Any) -> Any:
        return self._tokenizer(*given, **named)


class Temperature(_InTexts):
    def plant(self, broken: Broken, level: float) -> None:
        broken.settings = lambda settings: structs.replace(
            settings, temperature=level, num_beams=1, seed=_SEED if settings.seed is None else settings.seed
        )


class OtherTemplate(_InTexts):
    def plant(self, broken: Broken, level: float) -> None:
        if broken.tokenizer.chat is None:
            raise NotPlanted("its tokenizer has no chat template")
        template = str(getattr(broken.loaded.tokenizer, "chat_template", ""))
        write = _as_llama if "<|im_start|>" in template else _as_chatml
        broken.tokenizer = replace(broken.tokenizer, chat=write)


def _as_chatml(messages: Sequence[Mapping[str, str]], **_: Any) -> str:
    *before, last = [f"<|im_start|>{message['role']}\n{message['content']}" for message in messages]
    goes_on = messages[-1]["role"] == "assistant"
    return "".join(f"{turn}<|im_end|>\n" for turn in before) + (
        last if goes_on else f"{last}<|im_end|>\n<|im_start|>assistant\n"
    )


def _as_llama(messages: Sequence[Mapping[str, str]], **_: Any) -> str:
    return "".join(
        message["content"] if message["role"] == "assistant" else f"[INST] {message['content']} [/INST]"
        for message in messages
    )


class ShiftedAnswers(_InTexts):
    kind: ClassVar[Kind] = "data"

    def plant(self, broken: Broken, level: float) -> None:
        """Leave the model as it is: the dataset is broken."""

    def rows(self, rows: DatasetRows, level: float) -> DatasetRows:
        spec, count = rows.spec, some(len(rows.rows), level)
        references = [spec.references] if isinstance(spec.references, str) else spec.references or []
        names = {spec.answer, spec.target, *references}
        columns = [name for name in rows.rows[0] if name in names]
        moved = rows.rows[-count:]
        answered = [
            {**row, **{name: before[name] for name in columns}}
            for row, before in zip(moved, (moved[-1], *moved), strict=False)
        ]
        return replace(rows, rows=(*rows.rows[:-count], *answered))


_ONCE = (1.0,)
TEXTS: tuple[Fault, ...] = (
    MissingBos("bos-missing", "texts begin without their first special token", _ONCE, "always"),
    DoubledBos("bos-doubled", "texts begin with their first special token twice", _ONCE, "always"),
    CutPrompts("prompt-cut", "prompts lose their beginning", (1, 4, 16, 64, 256), "{:g} tokens"),
    LostEnd("end-token", "the end token does not end a text", _ONCE, "always"),
    Temperature("temperature", "texts are sampled with a temperature", (0.3, 0.6, 1.0, 1.5), "{:g}"),
    OtherTemplate("template", "chats have the template of another model", _ONCE, "always"),
    ShiftedAnswers(
        "answers", "answers are those of the row before", (1 / 32, 1 / 16, 1 / 8, 1 / 4, 1), "{:.0%} of the rows"
    ),
)
