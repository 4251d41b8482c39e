"""Where a run comes from: versions and flags, the code that ran, its options. Secrets stay out."""
