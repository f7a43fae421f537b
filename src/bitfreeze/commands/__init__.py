"""The commands of `bitfreeze`, a class each: its fields are its options, and `do` carries it out."""
