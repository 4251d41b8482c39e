"""One file for one mistake, in its specialist's room."""
