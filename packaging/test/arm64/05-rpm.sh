# The rpms for this processor install without debug information, every provider is found in /usr/lib64, and two processes move a file. No file remains.
[ -d /rpms ] || { echo 'skipped: the rpms for arm64 were not made'; exit 1; }
# Packages of an rpm system own these.
mkdir -p /usr/lib64/pkgconfig /usr/share/fish/vendor_completions.d /usr/share/zsh/site-functions
files > before
# This root's packages are Debian's, so rpm knows none of those that the rpms need.
mkdir rpms
find /rpms -name '*.rpm' ! -name '*-debug*' -exec cp -t rpms '{}' +
[ "$(ls rpms | wc -l)" = 9 ]
rpm --nodeps -i rpms/*.rpm > said 2>&1 || { cat said; exit 1; }
for file in /usr/lib64/libtieline.so.0.* /usr/lib64/tieline-1/providers/*.so /usr/lib64/libfabric-tieline/*.so; do
    [ "$(stat -c %a "$file")" = 644 ]
    readelf --sections --wide "$file" > sections
    lacks '[.]debug_\|[.]symtab' sections
done
tieline info --why --all > said
for file in /usr/lib64/tieline-1/providers/libtieline_*.so; do
    grep -qF "$file" said || { cat said; echo "no $file"; exit 1; }
done
tieline run -n 2 -- tieline demo /etc/debian_version
for package in rpms/*.rpm; do rpm -qp --qf '%{NAME}\n' "$package"; done > names
rpm --nodeps -e $(cat names) > said 2>&1 || { cat said; exit 1; }
files > after
diff before after
