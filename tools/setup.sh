#!/bin/sh
# Make VENV ready for `make iot` and `make test`, then write STAMP. Called by the Makefile:
#     sh tools/setup.sh VENV STAMP
# POSIX sh, because a fresh machine has nothing else. Only VENV is written, and the system package with
# Python's venv module is installed where it is missing and this user may.
set -eu

venv=$1
stamp=$2
recent='import sys; sys.exit(sys.version_info < (3, 11))'
started=$(date +%s)

# A user's settings for other environments must not leak into this one.
unset PYTHONHOME PYTHONPATH
export PIP_USER=0 PIP_NO_INPUT=1 PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_REQUIRE_VIRTUALENV=0

say() { printf 'set-up: %s\n' "$*"; }
die() {
    printf 'set-up: %s\n' "$*" >&2
    exit 1
}

is_recent() { "$1" -c "$recent" >/dev/null 2>&1; }
has_ensurepip() { "$1" -c 'import ensurepip, venv' >/dev/null 2>&1; }

# The first suitable interpreter that can make an environment on its own, else the first suitable one.
find_python() {
    if [ -n "${PYTHON:-}" ]; then
        is_recent "$PYTHON" || die "PYTHON=$PYTHON is not a Python 3.11 or later"
        python=$PYTHON
        return
    fi
    python=
    for name in python3 python3.14 python3.13 python3.12 python3.11 python /usr/bin/python3; do
        is_recent "$name" || continue
        if has_ensurepip "$name"; then
            python=$name
            return
        fi
        python=${python:-$name}
    done
    [ -n "$python" ] || die "no Python 3.11 or later found; install one (Debian 12: apt-get install python3)"
}

# Debian ships Python without ensurepip; one system package brings it.
need_ensurepip() {
    if has_ensurepip "$1"; then return; fi
    package=$("$1" -c 'import sys; print("python3.%d-venv" % sys.version_info[1])')
    mend="Python's venv module is missing; install it (Debian: apt-get install $package) and try again"
    command -v apt-get >/dev/null || die "$mend"
    if [ "$(id -u)" -eq 0 ]; then
        as_root=env
    elif command -v sudo >/dev/null && { [ -t 0 ] || sudo -n true 2>/dev/null; }; then
        as_root="sudo env"
    else
        die "$mend"
    fi
    say "installing the system package $package"
    $as_root apt-get update -qq >/dev/null || true
    $as_root DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "$package" >/dev/null || die "$mend"
    has_ensurepip "$1" || die "$mend"
}

# The scripts in an environment name its folder: one that came here by copy or move is made anew.
came_from_elsewhere() { [ -s "$stamp" ] && [ "$(cat "$stamp")" != "$(pwd)" ] && [ -e "$venv/.made-by-make" ]; }

if ! came_from_elsewhere && [ -x "$venv/bin/python" ] && is_recent "$venv/bin/python"; then
    python=$venv/bin/python
    say "using the environment in $venv"
else
    if [ -d "$venv" ] && [ ! -e "$venv/pyvenv.cfg" ] && [ -n "$(ls -A "$venv")" ]; then
        die "$venv exists and is not a virtual environment; move it away and try again"
    fi
    find_python
    need_ensurepip "$python"
    if [ -e "$venv/pyvenv.cfg" ]; then say "$venv is broken, moved, or older than Python 3.11: making it anew"; fi
    say "creating $venv with $("$python" --version)"
    "$python" -m venv --clear "$venv"
    : >"$venv/.made-by-make"
fi

if ! "$venv/bin/python" -m pip --version >/dev/null 2>&1; then
    need_ensurepip "$venv/bin/python"
    "$venv/bin/python" -m ensurepip >/dev/null
fi

say "installing the pinned dependencies (about a minute, once)"
# Wheels only: a source archive builds where an earlier build is cached and fails on a fresh machine.
pip_install() { "$venv/bin/python" -m pip install --quiet --only-binary :all: --constraint constraints.txt "$@"; }
# The build backend comes first and pinned too, so nothing is fetched unpinned for an isolated build.
if pip_install hatchling && pip_install --no-build-isolation --editable '.[dev]'; then
    PYTHONDONTWRITEBYTECODE='' "$venv/bin/python" tools/warm_bytecode.py >/dev/null || die "the package does not load"
    pwd >"$stamp"
    say "ready after $(($(date +%s) - started)) s"
else
    die "pip failed, see above; is the package index reachable?"
fi
