"""Encoders and data sets in other people's libraries. Each module needs the library that it is named after."""
