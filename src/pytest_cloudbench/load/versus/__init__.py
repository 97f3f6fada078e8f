"""The comparison of two sides by one test: the agents' half and the controller's."""

from __future__ import annotations
