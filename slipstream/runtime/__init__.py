"""Where a run becomes threads, files and signals. The only room that catches what others let fall."""
