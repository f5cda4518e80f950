"""Encoders that others released as TensorFlow SavedModels, read without TensorFlow."""
