"""The parts of a finding that every table and page needs, be it of this session, of a stored run, or of one host."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol


class ReportedFinding(Protocol):
    """One experiment on one provider. See ``load.merging.entries.Finding``."""

    @property
    def nodeid(self) -> str: ...
    @property
    def provider(self) -> str: ...
    @property
    def info(self) -> Mapping[str, Any]: ...
