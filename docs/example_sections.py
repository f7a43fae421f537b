"""Lets the reference show an ``Example:`` of a docstring as code, which it does by itself only for ``Examples:``."""

import re
from typing import Any

import griffe


class ExampleSections(griffe.Extension):
    def on_instance(self, *, obj: griffe.Object, **_: Any) -> None:
        if obj.docstring is not None:
            obj.docstring.value = re.sub(r"^( *)Example:$", r"\1Examples:", obj.docstring.value, flags=re.MULTILINE)
