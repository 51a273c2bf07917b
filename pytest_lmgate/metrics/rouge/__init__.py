"""ROUGE (Lin 2004) from texts: N, L, Lsum, W, S and SU, with the counts that each row's score came from.

The floors, from below: `tokens` and `porter` make tokens; `ngrams` and `subsequences` count what two token lists share;
`conventions` say what is counted and how counts become scores; `settings` holds a validated choice of all that with its
signature, and runs it over a corpus.

No mean is taken before it is asked for: resampling and pairing work on the rows.
"""
