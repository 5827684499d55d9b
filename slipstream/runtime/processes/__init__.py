"""The roles as processes, and what starts and supervises them on one machine."""
