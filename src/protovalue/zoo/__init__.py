"""Encoders that come with the package, by name: zoo:minatar/space_invaders/pvn."""
