"""Some tasks of lm-evaluation-harness, and made-up documents with the columns that they read."""

import random
from collections.abc import Callable, Sequence
from typing import Any

Document = dict[str, Any]
Column = Callable[["Drawn"], Any]
_WORDS = """the cat sat on a mat and the dog ran to the log by the old red barn near a lake at noon""".split()  # noqa: SIM905


class Drawn:
    """Random parts of a document."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)

    def text(self, words: int = 5) -> str:
        return " ".join(self._random.choices(_WORDS, k=words))

    def texts(self, number: int) -> list[str]:
        found: dict[str, None] = {}
        while len(found) < number:
            found[self.text(self.index(3) + 2)] = None
        return list(found)

    def index(self, below: int) -> int:
        return self._random.randrange(below)


def _made(**columns: Column) -> Column:
    """Return what makes a document of columns, which are drawn in this order."""
    return lambda d: {name: make(d) for name, make in columns.items()}


def _text(words: int = 5) -> Column:
    return lambda d: d.text(words)


def _texts(number: int) -> Column:
    return lambda d: d.texts(number)


def _index(below: int) -> Column:
    return lambda d: d.index(below)


def _one_of(choices: Sequence[Any]) -> Column:
    return lambda d: choices[d.index(len(choices))]


def _blank(d: Drawn) -> Document:
    one, other = d.texts(2)
    return {"sentence": f"{d.text()} _ {d.text(3)}", "option1": one, "option2": other, "answer": str(d.index(2) + 1)}


def _sums(d: Drawn) -> Document:
    return {"question": d.text(), "answer": f"{d.text()}\n#### {'7748'[d.index(4)]}"}


def _gpqa(d: Drawn) -> Document:
    right, *wrong = d.texts(4)
    others = {f"Incorrect Answer {at}": each for at, each in enumerate(wrong, 1)}
    return {"Question": d.text(), "Correct Answer": right, **others}


def _drop(d: Drawn) -> Document:
    answer = {"number": "", "date": {"day": "", "month": "", "year": ""}, "spans": [d.text(1)]}
    more = {"number": ["7"], "date": [{"day": "", "month": "", "year": ""}], "spans": [[]]}
    asked = {"query_id": d.text(), "passage": d.text(9), "question": d.text()}
    return {**asked, "answer": answer, "validated_answers": more}


def _instructions(d: Drawn) -> Document:
    all_of_them: dict[str, Document] = {
        "punctuation:no_comma": {},
        "change_case:english_lowercase": {},
        "length_constraints:number_words": {"num_words": d.index(9), "relation": ("less than", "at least")[d.index(2)]},
        "keywords:existence": {"keywords": [d.text(1)]},
        "detectable_format:title": {},
    }
    names = sorted({[*all_of_them][d.index(5)] for _ in range(2)})
    return {"key": d.index(999), "prompt": d.text(), "instruction_id_list": names,
            "kwargs": [all_of_them[name] for name in names]}  # fmt: skip


_BIOLOGY = _made(
    question=_text(), options=_texts(4), answer=_one_of("ABCD"), category=lambda _: "biology",
    cot_content=lambda d: f"A: Let's think step by step. {d.text()}",
)  # fmt: skip
_LETTERED = _made(question=_text(), choices=_made(text=_texts(4), label=lambda _: [*"ABCD"]), answerKey=_one_of("ABCD"))
_MMLU = _made(question=_text(), choices=_texts(4), answer=_index(4))
# One task for each kind of gates and of keys that `lmgate import` writes.
CHOICES: dict[str, tuple[str, Column]] = {
    "hellaswag": (
        "hellaswag/hellaswag.yaml",
        _made(ctx_a=_text(), ctx_b=_text(3), activity_label=_text(1), endings=_texts(4), label=_one_of("0123")),
    ),
    "arc_easy": ("arc/arc_easy.yaml", _LETTERED),
    # a number for each row from the likelihoods, by code of the task
    "truthfulqa_mc2": (
        "truthfulqa/truthfulqa_mc2.yaml",
        _made(question=_text(), mc2_targets=_made(choices=_texts(4), labels=lambda d: [1, 1, d.index(2), 0])),
    ),
    "crows_pairs_english": (
        "crows_pairs/crows_pairs_english.yaml",
        _made(sent_more=_text(4), sent_less=_text(5), bias_type=_index(9)),
    ),
    # several right answers, by code of the task
    "agieval_sat_math": (
        "agieval/sat-math.yaml",
        _made(query=_text(), choices=_texts(4), gold=lambda d: sorted({d.index(4), d.index(4)})),
    ),
    # a question for each choice
    "winogrande": ("winogrande/default.yaml", _blank),
    **{f"mmlu_{each}": (f"mmlu/default/mmlu_{each}.yaml", _MMLU) for each in ("anatomy", "astronomy", "virology")},
}
LIKELIHOODS: dict[str, tuple[str, Column]] = {
    "lambada_openai": ("lambada/lambada_openai.yaml", _made(text=_text(9))),
    "asdiv": ("asdiv/default.yaml", _made(body=_text(), question=_text(3), answer=lambda d: f"{d.text(1)} (cats)")),
    "wikitext": ("wikitext/wikitext.yaml", lambda d: {"page": f" = {d.text(3)} = \n {d.text(9)} , {d.text(9)} . \n"}),
    "paloma_c4_en": ("paloma/paloma_c4_en.yaml", _made(text=_text(30))),
}
TEXTS: dict[str, tuple[str, Column]] = {
    "gsm8k": ("gsm8k/gsm8k.yaml", _sums),
    "triviaqa": ("triviaqa/default.yaml", lambda d: {"question": d.text(), "answer": {"aliases": d.texts(3)}}),
    "bbh_cot_fewshot_navigate": (
        "bbh/cot_fewshot/navigate.yaml",
        _made(input=_text(), target=_one_of(["Yes", "No"])),
    ),
    "wmt16-en-de": ("translation/wmt16_en-de.yaml", lambda d: {"translation": {"en": d.text(), "de": d.text()}}),
    "gpqa_main_cot_zeroshot": ("gpqa/cot_zeroshot/gpqa_main_cot_zeroshot.yaml", _gpqa),
    "mmlu_pro_biology": ("mmlu_pro/mmlu_pro_biology.yaml", _BIOLOGY),
    # scoring code of their own
    **{
        f"hendrycks_math_{subject}": (
            f"hendrycks_math/hendrycks_math_{subject}.yaml",
            lambda d: {"problem": d.text(), "solution": rf"{d.text()} \boxed{{{d.index(9)}}}"},
        )
        for subject in ("algebra", "geometry")
    },
    "drop": ("drop/default.yaml", _drop),
    "ifeval": ("ifeval/ifeval.yaml", _instructions),
    "bbh_zeroshot_word_sorting": (
        "bbh/zeroshot/word_sorting.yaml",
        lambda d: {"input": f"List: {d.text()}", "target": d.text()},
    ),
}

# How a document is changed so that a text is right: a model with random weights would never be.
ANSWERED: dict[str, Callable[[Document, str], Document]] = {
    "triviaqa": lambda doc, text: {**doc, "answer": {"aliases": [*doc["answer"]["aliases"], text.strip()]}},
    "wmt16-en-de": lambda doc, text: {**doc, "translation": {**doc["translation"], "de": text}},
    **dict.fromkeys(
        ("hendrycks_math_algebra", "hendrycks_math_geometry"),
        # braces would have to match
        lambda doc, text: doc if "{" in text else {**doc, "solution": rf"\boxed{{{text}}}"},
    ),
    "ifeval": lambda doc, text: {
        **doc,
        "instruction_id_list": ["length_constraints:number_words"],
        "kwargs": [{"num_words": 1, "relation": "at least"}],
    },
    "drop": lambda doc, text: {**doc, "answer": {**doc["answer"], "spans": [text]}},
}
TASKS = {**CHOICES, **LIKELIHOODS, **TEXTS}
# Tasks whose scoring code needs libraries that the harness does not bring.
NEEDS = {"ifeval": ("langdetect", "immutabledict")}
# Tasks that tests of their own look at.
OTHERS = {"gsm8k_cot_self_consistency": ("gsm8k/gsm8k-cot-self-consistency.yaml", _sums)}


def documents(task: str, number: int, seed: int) -> list[Document]:
    drawn, make = Drawn(seed), {**TASKS, **OTHERS}[task][1]
    return [make(drawn) for _ in range(number)]
