"""Runs untrusted programs in cells: processes with namespaces, limits and a scratch directory of their own. Nothing is left behind.

`sandbox` is the way in. It starts one launcher, a small interpreter that holds nothing of ours and forks a cell for each job.
"""
