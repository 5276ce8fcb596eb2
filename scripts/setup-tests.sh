#!/bin/sh
# Installs what the tests need besides (setup.sh) and this machine lacks: programs that they run under farpage. Says
# nothing and changes nothing when everything is there.
set -eu

. "$(dirname "$0")/packages.sh"

need sqlite3 sqlite3
need stress-ng stress-ng
need faketime faketime
need groff groff-base
need lintian lintian
need tmux tmux
need node nodejs
need bwrap bubblewrap
need javac default-jdk-headless
need valgrind valgrind
need gdb gdb
need strace strace
# redis-tools holds the whole server binary (redis-check-rdb, which is redis-server when it is called so). The
# package redis-server would only add a service that starts by itself.
need redis-check-rdb redis-tools
need nbdkit nbdkit
need nbd-server nbd-server
need qemu-nbd qemu-utils
need musl-gcc musl-tools
need ip iproute2
need minisat minisat
need gunicorn gunicorn
need uwsgi uwsgi-core
[ -e /usr/lib/uwsgi/plugins/python3_plugin.so ] || missing="$missing uwsgi-plugin-python3"
[ -x /usr/bin/python3 ] || missing="$missing python3"
need_module numpy python3-numpy
need_module ensurepip python3-venv
need_module numexpr python3-numexpr
need_module pytest python3-pytest
install_missing || exit 1

# Servers whose packages would start a service. Without them their tests are skipped.
servers=${CARGO_TARGET_DIR:-$(dirname "$0")/../target}/servers
there() {
    for place in /usr "$servers/usr"; do
        for program in "$place"/sbin/"$1"* "$place"/lib/postgresql/*/bin/"$1"; do
            [ -x "$program" ] && return 0
        done
    done
    return 1
}
if command -v apt-get >/dev/null 2>&1; then
    for server in haproxy nginx php-fpm postgresql:postgres; do
        there "${server#*:}" || unpack "$servers" "${server%:*}" || true
    done
fi
