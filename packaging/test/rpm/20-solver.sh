# The solver installs all rpms into a separate root, refuses a provider alone and the removal of the core, and finds no changed file.
command -v dnf > /dev/null || { echo 'skipped: there is no dnf'; exit 1; }
# An rpm root on this system has no C library, so a stand-in provides the base packages of an rpm system.
cat "$PACKAGING"/test/rpm/stand-in.spec > stand-in.spec
for package in "$RPMS"/*/*.rpm; do rpm -qp --requires "$package" 2>/dev/null; done |
    grep -E '^(lib(c|m|dl|gcc_s|pthread|rt)\.|ld-linux|rtld|/bin/|/usr/bin/|perl)' | sort -u | sed 's/^/Provides: /' > provided
sed -i '/^@provides@$/{
r provided
d
}' stand-in.spec
rpmbuild -bb --define "_topdir $PWD/stand-in" stand-in.spec > said 2>&1 || { cat said; exit 1; }
install() { # a root, files
    root=$1; shift
    dnf --installroot="$root" --disablerepo='*' --setopt=install_weak_deps=False --releasever=1 --nogpgcheck -y install "$@"
}
fails install "$PWD/alone" "$PWD"/stand-in/RPMS/*/*.rpm "$RPMS"/*/tieline-provider-verbs-0*.rpm > said 2>&1
grep -qF 'nothing provides tieline-abi(1)(64bit) >= 0 needed by tieline-provider-verbs' said || { cat said; exit 1; }
install "$PWD/root" "$PWD"/stand-in/RPMS/*/*.rpm "$RPMS"/*/*.rpm > said 2>&1 || { cat said; exit 1; }
rpm --root "$PWD/root" -qa 2>/dev/null | grep -c tieline | grep -qx 9
rpm --root "$PWD/root" -V -a --nodeps 2>/dev/null > changed || { cat changed; exit 1; }
fails rpm --root "$PWD/root" -e libtieline > said 2>&1
grep -qF 'tieline-abi(1)(64bit) >= 0 is needed by' said || { cat said; exit 1; }
