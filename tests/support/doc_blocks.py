"""Code blocks of a page of docs/, by the heading that they stand under."""

import re
from typing import Any

from support.checkout import ROOT

DOCS = ROOT / "docs"


def run_block(page: str, heading: str, replace: dict[str, str] | None = None) -> dict[str, Any]:
    """Run the code below a heading, with parts of it replaced; what it defined."""
    section = (DOCS / page).read_text().split(f"\n## {heading}\n", 1)[1].split("\n## ", 1)[0]
    code = "\n".join(re.findall(r"```python\n(.*?)```", section, re.DOTALL))
    for part, other in (replace or {}).items():
        assert part in code, f"{part} is not in the block"
        code = code.replace(part, other)
    names: dict[str, Any] = {"__name__": "block"}
    exec(compile(code, f"{page}: {heading}", "exec"), names)
    return names
