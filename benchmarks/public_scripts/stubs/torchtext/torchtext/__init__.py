"""What the scripts need of the torchtext that is no longer installed, and sentences in its form."""
