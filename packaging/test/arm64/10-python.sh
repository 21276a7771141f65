# The Python module works over the packaged library, with the extension that this system's compiler builds.
dpkg -i /packages/*.deb > said 2>&1 || { cat said; exit 1; }
cp -r /tree/python /tree/include .
cd python
python3 tools/native.py > ../said 2>&1 || { cat ../said; exit 1; }
export TIELINE_LIBRARY=$(readlink -f /usr/lib/*/libtieline.so.0) TIELINE_HEADERS=$PWD/../include PYTHONPATH=$PWD PYTHONDONTWRITEBYTECODE=1
python3 -m unittest discover tests > ../said 2>&1 || { tail -40 ../said; exit 1; }
grep '^Ran ' ../said
