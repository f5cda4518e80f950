"""Experience on disk: the data set format, writing, sampling, collecting."""
