"""One page of HTML that shows all runs: `bitfreeze report`."""

from .page import build_page

__all__ = ["build_page"]
