"""Pretraining an encoder: the methods, one file each, and the loop that they share. docs/adding-a-method.md."""
