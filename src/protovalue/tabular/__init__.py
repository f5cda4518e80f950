"""The tabular theory of the paper, exact and small: worlds, successor measure, proto-value functions, the theorem.

Read in this order: `gridworlds`, `successor`, `subspaces`, `protovalues`, `claim`, `theorem`, `indicators`, `learned`.
`experiments`, `figures`, `page` and `command` are what `pvn tabular` adds.
"""
