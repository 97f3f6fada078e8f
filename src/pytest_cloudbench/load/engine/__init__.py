"""An agent's half of a run, which turns due times into operations and logs their measured times."""

from __future__ import annotations
