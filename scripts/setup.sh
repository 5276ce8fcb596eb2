#!/bin/sh
# Installs what the build needs and this machine lacks (Debian 12 or newer, as root or with sudo); what the tests need
# besides is in setup-tests.sh. Says nothing and changes nothing when everything is there.
set -eu

. "$(dirname "$0")/packages.sh"

need gcc gcc
need make make
need pkg-config pkg-config
need python3 python3
[ -e /usr/include/stdio.h ] || missing="$missing libc6-dev"
command -v cargo >/dev/null 2>&1 || [ -x "${CARGO_HOME:-${HOME:-/root}/.cargo}/bin/cargo" ] || {
    need curl curl
    [ -e /etc/ssl/certs/ca-certificates.crt ] || missing="$missing ca-certificates"
}
install_missing || exit 1

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
