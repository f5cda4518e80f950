"""The online phase: linear agents on frozen features, many seeds at once, and DQN end to end."""
