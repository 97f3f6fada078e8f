"""Starts WsgiDAV on one folder, with a password that no other user can read. Run by its path.

Its command line cannot express this configuration. Arguments: port and folder. The password is in the environment
variable ``SECRET``.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

_THREADS = 64


def main() -> str:
    """Serve until the process is ended, or return why that is impossible."""
    # A script's own folder comes first on its path, and this one holds a file with the name of a package.
    sys.path = [each for each in sys.path if Path(each).resolve() != Path(__file__).resolve().parent]
    try:
        from cheroot import wsgi
        from wsgidav import fs_dav_provider
        from wsgidav.dav_error import HTTP_METHOD_NOT_ALLOWED, DAVError
        from wsgidav.wsgidav_app import WsgiDAVApp
    except ImportError as error:
        return f"{error.name} is not installed: run pip install wsgidav cheroot"

    class Folder(fs_dav_provider.FolderResource):  # type: ignore[misc]  # the library has no types
        """WsgiDAV answers 500 to whoever makes a folder at the same moment as another: RFC 4918 says 405."""

        def create_collection(self, name: str) -> None:
            try:
                super().create_collection(name)
            except FileExistsError:
                raise DAVError(HTTP_METHOD_NOT_ALLOWED) from None

    fs_dav_provider.FolderResource = Folder
    port, folder = sys.argv[1:]
    app = WsgiDAVApp(
        {
            "provider_mapping": {"/": fs_dav_provider.FilesystemProvider(folder, fs_opts={"follow_symlinks": False})},
            "simple_dc": {"user_mapping": {"*": {"cloudbench": {"password": os.environ["SECRET"]}}}},
            "http_authenticator": {"domain_controller": None, "accept_basic": True, "accept_digest": False,
                                   "default_to_digest": False},
            "dir_browser": {"enable": False},
            "property_manager": True,
            "verbose": 1,
        }
    )  # fmt: skip
    server = wsgi.Server(("127.0.0.1", int(port)), _lockable(app), numthreads=_THREADS, request_queue_size=_THREADS)
    server.start()
    return ""


def _lockable(app: Any) -> Any:
    """Correct WsgiDAV's answer to LOCK: it has no content type, and its token lacks the brackets of RFC 4918, 10.5."""

    def answered(environ: Any, start_response: Any) -> Any:
        if environ["REQUEST_METHOD"] != "LOCK":
            return app(environ, start_response)

        def start(status: str, headers: list[tuple[str, str]], *more: Any) -> Any:
            right = dict(headers)
            if token := right.get("Lock-Token", "").strip("<>"):
                right |= {"Lock-Token": f"<{token}>", "Content-Type": "application/xml; charset=utf-8"}
            return start_response(status, list(right.items()), *more)

        return app(environ, start)

    return answered


if __name__ == "__main__":
    sys.exit(main())
