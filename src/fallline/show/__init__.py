"""How numbers, curves and text look to people: shared by everything that prints. Knows nothing of training."""
