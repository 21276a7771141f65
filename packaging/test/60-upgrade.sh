# An upgrade does not disturb a running measurement: the measurement keeps the old files, and new processes use the new files.
tieline perf --test am_lat --size 8 --seconds 20 --path tcp,tcp-connect --verify > measured 2>&1 &
running=$!
# The measurement has begun when its processes have loaded their providers.
mapped() { grep -ls "libtieline_tcp.so$1" /proc/[0-9]*/maps 2>/dev/null; }
until mapped '$' | grep -q .; do kill -0 $running; done
dpkg -i /next/*.deb > said 2>&1 || { cat said; exit 1; }
dpkg-query -W -f '${Version}\n' libtieline0 | grep -qx '0.2.0-2'
kill -0 $running
mapped ' (deleted)$' | grep -q .
tieline run -n 2 -- tieline demo /etc/debian_version
wait $running || { cat measured; exit 1; }
cat measured
