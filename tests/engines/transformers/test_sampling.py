"""Samples depend on the seed and the row's number alone, and follow the distribution that was asked for."""

from collections import Counter
from typing import Any

import pytest
import scipy.stats
import torch
import transformers

from tests.engines.transformers.writing import PROMPTS, TOKENIZER, subject, written
from tests.models.zoo import build, words


@pytest.fixture(scope="module")
def llama() -> Any:
    return build("llama", spread=2.0)


def test_the_same_seed_gives_the_same_texts_and_another_one_others(llama: Any) -> None:
    first = written(llama, TOKENIZER, PROMPTS, seed=1, temperature=1.0)
    torch.manual_seed(99)
    assert written(llama, TOKENIZER, PROMPTS, seed=1, temperature=1.0) == first
    assert all(
        one != other
        for one, other in zip(first, written(llama, TOKENIZER, PROMPTS, seed=2, temperature=1.0), strict=True)
    )


@pytest.mark.parametrize("name", ["llama", "t5"])
def test_a_sample_does_not_depend_on_the_batch(name: str) -> None:
    model, tokenizer = subject(name)
    how = {"seed": 3, "temperature": 1.3, "top_k": 40, "top_p": 0.95}
    first = written(model, tokenizer, PROMPTS, batch_size=1, **how)
    assert all(written(model, tokenizer, PROMPTS, batch_size=size, **how) == first for size in (2, 3, "auto"))


def test_a_sample_does_not_depend_on_the_other_rows(llama: Any) -> None:
    first = written(llama, TOKENIZER, PROMPTS, seed=3, temperature=1.0)
    assert written(llama, TOKENIZER, PROMPTS[:3], seed=3, temperature=1.0) == first[:3]
    others = [PROMPTS[0], "w1 w2 w3 w4", *PROMPTS[2:]]
    assert written(llama, TOKENIZER, others, seed=3, temperature=1.0)[2:] == first[2:]


def test_rows_with_the_same_prompt_have_samples_of_their_own(llama: Any) -> None:
    assert len(set(written(llama, TOKENIZER, ["w1 w2"] * 9, seed=3, temperature=1.0))) == 9


def test_sampling_leaves_the_generator_of_torch_as_it_was(llama: Any) -> None:
    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    written(llama, TOKENIZER, PROMPTS, seed=3, temperature=1.0)
    assert torch.equal(torch.rand(3), expected)


@pytest.mark.parametrize("how", [{"top_k": 1}, {"temperature": 1e-4}, {"top_p": 1e-6}])
def test_the_most_likely_token_is_left_where_nothing_else_is(llama: Any, how: dict[str, Any]) -> None:
    assert written(llama, TOKENIZER, PROMPTS, seed=3, **how) == written(llama, TOKENIZER, PROMPTS)


PROBABILITIES = [0.4, 0.25, 0.15, 0.1, 0.06, 0.04]


class Dice(transformers.PreTrainedModel, transformers.GenerationMixin):  # type: ignore[misc]
    """Throws the same dice at every step, whatever it reads: the words w0 to w5."""

    config_class = transformers.GPT2Config
    main_input_name = "input_ids"

    def __init__(self, probabilities: list[float]) -> None:
        super().__init__(transformers.GPT2Config(vocab_size=97, n_layer=1, n_head=1, n_embd=4))
        logits = torch.full((97,), -torch.inf)
        logits[4 : 4 + len(probabilities)] = torch.tensor(probabilities).log()
        self.logits = torch.nn.Parameter(logits)

    def prepare_inputs_for_generation(self, input_ids: Any, **_: Any) -> dict[str, Any]:
        return {"input_ids": input_ids}

    def forward(self, input_ids: Any = None, **_: Any) -> Any:
        logits = self.logits.expand(*input_ids.shape, -1)
        return transformers.modeling_outputs.CausalLMOutput(logits=logits)


@pytest.mark.parametrize(
    ("how", "expected"),
    [
        ({"temperature": 1.0}, PROBABILITIES),
        ({"temperature": 2.0}, [p**0.5 for p in PROBABILITIES]),
        ({"top_k": 3}, PROBABILITIES[:3]),
        ({"top_p": 0.7}, PROBABILITIES[:3]),
        ({"top_k": 4, "temperature": 0.5}, [p**2 for p in PROBABILITIES[:4]]),
    ],
)
def test_samples_follow_the_distribution(how: dict[str, Any], expected: list[float]) -> None:
    texts = written(Dice(PROBABILITIES), TOKENIZER, ["w9"] * 100, max_new_tokens=40, seed=11, context=None, **how)
    counts = Counter(word for text in texts for word in text.split())
    assert counts.total() == 4000
    assert set(counts) == {words()[number] for number in range(len(expected))}
    wanted = [4000 * each / sum(expected) for each in expected]
    found = [counts[words()[number]] for number in range(len(expected))]
    assert scipy.stats.chisquare(found, wanted).pvalue > 0.01


def test_nothing_is_cut_off_unless_said() -> None:
    # generate's own default keeps the 50 most likely tokens only.
    texts = written(
        Dice([1 / 93] * 93), TOKENIZER, ["w9"] * 50, max_new_tokens=40, seed=1, temperature=1.0, context=None
    )
    assert {word for text in texts for word in text.split()} == set(words())


def test_a_stop_string_ends_a_sample_as_it_would_be_cut(llama: Any) -> None:
    plain = written(llama, TOKENIZER, PROMPTS, seed=3, temperature=1.0)
    stopped = written(llama, TOKENIZER, PROMPTS, seed=3, temperature=1.0, stop="3")
    assert stopped == [text.split("3")[0] for text in plain]
    assert stopped != plain
