"""What is learned: labels, padding, packing, adapters, samples."""
