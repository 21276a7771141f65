# The files of the rpms work: unpacked into a Debian root, every provider is found in /usr/lib64, and two processes exchange a file.
[ -d "$DEBIAN/usr" ] || { echo 'skipped: there is no Debian root to run it in'; exit 1; }
command -v rpm2cpio > /dev/null && command -v cpio > /dev/null || { echo 'skipped: there is no rpm2cpio or no cpio'; exit 1; }
for package in "$RPMS"/*/*.rpm; do
    rpm2cpio "$package" | (cd "$DEBIAN" && cpio --extract --make-directories --quiet --unconditional)
done
inside() { unshare --mount --pid --net --ipc --fork --kill-child --mount-proc="$DEBIAN/proc" chroot "$DEBIAN" bash -eu -c "$1"; }
inside 'mount -t tmpfs shm /dev/shm; tieline info --why --all' > said
for file in "$DEBIAN"/usr/lib64/tieline-1/providers/libtieline_*.so; do
    grep -qF "${file#"$DEBIAN"}" said || { cat said; echo "no $file"; exit 1; }
done
inside 'mount -t tmpfs shm /dev/shm; tieline run -n 2 -- tieline demo /etc/debian_version'
