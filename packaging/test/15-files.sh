# Only root may write providers; settings are a conffile; no script runs at installation.
providers=/usr/lib/*/tieline-1/providers
[ "$(stat -c '%a %U' $providers)" = '755 root' ]
for file in $providers/*.so; do [ "$(stat -c '%a %U' "$file")" = '644 root' ]; done
[ "$(ls $providers | wc -l)" = 8 ]
dpkg-query -W -f '${Conffiles}\n' tieline | grep -q /etc/tieline/tieline.toml
find /usr/lib/*/tieline-1 /usr/lib/*/libfabric-tieline /usr/share/tieline-libfabric /usr/share/tieline /usr/share/doc/*tieline* /etc/tieline ! -type l -perm /022 > written
lacks . written
lacks '^#TIELINE_SECRET ' /etc/tieline/tieline.toml
lacks '^[^#]' /etc/tieline/tieline.toml
for package in tieline tieline-doc tieline-libfabric tieline-provider-verbs tieline-provider-ofi tieline-provider-shm-xpmem tieline-provider-shm-knem; do
    for script in preinst postinst prerm postrm; do
        fails ls /var/lib/dpkg/info/$package.$script /var/lib/dpkg/info/$package:*.$script 2>/dev/null
    done
done
# The dependency comes from the file's note.
dpkg-query -W -f '${Depends}\n' tieline-provider-verbs | grep -q 'tieline-abi-1 (>= 0)'
dpkg-query -W -f '${Provides}\n' libtieline0 | grep -qF "tieline-abi-1 (= $(abi_minor))"
dpkg-query -W -f '${Provides}\n' tieline-provider-ofi | grep -q 'tieline-provider-1-ofi (= '
