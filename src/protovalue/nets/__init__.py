"""Networks: encoders that map observations to features, and the heads that map features to the tasks' values."""
