"""Encoders for others: with their results and a picture, to the Hub (`pvn push`) or into a zoo (`pvn zoo make`)."""
