"""Looking at the sets of states whose visits a proto-value network predicts."""
