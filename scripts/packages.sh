# For scripts that set something up: Debian packages, installed when they are missing. To be sourced; has no state but
# $missing, a list of words.

missing=

# need COMMAND PACKAGE: PACKAGE is installed when COMMAND is not found.
need() { command -v "$1" >/dev/null 2>&1 || missing="$missing $2"; }

# need_module MODULE PACKAGE: the same for a module of Debian's Python.
need_module() { /usr/bin/python3 -c "import $1" >/dev/null 2>&1 || missing="$missing $2"; }

# unpack DIR PACKAGE...: what apt would install of these is unpacked into DIR, and not installed: packages of servers
# start a service, make users, and change what is in /etc. Without root.
unpack() {
    unpack_to=$1
    shift
    echo "setup: unpacking $* into $unpack_to" >&2
    mkdir -p "$unpack_to"
    unpack_debs=$(mktemp -d)
    unpack_status=0
    for package in $(apt-get install -s --no-install-recommends "$@" 2>/dev/null |
        sed -n 's/^Inst \([^ ]*\).*/\1/p'); do
        (cd "$unpack_debs" && apt-get download "$package" >/dev/null 2>&1) || unpack_status=1
    done
    for deb in "$unpack_debs"/*.deb; do
        dpkg -x "$deb" "$unpack_to" || unpack_status=1
    done
    rm -rf "$unpack_debs"
    [ "$unpack_status" = 0 ] || echo "setup: could not unpack $*: is apt-get update wanted?" >&2
    return "$unpack_status"
}

# Installs what is missing; as root or with sudo. Says nothing when everything is there.
install_missing() {
    [ -n "$missing" ] || return 0
    if ! command -v apt-get >/dev/null 2>&1; then
        echo "setup: these Debian packages (or your system's names for them) are missing:$missing" >&2
        return 1
    fi
    sudo=
    if [ "$(id -u)" != 0 ]; then
        command -v sudo >/dev/null 2>&1 || {
            echo "setup: run as root: apt-get install --no-install-recommends$missing" >&2
            return 1
        }
        sudo=sudo
    fi
    echo "setup: installing$missing" >&2
    apt_log=$(mktemp)
    # shellcheck disable=SC2086  # $missing is a list of words, $sudo may be empty
    if { $sudo apt-get update && $sudo env DEBIAN_FRONTEND=noninteractive \
        apt-get install -y --no-install-recommends $missing; } >"$apt_log" 2>&1 </dev/null; then
        rm -f "$apt_log"
        return 0
    fi
    tail -n 30 "$apt_log" >&2
    rm -f "$apt_log"
    echo "setup: apt-get failed (see above)" >&2
    return 1
}
