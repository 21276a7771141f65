# lintian has nothing to say of the source package but what is explained in debian/source/lintian-overrides.
command -v lintian > /dev/null || { echo 'skipped: there is no lintian'; exit 1; }
lintian --no-cfg --allow-root --suppress-tags initial-upload-closes-no-bugs "$SOURCES"/*.dsc > said 2>&1 || { cat said; exit 1; }
lacks '^[EW]: ' said
