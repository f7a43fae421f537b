"""Where this checkout lies."""

from pathlib import Path

ROOT = Path(__file__).parents[2]
