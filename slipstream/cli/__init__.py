"""The command line: one file a command; `main.py` ties them together and turns errors into exit codes."""
