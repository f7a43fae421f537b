"""The commands of `bitfreeze`, a class each: its fields are its options, and `do` calls `bitfreeze.lab` and prints.

Everything heavy is imported inside `do`, so that `bitfreeze --help` need not wait for it.
"""
