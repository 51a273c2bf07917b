"""What a gate or a fixture asks for, as frozen and checked values: from markers' arguments and from ``gates:``.

A marker's arguments are bound by the metric's row in `pytest_lmgate.metrics.table` and by the protocols in
`pytest_lmgate.data.protocols`, so this package stands above both.
"""
