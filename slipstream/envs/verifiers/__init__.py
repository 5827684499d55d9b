"""Verifiers: rules that judge an answer, each with right and wrong examples of its own. Heavy work runs in other processes."""
