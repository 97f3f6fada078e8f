"""The conformance table: every driver of the package, and the stand-in for its provider in the suite.

It has one row for each scheme of the registry, with the value of ``--provider``. ``{folder}`` is an empty folder, and
``{here}`` is the folder of this file.
"""

from __future__ import annotations

from collections.abc import Mapping

__all__ = ["ALSO", "TABLE", "WEBDAV_SERVERS"]

TABLE: Mapping[str, str] = {
    "azure": "local:azure",
    "box": "emulated:box?profile=ideal",
    "dropbox": "emulated:ideal",
    "dropbox+fast": "emulated:ideal?driver=dropbox+fast",
    "folder": "folder:{folder}/objects",
    "gcs": "local:gcs",
    "gdrive": "emulated:gdrive?profile=ideal",
    "mega": "emulated:mega?profile=ideal",
    "onedrive": "emulated:onedrive?profile=ideal",
    "opendal": "local:webdav?driver=opendal",
    "raid": "raid:{here}/raid.toml",
    "rclone": "local:webdav?driver=rclone",
    "s3": "local:s3",
    "s3+fast": "local:s3?driver=s3%2Bfast&ranges=0",
    "sftp": "local:sftp",
    "swift": "local:swift",
    "tahoe": "local:tahoe",
    "webdav": "local:webdav",
}

ALSO = (
    *(f"emulated:{api}?profile=ideal&driver=rclone" for api in ("box", "dropbox", "gdrive", "mega", "onedrive")),
    *(f"local:{name}?driver=rclone" for name in ("azure", "gcs", "s3", "sftp", "swift")),
    *(f"local:{name}?driver=opendal" for name in ("azure", "s3")),
)
"""Further services of the drivers for many services, whose endpoints must reach these, too."""

WEBDAV_SERVERS = ("apache", "lighttpd", "nginx", "rclone-webdav", "sabre")
"""Recipes of further WebDAV servers, which refuse the same request in different ways."""
