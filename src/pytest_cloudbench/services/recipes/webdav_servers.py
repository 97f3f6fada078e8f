"""Start a web server with its own WebDAV module on one folder. Run by its path, with NAME, PORT and FOLDER.

What may live here: the configuration of each server, with the settings that Debian ships, and its start. FOLDER
holds ``files``, which the server serves. The password is in the environment variable ``SECRET``.
"""

from __future__ import annotations

import base64
import hashlib
import os
import shutil
import sys
from pathlib import Path

_NOBODY = 65534

_APACHE = """
ServerName localhost
Listen 127.0.0.1:{port}
PidFile {folder}/run/pid
ErrorLog /dev/stderr
Mutex file:{folder}/run
{as_nobody}
LoadModule mpm_event_module {modules}/mod_mpm_event.so
LoadModule authn_core_module {modules}/mod_authn_core.so
LoadModule authn_file_module {modules}/mod_authn_file.so
LoadModule authz_core_module {modules}/mod_authz_core.so
LoadModule authz_user_module {modules}/mod_authz_user.so
LoadModule auth_basic_module {modules}/mod_auth_basic.so
LoadModule dir_module {modules}/mod_dir.so
LoadModule autoindex_module {modules}/mod_autoindex.so
LoadModule dav_module {modules}/mod_dav.so
LoadModule dav_fs_module {modules}/mod_dav_fs.so
DavLockDB {folder}/run/locks
DocumentRoot {folder}/files
<Directory {folder}/files>
Dav On
AuthType Basic
AuthName files
AuthUserFile {folder}/run/users
Require valid-user
</Directory>
"""

_NGINX = """
load_module {modules}/ngx_http_dav_ext_module.so;
daemon off;
{as_root}
pid {folder}/run/pid;
error_log /dev/stderr;
worker_processes 2;
events {{ worker_connections 1024; }}
http {{
  access_log off;
  client_max_body_size 0;
  client_body_temp_path {folder}/run/body;
  proxy_temp_path {folder}/run/proxy;
  fastcgi_temp_path {folder}/run/fastcgi;
  uwsgi_temp_path {folder}/run/uwsgi;
  scgi_temp_path {folder}/run/scgi;
  dav_ext_lock_zone zone=locks:1m;
  server {{
    listen 127.0.0.1:{port};
    root {folder}/files;
    auth_basic files;
    auth_basic_user_file {folder}/run/users;
    dav_methods PUT DELETE MKCOL COPY MOVE;
    dav_ext_methods PROPFIND OPTIONS LOCK UNLOCK;
    dav_ext_lock zone=locks;
  }}
}}
"""

_LIGHTTPD = """
server.bind = "127.0.0.1"
server.port = {port}
server.document-root = "{folder}/files"
server.stat-cache-engine = "disable"
server.upload-dirs = ( "{folder}/run" )
server.modules = ( "mod_auth", "mod_authn_file", "mod_webdav" )
auth.backend = "htpasswd"
auth.backend.htpasswd.userfile = "{folder}/run/users"
auth.require = ( "" => ( "method" => "basic", "realm" => "files", "require" => "valid-user" ) )
webdav.activate = "enable"
webdav.sqlite-db-name = "{folder}/run/locks"
"""

_SERVERS = {
    "apache2": (_APACHE, "lib/apache2/modules", ("-DFOREGROUND", "-f", "{config}")),
    "nginx": (_NGINX, "lib/nginx/modules", ("-e", "/dev/stderr", "-c", "{config}")),
    "lighttpd": (_LIGHTTPD, "lib/lighttpd", ("-D", "-m", "{modules}", "-f", "{config}")),
}


def main(name: str, port: str, folder: str) -> str:
    """Replace this process by the server, or return why that is impossible."""
    program = shutil.which(name)
    if program is None:
        return f"{name} is not installed"
    template, modules_path, arguments = _SERVERS[name]
    is_root = os.geteuid() == 0
    values = {
        "port": port,
        "folder": folder,
        "modules": str(Path(program).resolve().parents[1] / modules_path),
        "config": f"{folder}/run/config",
        "as_nobody": f"User #{_NOBODY}\nGroup #{_NOBODY}" if is_root else "",
        "as_root": "user root root;" if is_root else "",
    }
    digest = base64.b64encode(hashlib.sha1(os.environ["SECRET"].encode()).digest()).decode()
    run = Path(folder, "run")
    run.mkdir()
    (run / "config").write_text(template.format(**values), "utf-8")
    (run / "users").write_text(f"cloudbench:{{SHA}}{digest}\n", "utf-8")
    if is_root and "{as_nobody}" in template:  # Apache refuses to serve as root
        for path in (folder, run, run / "users", f"{folder}/files"):
            os.chown(path, _NOBODY, _NOBODY)
    os.execv(program, [program, *(argument.format(**values) for argument in arguments)])


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
