"""Texts that a model, a test or a file may hold, each of which some reader of reports would obey or choke on."""

from msgspec.structs import replace

from pytest_lmgate.judge.attribution import Attribution, ChangeHistogram, Passage, TagChange, TokenChange
from pytest_lmgate.judge.result import PastRun, Results, Run, Verdict, WorstRow
from tests.judge.records import results_of

HOSTILE = {
    "script": "</script><script>document.title='obeyed'</script><img src=x onerror=\"document.title='obeyed'\">",
    "details": "</details></code></pre>--><h1>obeyed</h1>",
    "command": "a\n::error::obeyed\r\n::set-env name=X::obeyed\n##[error]obeyed",
    "escapes": "100%0A::error::obeyed%25%2C,:%3A",
    "pipes": "a|b\\|c\\\\|d||",
    "backticks": "`` ``` ```` `obeyed` ````````",
    "markdown": "**obeyed** @everyone #1 [x](http://example.org) ![x](http://example.org/x.png) <!-- $x$ :smile:",
    "ansi": "\x1b[31mred\x1b[0m\x07\x00\x9b31m",
    "direction": "a\u202eobeyed\u2066b\u2028c\u2029d",
    "surrogate": "half \ud800 of a pair \udfff",
    "quotes": 'it\'s "quoted" \\ and {braced} {{ 7 * 7 }} {% raw %} #2',
    "blank": " ",
    "empty": "",
    "long": "x" * 200_000,  # more than any report may have
}


def hostile_where(text: str) -> Attribution:
    token = TokenChange(text[-60:], text[:40], text[:30], 3.0, 1.0)
    return Attribution(
        passages=(Passage("row 1", 3, 2.0, text[:120], (token,)),),
        tags=(TagChange(text, text, 3, 1.0, 1.0, 0.5, 0.25, 0.75), TagChange(text, "b", 3, problem=text)),
        notes=(text,),
    )


def hostile_results(failed: Verdict, compared: Verdict, text: str) -> Results:
    """Return results with a text wherever one can stand."""
    assert compared.comparison is not None
    test = f"t.py::test_x[{text}]"
    worst = (WorstRow(0, 0.5, text, text, text),)
    named = {"id": f"{test}::ppl_max[{text}]", "test": test, "model": text, "dataset": text, "signature": text}
    one = replace(failed, **named, worst=worst, where=hostile_where(text), file=f"/repo/{text}", line=3)
    found = replace(compared.comparison, against=text, notes=(f"note {text}",))
    other = replace(compared, id=f"{test}::b", test=test, comparison=found)
    spread = ChangeHistogram("rows", text, 1, 1, 1, 0.0, -1.0, 1.0, 1.0, 1.0, -1.0, 1.0, (1, 1))
    runs = tuple(PastRun(text, text, text, "fail", value, (1.0, 3.0), 2.0, "worse", text) for value in (1.5, 2.5))
    run = Run(*[text or "none"] * 4, "2026-03-31", *[text or "none"] * 3)
    verdicts = [replace(one, spread=spread, history=runs), replace(other, history=runs)]
    return results_of(verdicts, problems=(text,), remarks=(text,), run=run)
