# The tests of the source package (debian/tests) pass with the packages that were built from it.
grep -q '^Tests: ' /scratch/tieline/debian/tests/control
scratch=$PWD
for name in $(sed -n 's/^Tests: //p' /scratch/tieline/debian/tests/control); do
    export AUTOPKGTEST_TMP=$scratch/$name
    mkdir "$AUTOPKGTEST_TMP"
    cd /scratch/tieline
    "debian/tests/$name" > "$scratch/said" 2>&1 || { cat "$scratch/said"; echo "debian/tests/$name"; exit 1; }
done
