# lintian reports nothing except that no bug was filed to request the packages.
command -v lintian > /dev/null || { echo 'skipped: there is no lintian'; exit 1; }
lintian --no-cfg --allow-root --suppress-tags initial-upload-closes-no-bugs "$DEBS"/*.changes > said 2>&1 || { cat said; exit 1; }
lacks '^[EW]: ' said
