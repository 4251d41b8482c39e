"""What is learned: labels, padding, packing, adapters, policies. Specialist: fine-tuning."""
