"""Advice for libraries that only some parts need, and that an extra installs."""


def install(extra: str) -> str:
    """Command that installs an extra, to end an error message with."""
    return f"pip install -e '.[{extra}]' in the checkout of bitfreeze"
