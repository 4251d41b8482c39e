"""Only imported."""

DropBlock2D = None
