"""For mkdocs: the tables of results/ become pages and files of the site, where links from the repository find them."""

from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

ROOT = Path(__file__).parent.parent


def on_files(files: Files, config: Any) -> Files:
    for page in sorted(path for path in (ROOT / "results").iterdir() if path.suffix in (".md", ".csv")):
        files.append(File.generated(config, f"results/{page.name}", abs_src_path=str(page)))
    return files


def on_page_markdown(markdown: str, page: Any, config: Any, files: Files) -> str:
    """Seen from the site, results/ lies within docs/ rather than beside it."""
    depth = page.file.src_uri.count("/")
    return markdown.replace("../" * (depth + 1) + "results/", "../" * depth + "results/")
