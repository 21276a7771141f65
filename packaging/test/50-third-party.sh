# A third-party provider in C is written, built, checked, packaged, installed and found, using only files of the packages.
cd /scratch
tieline new-provider vendor-net --lang c
cd tieline-provider-vendor-net
make deb > said 2>&1 || { cat said; exit 1; }
cd ..
package=$(ls tieline-provider-vendor-net_0.1.0-1_*.deb)
dpkg-deb -f "$package" Depends | grep -q 'tieline-abi-1 (>= 0)'
dpkg-deb -f "$package" Provides | grep -q 'tieline-provider-1-vendor-net (= 0.1.0)'
dpkg -i "$package"
tieline info --why --all > said
grep -q 'vendor-net *found' said
grep -q '/tieline-1/providers/libtieline_vendor_net.so' said
tieline config vendor-net | grep -q TIELINE_VENDOR_NET_ROOM
TIELINE_PROVIDERS=vendor-net TIELINE_VENDOR_NET_ROOM=65 tieline config vendor_net_room | grep -q 65
gzip -dc /usr/share/man/man7/tieline-provider-vendor-net.7.gz 2>/dev/null | grep -q TIELINE_VENDOR_NET_ROOM ||
    grep -q path-exclude /etc/dpkg/dpkg.cfg.d/* # a root without pages
