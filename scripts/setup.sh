#!/bin/sh
# Installs what the build and the tests need and this machine lacks (Debian 12 or newer, as root or with sudo).
# Says nothing and changes nothing when everything is there.
set -eu

. "$(dirname "$0")/packages.sh"

need gcc gcc
need make make
need pkg-config pkg-config
need python3 python3
need sqlite3 sqlite3
need stress-ng stress-ng
need faketime faketime
need groff groff-base
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
need valgrind valgrind
need minisat minisat
need gunicorn gunicorn
need uwsgi uwsgi-core
[ -e /usr/lib/uwsgi/plugins/python3_plugin.so ] || missing="$missing uwsgi-plugin-python3"
[ -e /usr/include/stdio.h ] || missing="$missing libc6-dev"
[ -x /usr/bin/python3 ] || missing="$missing python3"
need_module numpy python3-numpy
need_module ensurepip python3-venv
need_module numexpr python3-numexpr
need_module pytest python3-pytest
command -v cargo >/dev/null 2>&1 || [ -x "${CARGO_HOME:-${HOME:-/root}/.cargo}/bin/cargo" ] || {
    need curl curl
    [ -e /etc/ssl/certs/ca-certificates.crt ] || missing="$missing ca-certificates"
}

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

# The workspace uses edition 2024; Debian's own rustc is older than that.
PATH="${CARGO_HOME:-${HOME:-/root}/.cargo}/bin:$PATH"
wanted=$(sed -n 's/^rust-version = "\(.*\)"/\1/p' "$(dirname "$0")/../Cargo.toml")
if ! command -v cargo >/dev/null 2>&1; then
    echo "setup: installing the Rust toolchain with rustup into ${CARGO_HOME:-${HOME:-/root}/.cargo}" >&2
    dir=$(mktemp -d)
    trap 'rm -rf "$dir"' EXIT
    url=https://static.rust-lang.org/rustup/dist/x86_64-unknown-linux-gnu/rustup-init
    if ! (cd "$dir" && curl -fsS --proto '=https' -O "$url" -O "$url.sha256" &&
        echo "$(cut -d' ' -f1 rustup-init.sha256)  rustup-init" | sha256sum -c --quiet &&
        chmod +x rustup-init &&
        ./rustup-init -y -q --no-modify-path --profile minimal -c rustfmt -c clippy); then
        echo "setup: rustup could not be installed; install Rust $wanted or newer from https://rustup.rs" >&2
        exit 1
    fi
fi
have=$(cargo --version | sed 's/cargo \([0-9.]*\).*/\1/')
if [ "$(printf '%s\n' "$wanted" "$have" | sort -V | head -n 1)" != "$wanted" ]; then
    echo "setup: cargo is $have, but this workspace needs Rust $wanted or newer: try 'rustup update stable'" >&2
    exit 1
fi
