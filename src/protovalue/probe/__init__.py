"""What can be read linearly from frozen features, without any reinforcement learning: `pvn probe`."""
