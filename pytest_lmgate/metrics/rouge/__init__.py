"""ROUGE (Lin 2004) from texts: N, L, Lsum, W, S and SU, with the counts that each row's score came from.

The floors, from below: `tokenizers`, `porter` and `reading` make tokens; `ngrams`, `skip_bigrams`, `subsequences` and
`weighted` count what two token lists share; `lin2004` and `rouge155` say what is counted and how counts become scores;
`settings` holds a validated choice of all that and its signature; `rows` runs it over a corpus.

No mean is taken before it is asked for: resampling and pairing work on the rows.
"""

__all__ = ["RougeMean", "RougeRows", "RougeSettings", "rouge_rows"]

from pytest_lmgate.metrics.rouge.rows import RougeMean, RougeRows, rouge_rows
from pytest_lmgate.metrics.rouge.settings import RougeSettings
