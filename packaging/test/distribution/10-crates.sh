# The library and the tool build with the crates that Debian has as packages, and two processes move a file.
mkdir tree
tar --create --exclude=./target --exclude=./.git --directory /tree . | tar --extract --directory tree
cd tree
rm Cargo.lock
# Only the released packages and what they use remain. Debian has not all crates that the tests use.
perl -0pi -e '($all) = /\ndefault-members = \[(.*?)\]/s; s/\nmembers = \[.*?\]/\nmembers = [$all]/s; s/\ndefault-members = \[.*?\]//s' Cargo.toml
find . -name Cargo.toml -exec perl -0pi -e 's/^\[(?:target\.[^\n]*\.)?dev-dependencies\]\n(?:[^\[\n][^\n]*\n|\n)*//mg' {} +
printf '[source.crates-io]\nreplace-with = "debian"\n[source.debian]\ndirectory = "/usr/share/cargo/registry"\n[net]\noffline = true\n' > .cargo/config.toml
export CARGO_TARGET_DIR=$PWD/../built
cargo build -p tieline-capi -p tieline-tools > ../said 2>&1 || { tail -40 ../said; exit 1; }
TIELINE_PROVIDER_PATH=/nowhere ../built/debug/tieline run -n 2 -- ../built/debug/tieline demo /etc/debian_version
