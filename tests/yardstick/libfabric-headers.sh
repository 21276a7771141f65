#!/bin/sh
# Unpacks libfabric-dev of Debian trixie below the folder $1: ofi-libfabric-sys needs headers of libfabric 2.x, and Debian 12 has
# 1.17. apt verifies the package. apt keeps its lists in that folder, so the machine's own lists do not change.
set -eu
mkdir -p "$1"
cd "$1"
test ! -e root || exit 0
rm -rf apt unpacked
mkdir -p apt/state/lists/partial apt/cache/archives/partial unpacked
keys=/usr/share/keyrings/debian-archive-keyring.gpg
echo "deb [signed-by=$keys] http://deb.debian.org/debian trixie main" > apt/sources.list
cat > apt/apt.conf <<END
Dir::Etc::SourceList "$PWD/apt/sources.list";
Dir::Etc::SourceParts "/dev/null";
Dir::State "$PWD/apt/state";
Dir::Cache "$PWD/apt/cache";
APT::Sandbox::User "root";
Acquire::Retries "1";
Acquire::http::Timeout "20";
END
export APT_CONFIG="$PWD/apt/apt.conf"
apt-get update -qq --error-on=any
(cd apt && apt-get download -qq libfabric-dev)
dpkg-deb -x apt/libfabric-dev_*.deb unpacked
rm -rf apt
mv unpacked root
