"""What a slot of the replay is."""

GOING_ON, TERMINATED, TRUNCATED, LAST = range(4)
"""A transition within an episode, its last one, or (LAST) no transition but the final observation of a truncated
episode, from which a learner bootstraps."""
