"""Protocols: the published conventions by which a text is cut into windows, one in each file, or one and its kin.

A file makes one `Convention` (`base`): the token streams that it reads, its windows, its average and its error formula.
`table` lists all of them by name; no other module asks for one by its name. Sources: docs/protocols.md.
"""
