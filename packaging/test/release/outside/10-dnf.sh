# dnf installs the rpms from the repository with the signed index into a Debian root, and two processes move a file there.
command -v dnf > /dev/null || { echo 'skipped: there is no dnf'; exit 1; }
[ -d "$DEBIAN/usr" ] || { echo 'skipped: there is no Debian root to install into'; exit 1; }
# The root has the C library but no rpm says so: a stand-in provides the base packages of an rpm system.
cat "$PACKAGING"/test/rpm/stand-in.spec > stand-in.spec
for package in "$RELEASE"/yum/*.rpm; do rpm -qp --requires "$package" 2>/dev/null; done |
    grep -E '^(lib(c|m|dl|gcc_s|pthread|rt)\.|ld-linux|rtld|/bin/|/usr/bin/|perl)' | sort -u | sed 's/^/Provides: /' > provided
sed -i '/^@provides@$/{
r provided
d
}' stand-in.spec
rpmbuild -bb --define "_topdir $PWD/stand-in" stand-in.spec > said 2>&1 || { cat said; exit 1; }
install() {
    dnf --installroot="$DEBIAN" --disablerepo='*' --repofrompath="tieline,file://$1" --enablerepo=tieline \
        --setopt=tieline.repo_gpgcheck=1 --setopt=tieline.gpgkey="file://$RELEASE/tieline.asc" --setopt=tieline.gpgcheck=0 \
        --setopt=install_weak_deps=False --setopt=cachedir="$2" --releasever=1 -y install "$PWD"/stand-in/RPMS/*/*.rpm tieline
}
cp -r "$RELEASE/yum" changed
echo '<!-- changed -->' >> changed/repodata/repomd.xml
fails install "$PWD/changed" "$PWD/cache-of-changed" > said 2>&1
install "$RELEASE/yum" "$PWD/cache" > said 2>&1 || { cat said; exit 1; }
inside() { unshare --mount --pid --net --ipc --fork --kill-child --mount-proc="$DEBIAN/proc" chroot "$DEBIAN" bash -eu -c "$1"; }
inside 'mount -t tmpfs shm /dev/shm; tieline run -n 2 -- tieline demo /etc/debian_version'
