"""What a preset reads in texts as models write them: the table says what a careful reader would, "" for no answer."""

from collections.abc import Callable

import pytest

from pytest_lmgate.settings.extraction import INVALID, Answer, extracted, read_extractions, words_of
from pytest_lmgate.settings.presets import READINGS, boxed, last_number, letter

LAST_NUMBERS = [
    ("x = - 5", "-5"), ("The change is - 5 degrees.", "-5"), ("$x = - 5$", "-5"), ("It is -$ 5", "-5"),
    ("= −\u00a05", "-5"), ("\\boxed{- 5}", "-5"), ("-USD 5", "-5"), ("‒5", "-5"), ("—5", ""), ("Answer:\n- 5", ""),
    ("- 12 apples\n- 5 pears", "5"), ("Answer - 5", "5"), ("x - 5", ""), ("-1 1/2", "-1 1/2"), ("$2 1/2", "2 1/2"),
    ("It takes 2 ½ hours", "2 1/2"), ("$-2\\frac{1}{3}$", "-2 1/3"), ("5 - 2 1/2", ""),
    ("The area is $25 \\pi$.", ""), ("25 π", ""), ("$3 i$", ""), ("The answer is 3 x", ""), ("\\sqrt 5", ""),
    ("half of 5", ""), ("5 squared", ""), ("$5 Million", ""), ("5 millions", ""), ("$5 bn", ""), ("about 5 K", ""),
    ("3 Dozen", ""), ("3천원", ""), ("5 tenths", ""), ("on 12 May", ""), ("the 5th of May", ""), ("May the 5th", ""),
    ("july 4", ""), ("12 Marbles", "12"), ("5 — 10 days", ""), ("5 per 100 people", ""),
    ("It takes from 5 to 10 days.", ""), ("5 versus 6", ""), ("The roots are 2, 3", ""), ("3 ⋅ 4", ""),
    ("It cannot be 5.", ""), ("5 rather than the 6", "5"), ("It is 12, but", ""), ("The total is 12 + ...", ""),
    ("12\\ 345", "12,345"), ("It is 10, because 5*2 is 10 and not 12.", "10"), ("It isn't 5.", ""),
    ("She pays 3 instead of $4.", "3"), ("It is not 5 but 6.", "6"), ("The change is −5.", "-5"),
    ("So x = −12", "-12"), ("It is .5", ".5"), ("= .25", ".25"), ("There were 500 cases of COVID-19.", "500"),
    ("The answer is 42.", "42"), ("The total is **$1,234.50**.", "1,234.50"), ("\\[ x = \\frac{3}{4} \\]", "3/4"),
    ("It costs 1½ dollars", "1 1/2"), ("It takes 5-10 days.", ""), ("between 5 and 10", ""), ("I'd say 5 or 6.", ""),
    ("It was on July 4, 1776.", ""), ("on 12 May 2023", ""), ("US$5", "5"), ("-$5", "-5"), ("5%", "5"), ("5kg", "5"),
    ("9.8 m/s^2", "9.8"), ("25 cm^2", "25"), ("$25\\text{ cm}^2$", "25"), ("It is 2 million.", ""), ("about 5k", ""),
    ("$1.5M", ""), ("3 dozen", ""), ("Natalia sold 48+24 = <<48+24=72>>72 clips", "72"), ("The sum is 3 + 4", ""),
    ("The total is 1,", ""), ("3 × 10^5", "3e5"), ("$3 \\times 10^{5}$", "3e5"), ("5²", ""), ("1e-3", "1e-3"),
    ("From 3 to -1,234.50.", "-1,234.50"), ("The answer is minus 5.", "-5"), ("negative 3", "-3"), ("10 minus 5", ""),
    ("Step 1: add.", ""), ("1. Add\n2. Done", ""), ("1. Paris", ""), ("٤٢", "42"), ("答えは４２です", "42"),
    ("The answer is ４２.", "42"), ("3,5", ""), ("1,00,000", "1,00,000"), ("1 234 567", ""),
    ("1\u202f234\u202f567", "1,234,567"), ("3 out of 4", ""), ("8/10", "8/10"), ("2 hours and 30 minutes", ""),
    ("2 hours 30 minutes", ""), ("5 feet 11 inches", ""), ("(5)", "5"), ("x = 3, 4", ""), ("the point (3, 4)", ""),
    ("42...", "42"), ("a 5-foot ladder", "5"), ("He finished 3rd", "3"), ("90°", "90"), ("$90^\\circ$", "90"),
    ("5\\%", "5"), ("\\$42", "42"), ("The answer is 72.The", "72"), ("x = -5 or x = 3", ""), ("5 - 3", ""),
    ("Answer:42", "42"), ("2x", ""), ("Temperature: -3°C", "-3"), ("1990s", "1990"), ("2**3", ""),
    ("0.333...", "0.333"), ("price: $1,000,000", "1,000,000"), ("(-3)", "-3"),
    ("The score went from 48 to 72.", "72"), ("He has 12 apples (see Figure 3).", "12"),
    ("Let's think step by step.\n\n1. Tom has 5 apples.\n2. He buys 3 more.\n3. So he has 5 + 3", ""),
    ("Therefore, $x = 3$ or $x = -2$.", ""), ("The roots are $x = 1, 2$.", ""),
    ("The area is \\(16\\) square units.", "16"), ("It takes him 1.5 hours, i.e. 90 minutes.", "90"),
    ("The temperature dropped by 7°C to −3 °C.", ""), ("So it's 50/50.", "50/50"), ("100%", "100"), ("3-2=1", "1"),
    ("I got 20 out of 20 right", ""), ("Answer: \\$1{,}234", "1,234"), ("15\\text{ minutes}", "15"),
    ("$15 \\text{ minutes}$", "15"), ("\\boxed{\\dfrac{7}{2}}", "7/2"), ("\\boxed{-\\frac{7}{2}}", "-7/2"),
    ("\\boxed{\\frac{x}{2}}", ""), ("\\boxed{\\text{12 apples}}", "12"), ("\\boxed{12\\text{ cm}}", "12"),
    ("42 is the answer", "42"), ("So 12 is our answer", "12"), ("7 must be the correct answer", "7"),
    ("12. So the answer", ""), ("\\boxed{(3, 4)}", ""),
    ("There are 365 days in a year, so he drinks 365 * 2 = 730 cups", "730"), ("共有42个苹果", "42"),
    ("答案是42。", "42"), ("3万", ""), ("She needs 3 hours and 20 minutes", ""), ("12 eggs = 1 dozen", ""),
    ("(12)", "12"), ("$12.$", "12"), ("$12\\$$", "12"), ("12,", ""), ("The answer is 12 because", ""),
    ("<answer>42</answer>", "42"), ("42</s>", "42"), ("12 divided by 4", ""), ("x plus 3", ""),
    ("the set {1, 2, 3}", ""), ("the point (-3, 5)", ""), ("5~10 days", ""),
]  # fmt: skip
LETTERS = [
    ("The wrong answer is (A).", ""), ("The answer cannot be A", ""), ("The answer is never B", ""),
    ("All of them but (C)", ""), ("The answer is (A) or maybe (B)", ""), ("Answer: A B", ""), ("(A)(C)", ""),
    ("The answer is A. No, B.", "B"), ("The answer is A... no wait, B", "B"), ("The answer is A? No.", ""),
    ("A: (B)", "B"), ("E.g. this", ""), ("The answer is D.C.", ""), ("The answer is vitamin C.", ""),
    ("The answer is John F. Kennedy.", ""), ("Person B is right", ""), ("(A) is too small, (B) is too large", ""),
    ("(A) doesn\u2019t fit.", ""), ("A is clearly the wrong answer", ""), ("I don't think the answer is B.", ""),
    ("I doubt that the answer is (B)", ""), ("Is the answer B?", ""), ("If the answer is B, then x is odd.", ""),
    ("The answer is Paris. (A) is Rome", ""), ("The answer is Paris\n\nA) Rome", ""),
    ("The correct answer is option (B): Paris", "B"), ("Option B: Paris", "B"), ("B. The answer is clear.", "B"),
    ("(C) This choice is best.", "C"), ("A: The answer is Paris.", ""), ("The answer is $B$", "B"),
    ("Option A and option B are both wrong, leaving C", "C"), ("I think B is correct.", "B"),
    ("This means B is right", "B"), ("Statement C is correct", "C"), ("B", "B"), ("B) Paris", "B"), ("B: Paris", "B"),
    ("**B**", "B"), ("The answer is B.", "B"), ("I choose C", "C"), ("I'd go with C.", "C"), ("(b)", "B"), ("b", "B"),
    ("b)", "B"), ("A car needs fuel, so the only option is (B)", "B"),
    ("A closer look rules out (A), hence (C)", "C"), ("The answer: A train is faster, so (D)", "D"),
    ("I think (C)", "C"), ("I think it is C.", "C"), ("A because it is", "A"), ("A is correct", "A"),
    ("A train is faster", ""), ("(A) is wrong, (B) is wrong, so (C)", "C"), ("(A) is wrong.", ""),
    ("The answer is (B) or (C)", ""), ("B or C", ""), ("Both (A) and (B)", ""), ("(B) and (C)", ""),
    ("The answer is A and B", ""), ("The answer is not A but B", "B"),
    ("The correct answer is not (A). It is (B).", "B"), ("The answer is A. Wait, no. It is C.", "C"),
    ("The answer is A. Wait, actually B is right.", "B"), ("(A) Rome (B) Paris. The answer is (", ""),
    ("The answer is Paris (B).", "B"), ("A) Paris\nB) London\nC) Rome", ""), ("option B", "B"),
    ("Therefore, the correct choice is: **D**", "D"), ("I'm torn between (A) and (B), but (B)", "B"),
    ("答案：B", "B"), ("答案是B", "B"), ("I", "I"), ("The answer is A because", "A"),
    ("Let me think. A is out. So D.", "D"), ("I would say B) Paris", "B"), ("A, B and C are wrong, so D", "D"),
    ("It's B.", "B"), ("A) True", "A"), ("Looking at the options, B is the only one that fits.", "B"),
    ("I believe the answer is C, although A is tempting.", "C"), ("The answer is therefore C", "C"),
    ("Neither (A) nor (B); (C).", "C"), ("Both A and C are correct, so the answer is D (all of the above).", "D"),
    ("The answer depends on (A) and (B)", ""), ("Ans: D", ""), ("The answer is A: Paris", "A"),
    ("B, because it is the capital", "B"), ("E. coli is a bacterium", ""), ("D</s>", "D"),
    ("<answer>B</answer>", "B"), ("'B'", "B"), ('"B"', "B"), ("“B”", "B"), ("B, C", ""), ("B & C", ""),
    ("The answer isn't (A).", ""), ("Let me reconsider. The answer is B, not C.", "B"), ("The answer is A. Wait", ""),
    ("The options are (A), (B), (C) and (D).", ""), ("A. Paris\nB. London", ""), ("The blood type is B", ""),
    ("The answer is blood type B", "B"), ("I think that A is the best choice.", "A"),
    ("The best choice would be D.", "D"),
]  # fmt: skip
BOXES = [
    ("It is \\boxed{5}, not \\boxed{6}.", "5"), ("not $\\boxed{5}$", ""), ("\\boxed{5} \\text{ or } \\boxed{6}", ""),
    ("\\[\\boxed{5}\\] Or maybe \\[\\boxed{6}\\]", ""), ("\\(\\boxed{5}\\) is wrong", ""),
    ("\\boxed{5}. No, that is wrong", ""), ("\\boxed{5}. Wait, that's not right", ""),
    ("\\boxed{5}. No other number fits", "5"), ("\\boxed{?}", ""), ("\\boxed{\\text{}}", ""),
    ("\\boxed{\\ldots}", ""), ("\\boxed{\\infty}", "\\infty"), ("\\boxed{-}", "-"), ("\\boxed{5} is wrong. {6}", ""),
    ("\\boxed{3}? No: \\boxed{5", ""), ("\\boxed{1} is wrong. \\boxed{a{b{c{d{e{f}}}}}}", "a{b{c{d{e{f}}}}}"),
    ("\\boxed{1} is wrong. \\boxed{\\left\\{ x \\right.}", "\\left\\{ x \\right."),
    ("so \\boxed{\\frac{1}{2}} and \\boxed{x^{2}}.", "x^{2}"), ("\\fbox{7}", ""), ("no box", ""),
    ("\\boxed{\\text{B}}", "\\text{B}"), ("\\boxed{5\\}", ""), ("\\boxed{5} or \\boxed{6}", ""),
    ("$\\boxed{5}$, or $\\boxed{6}$", ""),
]  # fmt: skip


@pytest.mark.parametrize(
    ("read", "table"), [(last_number, LAST_NUMBERS), (letter, LETTERS), (boxed, BOXES)], ids=["number", "letter", "box"]
)
def test_an_answer_is_what_a_reader_would_say(read: Callable[[str], str], table: list[tuple[str, str]]) -> None:
    assert [(text, read(text), answer) for text, answer in table if read(text) != answer] == []


@pytest.mark.parametrize("preset", READINGS)
def test_a_text_without_an_answer_is_invalid_and_the_signature_names_the_preset(preset: str) -> None:
    (steps,) = read_extractions(preset).values()
    assert extracted(steps, ["no idea"], [{}], name="d") == [Answer(INVALID, False)]
    assert words_of(steps) == preset


def test_thoughts_are_not_read() -> None:
    texts = ["<think>So 3.", "<think>So 3.</think>4", "So 3.</think>", "4</think>5<think>6", "7"]
    (steps,) = read_extractions("last-number").values()
    found = extracted(steps, texts, [{}] * len(texts), name="d")
    assert [answer.text for answer in found] == [INVALID, "4", INVALID, INVALID, "7"]


@pytest.mark.parametrize(
    "piece", ["1,", "a", "{", "*", " ", "A. ", "(A) ", "1 + ", "\\boxed{", "x_", "5a", "-", "\n1. a"]
)
@pytest.mark.parametrize("preset", READINGS)
def test_no_text_takes_long_to_read(preset: str, piece: str) -> None:
    READINGS[preset](piece * 4_000 + "!")
