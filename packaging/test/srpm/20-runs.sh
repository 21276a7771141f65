# The rpms that were built from source install without debug information, find their providers, and two processes move a file.
# This root's packages are Debian's, so rpm knows none of those that the rpms need.
rpm --nodeps -i /scratch/rpms/*.rpm > said 2>&1 || { cat said; exit 1; }
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
