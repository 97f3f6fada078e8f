"""Two sides measured in turns by one test: the agents' half and the controller's."""

from __future__ import annotations
