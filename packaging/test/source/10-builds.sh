# The source package builds in a root without a network, and its packages have the same files as those from a staged tree.
cd /scratch
dpkg-source --extract /packages/*.dsc tieline
cd tieline
ip route > routes
lacks . routes
dpkg-buildpackage --build=binary --no-sign > ../said 2>&1 || { tail -40 ../said; exit 1; }
cd ..
# Prints modes, owners and names. The compression of files and the targets of links depend on the release, so they are not
# compared.
listed() {
    for package in "$1"/*.deb; do
        case $package in *dbgsym*) continue ;; esac
        name=$(dpkg-deb -f "$package" Package)
        dpkg-deb -c "$package" | awk -v name="$name" '{ print name, $1, $2, $6, $7, $8 }'
        dpkg-deb -f "$package" Provides Architecture Multi-Arch | sed "s/^/$name /"
    done | sort
}
listed . > built
listed /debs > staged
[ -s staged ]
diff staged built
