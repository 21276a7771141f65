# No package names its build directory, contains a file that users other than root may write, or has the lab's kernel modules.
for package in "$DEBS"/*.deb; do
    rm -rf content
    dpkg-deb -x "$package" content
    if grep -rqF "$SOURCE" content; then echo "$package names $SOURCE"; exit 1; fi
    dpkg-deb -c "$package" > listed
    lacks '^[^l]....w' listed
    lacks '^[^l].......w' listed
    lacks '\.ko$' listed
    awk '{ print $2 }' listed > owners
    [ "$(sort -u owners)" = root/root ]
done
