"""The five MinAtar games, compiled: one file for the rules of each, one for what they share, one for the loop.

The rules are those of the package `minatar` 1.0.15, also where they surprise; a test plays both with the same random
numbers and compares every state, reward and end. Importing this package is free; importing a game brings numba.
"""

# What a game does with a seed. It is part of what a run records, and a saved state is only good for the same version:
# change it with every change of the rules, of the random numbers or of the order in which they are drawn.
VERSION = "protovalue-1"
