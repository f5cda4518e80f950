"""Indicators: m binary functions of an observation, each the reward of one task; random networks and hashes.

`base.Indicator` is the interface, `registry.make_indicator` builds one by name, `threshold` tunes it to a proportion.
`docs/adding-an-indicator.md` shows how to add one.
"""
