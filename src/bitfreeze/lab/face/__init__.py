"""The functions of `bitfreeze.lab`, one for each command. They import what they need when they are called."""
