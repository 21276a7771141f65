# The backend of the wheel for this processor moves and notifies between two agents, with the library of that wheel.
wheel=$(echo /wheels/tieline_nixl-*_aarch64.whl)
[ -e "$wheel" ] || { echo 'skipped: the wheel for aarch64 was not made: cargo xtask package nixl --arch arm64'; exit 1; }
python3 -m zipfile -e "$wheel" module
ldd module/tieline_nixl/libplugin_TIELINE.so > needs
lacks 'not found' needs
grep -q "libtieline.so.0 => $PWD/module/tieline_nixl/" needs
# This program stands in for NIXL.
c++ -std=c++20 -O1 /tree/integrations/nixl/tests/host.cpp -o host
NIXL_LOG_LEVEL=FATAL ./host "$PWD/module/tieline_nixl/libplugin_TIELINE.so" 100 10
