# apt refuses a changed index, installs the packages from the signed repository alone, and two processes move a file. Each index of wheels names files.
rm -rf /etc/apt/sources.list.d
echo 'deb [signed-by=/release/tieline.asc] file:/release/apt stable main' > /etc/apt/sources.list
index=/release/apt/dists/stable/InRelease
cp $index kept
sed -i 's/^Suite: .*/Suite: changed/' $index
fails apt-get update > said 2>&1
cp kept $index
apt-get update > said 2>&1 || { cat said; exit 1; }
lacks '^[EW]: ' said
apt-get install --yes --no-install-recommends tieline libtieline-dev tieline-nixl > said 2>&1 || { cat said; exit 1; }
tieline run -n 2 -- tieline demo /etc/debian_version
for project in tieline tieline-nixl; do
    for processor in x86_64 aarch64; do grep -q "_$processor.whl#sha256=" /release/wheels/$project/index.html; done
done
(cd /release && sha256sum --check --quiet SHA256SUMS)
