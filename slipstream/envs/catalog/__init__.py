"""The catalogue of tasks by name: what the fields of a set's rows mean, how they are asked, and by whom answers are judged.

`find_entry` is the way in; a new set is one entry in `maths` or `programs`.
"""
