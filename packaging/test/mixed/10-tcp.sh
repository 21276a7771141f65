# A process of this machine's processor and one of the other processor exchange data over TCP in both directions, and every byte is checked.
dpkg -i /own/*.deb > said 2>&1 || { cat said; exit 1; }
for package in /packages/libtieline0_*.deb /packages/tieline_*.deb; do dpkg-deb -x "$package" other; done
other() {
    LD_LIBRARY_PATH=$(echo "$PWD"/other/usr/lib/*-linux-gnu) TIELINE_PROVIDER_PATH=$(echo "$PWD"/other/usr/lib/*/tieline-1/providers) \
        "$PWD/other/usr/bin/tieline" "$@"
}
export TIELINE_SECRET=packages TIELINE_PROVIDERS=tcp,tcp-connect
# Each kind of program listens once for the other.
port=7700
for operations in 'am_lat,put_bw,get_bw --size 8,64k --path tcp,tcp-connect' 'add_lat,fadd_lat,swap_lat,cswap_lat --size 8'; do
    for sides in 'other tieline' 'tieline other'; do
        port=$((port + 1))
        set -- $sides
        $1 perf --listen 127.0.0.1:$port --once > listening 2>&1 &
        until grep -q $port listening; do kill -0 $!; done
        $2 perf --connect 127.0.0.1:$port --test $operations --iterations 200 --verify || { cat listening; exit 1; }
        wait $!
    done
done
