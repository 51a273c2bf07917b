"""Texts that a model, a test or a file may hold, each of which some reader of reports would obey or choke on."""

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
    "long": "x" * 1_000_000,
}
