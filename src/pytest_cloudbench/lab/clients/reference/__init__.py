"""The reference client: a small sync client of our own whose capabilities are switched on and off one by one.

``settings`` gives each switch its meaning, ``adapter`` is the client that the registry knows, and ``__main__`` is what
its processes run.
"""

from __future__ import annotations
