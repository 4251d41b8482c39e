"""What the first batches of a run teach: which tokens are supervised, and what can learn from them."""
