# A process of this machine's processor and one of the other processor exchange data over TCP in both directions, and every byte is checked.
dpkg -i /own/*.deb > said 2>&1 || { cat said; exit 1; }
for package in /packages/libtieline0_*.deb /packages/tieline_*.deb; do dpkg-deb -x "$package" other; done
other() {
    LD_LIBRARY_PATH=$(echo "$PWD"/other/usr/lib/*-linux-gnu) TIELINE_PROVIDER_PATH=$(echo "$PWD"/other/usr/lib/*/tieline-1/providers) \
        "$PWD/other/usr/bin/tieline" "$@"
}
export TIELINE_SECRET=packages
tests='--test am_lat,put_bw,get_bw --size 8,64k --iterations 200 --path tcp,tcp-connect --verify'
other perf --listen 127.0.0.1:7701 --once > listening 2>&1 &
until grep -q 7701 listening; do kill -0 $!; done
tieline perf --connect 127.0.0.1:7701 $tests
wait $!
tieline perf --listen 127.0.0.1:7702 --once > listening 2>&1 &
until grep -q 7702 listening; do kill -0 $!; done
other perf --connect 127.0.0.1:7702 $tests
wait $!
