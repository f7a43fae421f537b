"""Runs, sweeps, tables."""
