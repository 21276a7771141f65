# An upgrade does not disturb a running measurement: the measurement keeps the old files, and new processes use the new files.
mapped() { grep -ls "libtieline_tcp.so$1" /proc/[0-9]*/maps 2>/dev/null; }
# On a busy system, an upgrade may take longer than a measurement. The step then begins again with a longer one.
kept=
for seconds in 20 120 720; do
    tieline perf --test am_lat --size 8 --seconds $seconds --path tcp,tcp-connect --verify > measured 2>&1 &
    running=$!
    # The measurement has begun when its processes have loaded their providers.
    until mapped '$' | grep -q .; do kill -0 $running; done
    dpkg -i /next/*.deb > said 2>&1 || { cat said; exit 1; }
    if mapped ' (deleted)$' | grep -q .; then kept=yes; break; fi
    wait $running || { cat measured; exit 1; }
    dpkg -i /packages/*.deb > said 2>&1 || { cat said; exit 1; }
done
[ -n "$kept" ] || { echo 'no measurement kept its files until the upgrade had ended'; exit 1; }
dpkg-query -W -f '${Version}\n' libtieline0 | grep -qx '0.2.0-2'
tieline run -n 2 -- tieline demo /etc/debian_version
wait $running || { cat measured; exit 1; }
cat measured
