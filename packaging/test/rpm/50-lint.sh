# rpmlint reports only warnings that packaging/rpm/rpmlint.toml explains.
command -v rpmlint > /dev/null || { echo 'skipped: there is no rpmlint'; exit 1; }
rpmlint -c "$PACKAGING/rpm/rpmlint.toml" "$RPMS"/*/*.rpm > said 2>&1 || true
grep -q ' packages and 0 specfiles checked; ' said || { cat said; exit 1; }
lacks ': [EW]: ' said
