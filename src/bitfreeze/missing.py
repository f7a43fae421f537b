"""Libraries that come with an extra, and only some parts need."""


def install(extra: str) -> str:
    """How to get them, for the end of a sentence that says what is missing."""
    return f"pip install -e '.[{extra}]' in the checkout of bitfreeze"
