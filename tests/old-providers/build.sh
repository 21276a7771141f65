#!/bin/sh
# Builds the providers of a version anew, with today's header and crate, into the folder $1: for the next version's folder.
# What was committed for an earlier version is never built again: that it still loads is the point.
set -eu
root=$(cd "$(dirname "$0")/../.." && pwd)
into=$1
mkdir -p "$into/loopback-rust"
cp "$root/conformance/subjects/rings.c" "$root/docs/examples/loopback.c" "$root/include/tieline_provider.h" "$into"
cp "$root"/docs/examples/loopback-rust/src/*.rs "$into/loopback-rust"
for name in rings loopback; do
    cc -std=c11 -Wall -Wextra -Werror -O2 -s -shared -fPIC -I "$into" -o "$into/libtieline_$name.so" "$into/$name.c"
done
cargo build --manifest-path "$root/Cargo.toml" --release --quiet -p tieline-example-loopback
strip -o "$into/libtieline_loopback_rust.so" "${CARGO_TARGET_DIR:-$root/target}/release/libloopback_rust.so"
