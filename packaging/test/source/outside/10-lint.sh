# lintian reports no warnings for the source package except the warnings that debian/source/lintian-overrides explains.
command -v lintian > /dev/null || { echo 'skipped: there is no lintian'; exit 1; }
lintian --no-cfg --allow-root --suppress-tags initial-upload-closes-no-bugs "$SOURCES"/*.dsc > said 2>&1 || { cat said; exit 1; }
lacks '^[EW]: ' said
