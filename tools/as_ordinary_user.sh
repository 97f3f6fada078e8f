#!/bin/sh
# Run a command as a user without rights, in this folder, with a home of its own that is removed at the end:
#     sh tools/as_ordinary_user.sh COMMAND ARGUMENT...
# Nothing is run, and a line says why, for a caller who is not root, and where that user may not read this folder.
set -eu

nobody="setpriv --reuid=65534 --regid=65534 --clear-groups"

if [ "$(id -u)" -ne 0 ]; then
    echo "not run once more as an ordinary user: this user is one"
    exit
fi
again='import subprocess, sys; subprocess.run([sys.executable, "-c", "import pytest_cloudbench.commands.cli"], check=True)'
if ! $nobody "$1" -c "$again" 2>/dev/null; then
    echo "not run as an ordinary user: user 65534 cannot use $1 in $(pwd); both must be where others may read them"
    exit
fi
home=$(mktemp -d)
trap 'rm -rf "$home"' EXIT
chown 65534:65534 "$home"
# git refuses a folder that another user owns, bytecode cannot be written beside the sources, and where PATH names folders
# of root's, each missing program would be a permission that is missing.
env HOME="$home" TMPDIR="$home" HYPOTHESIS_STORAGE_DIRECTORY="$home/hypothesis" PYTHONDONTWRITEBYTECODE=1 \
    PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin \
    GIT_CONFIG_COUNT=1 GIT_CONFIG_KEY_0=safe.directory GIT_CONFIG_VALUE_0='*' \
    $nobody "$@"
