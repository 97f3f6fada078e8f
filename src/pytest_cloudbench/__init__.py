"""pytest-cloudbench: measure and gate cloud storage the way pytest tests code."""

from __future__ import annotations

__all__ = ["__version__"]

__version__ = "0.1.0"
