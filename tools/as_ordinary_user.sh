#!/bin/sh
# Run a command as a user without rights, in this folder, with a home of its own that is removed at the end:
#     sh tools/as_ordinary_user.sh COMMAND ARGUMENT...
# The caller runs it, and a line says why, if the caller is not root or that user may not read this folder.
set -eu

nobody="setpriv --reuid=65534 --regid=65534 --clear-groups"

if [ "$(id -u)" -ne 0 ]; then
    echo "run by this user, who is an ordinary one"
    exec "$@"
fi
imports='import subprocess, sys; subprocess.run([sys.executable, "-c", "import pytest_cloudbench.commands.cli"], check=True)'
if ! $nobody "$1" -c "$imports" 2>/dev/null; then
    echo "run by root: user 65534 cannot use $1 in $(pwd); both must be where others may read them"
    exec "$@"
fi
home=$(mktemp -d)
trap 'rm -rf "$home"' EXIT
chown 65534:65534 "$home"
# git refuses a folder that another user owns, bytecode cannot be written beside the sources, and where PATH names folders
# of root's, each missing program would be a permission that is missing.
env HOME="$home" TMPDIR="$home" HYPOTHESIS_STORAGE_DIRECTORY="$home/hypothesis" PYTHONPYCACHEPREFIX="$home/bytecode" \
    PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin \
    GIT_CONFIG_COUNT=1 GIT_CONFIG_KEY_0=safe.directory GIT_CONFIG_VALUE_0='*' \
    $nobody "$@"
