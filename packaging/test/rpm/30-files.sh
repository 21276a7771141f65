# Only root may write the files, every rpm has the licences, and an rpm has the files of Debian's package, except for the directory of libraries and files that only one package format needs.
ls "$DEBS"/libtieline0_*.deb > /dev/null 2>&1 || { echo 'skipped: Debian packages have not been made'; exit 1; }
same='s#/usr/lib/x86_64-linux-gnu/#LIB/#; s#/usr/lib64/#LIB/#; s#/zsh/(vendor-completions|site-functions)/#/zsh/#; s#\.gz$##'
# Each distribution has its own directory for documentation, and only Debian has dh_tieline and its sequence.
other='/usr/share/(doc|lintian|licenses|perl5)/|dh_tieline|/usr/lib/\.build-id'
for package in "$DEBS"/*.deb; do
    case $package in *dbgsym*) continue ;; esac
    dpkg-deb -c "$package" | grep -v '^d' | sed 's/.* \././; s/^\.//; s/ -> .*//'
done | sed -E "$same" | grep -vE "$other" | sort -u > deb
for package in "$RPMS"/*/*.rpm; do
    rpm -qp --qf '[%{FILEMODES:perms} %{FILENAMES}\n]' "$package" 2>/dev/null | grep -v '^d' | sed 's/^[^ ]* //'
done | sed -E "$same" | grep -vE "$other" | sort -u > rpm
for package in "$RPMS"/*/*.rpm; do
    rpm -qp --qf '[%{FILEMODES:perms} %{FILENAMES}\n]' "$package" > modes 2>/dev/null
    lacks '^[^l]....w' modes
    lacks '^[^l].......w' modes
    rpm -qp --licensefiles "$package" > licences 2>/dev/null
    grep -q LICENSE-MIT licences
    case $package in */tieline-doc-*) ;; *) rpm -qp --docfiles "$package" 2>/dev/null | grep -q /NOTICES ;; esac
done
[ -s deb ]
diff deb rpm
