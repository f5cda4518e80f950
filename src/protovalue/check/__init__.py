"""`pvn check`: whether a device computes what the CPU does."""
