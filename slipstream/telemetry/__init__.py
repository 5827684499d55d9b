"""What a run leaves behind and what a person sees of it: run directory, JSONL rows, rollouts, progress, report, trace.

Knows records and rows, never models or loops; every other room may write through it.
"""
