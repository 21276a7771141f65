# The wheel for this processor runs the tests of the Python module with its own library.
wheel=$(echo /wheels/tieline-*_aarch64.whl)
[ -e "$wheel" ] || { echo 'skipped: the wheel for aarch64 was not made: cargo xtask package wheel --arch arm64'; exit 1; }
cp -r /tree/python/tests /tree/python/examples /tree/include .
python3 -m zipfile -e "$wheel" module
export TIELINE_HEADERS=$PWD/include PYTHONPATH=$PWD/module PYTHONDONTWRITEBYTECODE=1
python3 -c 'import tieline; print(tieline.__file__)' > said
grep -q '/module/tieline/' said
python3 -m unittest discover tests > said 2>&1 || { tail -40 said; exit 1; }
grep '^Ran ' said
