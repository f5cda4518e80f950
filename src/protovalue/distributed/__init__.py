"""Several processes that train one encoder: how they come together, share a batch, and end together."""
