"""Faults around a model: special tokens, prompts, the settings of generation, chat templates, and shifted answers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

from msgspec import structs

from pytest_lmgate.measure.rows import DatasetRows
from pytest_lmgate.tools.drill.planting import SHARES, Broken, Fault, Kind, NotPlanted, some

_SEED = 1234


@dataclass(frozen=True)
class _InTexts(Fault):
    kind: ClassVar[Kind] = "texts"


@dataclass(frozen=True)
class Bos(_InTexts):
    """The special token in front of texts is missing, or there twice."""

    doubled: bool = False

    def plant(self, broken: Broken, level: float) -> None:
        facts = broken.tokenizer
        if not facts.adds_bos:
            raise NotPlanted("its tokenizer puts no token in front of a text")

        def encode(text: str, special: bool) -> Sequence[int]:
            ids = list(facts.encode(text, special))
            if ids[:1] != [facts.bos]:
                return ids
            return [*ids[:1], *ids] if self.doubled else ids[1:]

        broken.tokenizer = replace(facts, encode=encode, adds_bos=self.doubled, placed=lambda _, __: None)


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
        if "[INST]" in str(getattr(broken.loaded.tokenizer, "chat_template", "")):
            raise NotPlanted("its chat template is the one that would be put in its place")
        broken.tokenizer = replace(broken.tokenizer, chat=_as_llama)


def _as_llama(messages: Sequence[Mapping[str, str]], **_: Any) -> str:
    turns = {"assistant": "{}", "system": "<<SYS>>\n{}\n<</SYS>>\n\n"}
    return "".join(turns.get(message["role"], "[INST] {} [/INST]").format(message["content"]) for message in messages)


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


_ONCE = (1.0,), "always"
TEXTS: tuple[Fault, ...] = (
    Bos("bos-missing", "texts begin without their first special token", *_ONCE),
    Bos("bos-doubled", "texts begin with their first special token twice", *_ONCE, doubled=True),
    CutPrompts("prompt-cut", "prompts lose their beginning", (1, 4, 16, 64, 256), "{:g} tokens"),
    LostEnd("end-token", "the end token does not end a text", *_ONCE),
    Temperature("temperature", "texts are sampled with a temperature", (0.3, 0.6, 1.0, 1.5), "{:g}"),
    OtherTemplate("template", "chats have the template of another model", *_ONCE),
    ShiftedAnswers("answers", "answers are those of the row before", (1 / 32, *SHARES), "{:.0%} of the rows"),
)
