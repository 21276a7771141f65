# lintian reports no error or warning for the packages of the other processor.
command -v lintian > /dev/null || { echo 'skipped: there is no lintian'; exit 1; }
lintian --no-cfg --allow-root --suppress-tags initial-upload-closes-no-bugs "$DEBS"/*.deb > said 2>&1 || { cat said; exit 1; }
lacks '^[EW]: ' said
