# The backend for NIXL loads with the packaged library, moves and notifies between two agents, and reports killed peers.
plugin=$(echo /usr/lib/*/tieline-nixl/libplugin_TIELINE.so)
[ -e "$plugin" ] || { echo 'skipped: the package tieline-nixl was not made'; exit 1; }
stat -c '%a %U' "$plugin" > mode
grep -qx '644 root' mode || { cat mode; exit 1; }
ldd "$plugin" > needs
lacks 'not found' needs
grep -q 'libtieline.so.0 => /.*lib/.*-linux-gnu/libtieline.so.0' needs
grep -q NIXL /usr/share/doc/tieline-nixl/NOTICE
# This program stands in for NIXL.
c++ -std=c++20 -O1 /tree/integrations/nixl/tests/host.cpp -o host
NIXL_LOG_LEVEL=FATAL ./host "$plugin" 100 10
