"""Weather bulletins from a stochastic grammar whose entropy rate is known, so that the best possible perplexity is too.

`chance`: finite distributions and phrases made of them. `climate`: how the weather behaves. `record`: what a bulletin
is about. `wording`: how a record is put into words. `optimum`: the entropy in closed form. `corpus`: seeded documents.
`tokens`: the words that are the tokens. Records know nothing of words, so one record can be worded many times.
"""
