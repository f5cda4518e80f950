"""`pvn demo`: the whole story in one game, from an empty folder to a report."""
