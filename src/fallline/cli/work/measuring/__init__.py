"""One module for each verb of `fallline measure`: what it does."""
