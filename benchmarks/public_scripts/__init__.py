"""Which public scripts benchmarks/real_scripts.py runs, and the data it makes for them."""
