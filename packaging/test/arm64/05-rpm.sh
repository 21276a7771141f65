# The rpms for this processor install without debug information, every provider is found in /usr/lib64, and two processes move a file. No file remains.
[ -d /rpms ] || { echo 'skipped: the rpms for arm64 were not made'; exit 1; }
# Packages of an rpm system own these.
mkdir -p /usr/lib64/pkgconfig /usr/share/fish/vendor_completions.d /usr/share/zsh/site-functions
files > before
mkdir rpms
find /rpms -name '*.rpm' ! -name '*-debug*' -exec cp -t rpms '{}' +
[ "$(ls rpms | wc -l)" = 9 ]
rpms_work rpms/*.rpm
for package in rpms/*.rpm; do rpm -qp --qf '%{NAME}\n' "$package"; done > names
rpm --nodeps -e $(cat names) > said 2>&1 || { cat said; exit 1; }
files > after
diff before after
