"""Start WsgiDAV on one folder, with a password that no other user can read. Run by its path.

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
    sys.path = [entry for entry in sys.path if Path(entry).resolve() != Path(__file__).resolve().parent]
    try:
        from cheroot import wsgi
        from wsgidav import fs_dav_provider
        from wsgidav.dav_error import HTTP_METHOD_NOT_ALLOWED, DAVError
        from wsgidav.wsgidav_app import WsgiDAVApp
    except ImportError as error:
        return f"{error.name} is not installed: run pip install wsgidav cheroot"

    class Folder(fs_dav_provider.FolderResource):  # type: ignore[misc]  # the library has no types
        """A folder that answers 405, as RFC 4918 says, and not 500 if two clients create it at the same moment."""

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
    server = wsgi.Server(
        ("127.0.0.1", int(port)), _fix_lock_answer(app), numthreads=_THREADS, request_queue_size=_THREADS
    )
    server.start()
    return ""


def _fix_lock_answer(app: Any) -> Any:
    """Add to WsgiDAV's answer to LOCK the missing content type and the token's brackets of RFC 4918, 10.5."""

    def serve_request(environ: Any, start_response: Any) -> Any:
        if environ["REQUEST_METHOD"] != "LOCK":
            return app(environ, start_response)

        def start_fixed_response(status: str, headers: list[tuple[str, str]], *more: Any) -> Any:
            fixed = dict(headers)
            if token := fixed.get("Lock-Token", "").strip("<>"):
                fixed |= {"Lock-Token": f"<{token}>", "Content-Type": "application/xml; charset=utf-8"}
            return start_response(status, list(fixed.items()), *more)

        return app(environ, start_fixed_response)

    return serve_request


if __name__ == "__main__":
    sys.exit(main())
