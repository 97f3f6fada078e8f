"""A guard for listings that come page by page, for drivers whose library has none."""

from __future__ import annotations

from pytest_cloudbench.model import CloudError, ErrorKind


class PageTokens:
    """The tokens by which a listing has asked for its pages. Without it, a page that names itself is read for ever.

    Args:
        verb: the operation, for the error.
        path: the folder, for the error.
    """

    __slots__ = ("_path", "_used", "_verb")

    def __init__(self, verb: str, path: str) -> None:
        self._verb, self._path, self._used = verb, path, set[object]()

    def use(self, token: object) -> None:
        """Note the token of the next page, None or empty after the last one. Raises CloudError if it was used."""
        if token and token in self._used:
            detail = "the listing does not end: its service names the same page again"
            raise CloudError(ErrorKind.SERVER, self._verb, self._path, detail=detail)
        self._used.add(token)
