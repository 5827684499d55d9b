"""Makes better data of data: leaks, duplicates, lengths, pass rates. Pure functions over texts and rows, and one pipeline (`curate`)."""
