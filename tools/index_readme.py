"""Build hook for the page of this project in a package index: its README and the project's links.

Hatchling calls this at each build (``[tool.hatch.metadata.hooks.custom]`` in pyproject.toml). An index shows one file,
so a link to another file of the checkout would lead nowhere. With a ``repository`` such links become absolute. Without
one, which is the case until the project has an address, each becomes its text and the path of the file in the sdist.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from hatchling.metadata.plugin.interface import MetadataHookInterface

__all__ = ["ProjectMetadata", "index_readme", "project_urls"]

# Code first, because brackets in it are no links. The text of a link may be code, too. A link to a heading of the page
# stays: an index changes it as it changes the heading's anchor.
_CODE_OR_LINK = re.compile(
    r"^```.*?^```$|`[^`\n]+`|\[(?P<name>[^\]\n]+)\]\((?!https?://|mailto:|#)(?P<target>[^)\s]+)\)",
    re.MULTILINE | re.DOTALL,
)


class ProjectMetadata(MetadataHookInterface):
    """Sets the readme and the links of the distribution."""

    def update(self, metadata: dict[str, Any]) -> None:
        """Add what pyproject.toml declares as dynamic."""
        repository, version = self.config.get("repository", "").rstrip("/"), metadata["version"]
        text = (Path(self.root) / "README.md").read_text("utf-8")
        readme = index_readme(text, f"{repository}/blob/v{version}" if repository else "")
        metadata["readme"] = {"content-type": "text/markdown", "text": readme}
        metadata["urls"] = project_urls(repository)


def index_readme(text: str, base: str) -> str:
    """Return a README whose links to files lead to ``base``, or are no links if that is empty."""

    def replace(match: re.Match[str]) -> str:
        name, target = match["name"], match["target"]
        if not name:
            return match[0]
        return f"[{name}]({base}/{target})" if base else f"{name} (`{target.partition('#')[0]}`)"

    return _CODE_OR_LINK.sub(replace, text)


def project_urls(repository: str) -> Mapping[str, str]:
    """Return the links that an index shows beside the description. There are none without an address."""
    if not repository:
        return {}
    return {
        "Homepage": repository,
        "Documentation": f"{repository}/blob/main/docs/index.md",
        "Changelog": f"{repository}/blob/main/CHANGELOG.md",
        "Issues": f"{repository}/issues",
    }
