"""Studies: a file that names games x methods x seeds, run as ordinary pvn commands, each of them once."""
