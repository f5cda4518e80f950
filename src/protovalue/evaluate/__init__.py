"""Judgement: episodes played by trained agents."""
