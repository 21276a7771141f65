#!/bin/sh
# Builds the providers of a new version, with the present header and crate, into the folder $1.
# Committed files of an earlier version are never built again: the tests check that the old binaries still load.
#
# The Rust provider is built as a vendor would build it: optimised, stripped, LTO, unwinding panics, which the provider's entry
# functions catch. TIELINE_RUST names a toolchain, such as 1.85. The last lines print the versions of the compilers, and the
# newest glibc symbol version of each file.
set -eu
root=$(cd "$(dirname "$0")/../.." && pwd)
into=$1
mkdir -p "$into/loopback-rust"
cp "$root/conformance/subjects/rings.c" "$root/docs/examples/loopback.c" "$root/include/tieline_provider.h" "$into"
cp "$root"/docs/examples/loopback-rust/src/*.rs "$into/loopback-rust"
for name in rings loopback; do
    cc -std=c11 -Wall -Wextra -Werror -O2 -s -shared -fPIC -I "$into" -o "$into/libtieline_$name.so" "$into/$name.c"
done
rust=${TIELINE_RUST:+"+$TIELINE_RUST"}
export CARGO_PROFILE_RELEASE_LTO=fat CARGO_PROFILE_RELEASE_CODEGEN_UNITS=1 CARGO_PROFILE_RELEASE_OPT_LEVEL=3
export CARGO_PROFILE_RELEASE_STRIP=symbols CARGO_PROFILE_RELEASE_PANIC=unwind
# The remapping keeps the paths of the building machine out of the files.
RUSTFLAGS="--remap-path-prefix=$root=."
for sources in "${CARGO_HOME:-$HOME/.cargo}"/registry/src/*; do
    RUSTFLAGS="$RUSTFLAGS --remap-path-prefix=$sources=crates"
done
export RUSTFLAGS
# Rust's standard library uses symbols whose version has changed in glibc 2.34. A vendor would build on an older system, which
# the following code simulates.
older=$(mktemp -d)
trap 'rm -rf "$older"' EXIT
moved="pthread_key_create pthread_key_delete pthread_setspecific"
cat > "$older/older.c" <<'END'
#define OLDER(name, parameters, ...) \
    __asm__(".symver before_" #name ", " #name "@GLIBC_2.2.5"); \
    int before_##name parameters; \
    int __wrap_##name parameters { return before_##name(__VA_ARGS__); }
OLDER(pthread_key_create, (unsigned *key, void (*end)(void *)), key, end)
OLDER(pthread_key_delete, (unsigned key), key)
OLDER(pthread_setspecific, (unsigned key, const void *value), key, value)
END
cc -std=c11 -Wall -Wextra -Werror -O2 -fPIC -c -o "$older/older.o" "$older/older.c"
arguments="-C link-arg=$older/older.o"
for name in $moved; do
    arguments="$arguments -C link-arg=-Wl,--wrap=$name"
done
# shellcheck disable=SC2086
cargo $rust rustc --manifest-path "$root/Cargo.toml" --release --quiet -p tieline-example-loopback -- $arguments
install -m 755 "${CARGO_TARGET_DIR:-$root/target}/release/libloopback_rust.so" "$into/libtieline_loopback_rust.so"
cc --version | sed -n 1p
# shellcheck disable=SC2086
rustc $rust --version
for file in "$into"/*.so; do
    newest=$(readelf -V "$file" | grep -o 'GLIBC_[0-9.]*' | sort -uV | tail -n 1)
    echo "$(basename "$file") $(wc -c < "$file") bytes, $newest"
done
