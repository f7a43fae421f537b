"""Settings of the site, for Sphinx. `docs/build.py` builds it."""

import re
from textwrap import indent
from typing import Any

import bitfreeze

project = "bitfreeze"
version = release = bitfreeze.__version__
html_title = f"bitfreeze {release}"

# The navigation: pages below each page. The first row has at most seven.
NAVIGATION = {
    "index": (
        "tutorials/finetune", "tutorials/own_loop", "tutorials/laboratory", "how-to/choosing", "reproduction",
        "explanation/index", "reference/index",
    ),
    "tutorials/own_loop": (
        "how-to/using_it", "how-to/integrations", "how-to/precision", "how-to/scale", "how-to/devices",
    ),
    "tutorials/laboratory": (
        "tutorials/own_method", "tutorials/own_stream", "tutorials/own_environments", "how-to/scenarios", "how-to/data",
        "how-to/figures",
    ),
    "how-to/choosing": ("methods/directions", "methods/blip", "methods/*"),
    "reproduction": ("explanation/benchmarks", "explanation/reinforcement", "explanation/differences"),
    "explanation/index": ("explanation/pictures", "explanation/reliability", "explanation/house"),
    "reference/index": ("reference/library", "reference/laboratory", "reference/results"),
    "reference/results": ("results/*",),
}  # fmt: skip

extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]
html_theme = "furo"
html_static_path = ["static"]
html_css_files = ["site.css"]
html_js_files = ["site.js"]
html_copy_source = False
html_show_sphinx = False
html_show_copyright = False
highlight_language = "text"
myst_heading_anchors = 4
nitpicky = False

default_role = "literal"
autodoc_member_order = "bysource"
autodoc_typehints_format = "short"
autodoc_mock_imports = ["avalanche", "lightning", "transformers", "peft", "stable_baselines3"]
autodoc_default_options = {"members": True}
python_maximum_signature_line_length = 80
python_use_unqualified_type_names = True
napoleon_numpy_docstring = False
napoleon_use_ivar = True
add_module_names = False


def with_navigation(app: Any, page: str, text: list[str]) -> None:
    """Adds the pages below a page, which GitHub would show as code, and shows titles of code blocks."""
    text[0] = re.sub(r'^```(\w+) title="(.*?)"$', r"```{code-block} \1\n:caption: \2", text[0], flags=re.MULTILINE)
    if below := NAVIGATION.get(page):
        pages = "\n".join(f"/{name}" for name in below)
        text[0] += f"\n\n```{{toctree}}\n:hidden:\n:glob:\n\n{pages}\n```\n"


def with_code(app: Any, kind: str, name: str, value: Any, options: Any, lines: list[str]) -> None:
    """Turns the fenced code of a docstring into what Sphinx reads."""
    fenced = re.compile(r"^( *)```(\w+)\n(.*?)^ *```$", re.DOTALL | re.MULTILINE)
    text = fenced.sub(lambda m: f"{m[1]}.. code-block:: {m[2]}\n\n{indent(m[3], '    ')}", "\n".join(lines))
    lines[:] = text.split("\n")
    if kind in ("attribute", "property"):
        lines.insert(0, "")  # else napoleon takes what stands before a colon for a type


def with_lists(app: Any, page: str, template: str, context: dict[str, Any], tree: Any) -> None:
    """Makes the parameters of a long signature a list. Sphinx writes definitions without terms."""

    def listed(match: re.Match[str]) -> str:
        return f'<ul class="parameters">{match[1].replace("<dd>", "<li>").replace("</dd>", "</li>")}</ul>'

    context["body"] = re.sub(
        r"<dl>\s*((?:<dd>(?:(?!<dl|</dl).)*?</dd>\s*)+)</dl>", listed, context.get("body", ""), flags=re.DOTALL
    )


def setup(app: Any) -> None:
    app.connect("autodoc-process-docstring", with_code, priority=400)  # before napoleon
    app.connect("html-page-context", with_lists)
    app.connect("source-read", with_navigation)
