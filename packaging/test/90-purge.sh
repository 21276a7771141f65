# Everything that was installed can be purged without leaving a file.
dpkg --purge $(dpkg-query -W -f '${db:Status-Abbrev} ${Package}\n' 'tieline*' 'libtieline*' | sed -n 's/^[a-z]i *//p') > said 2>&1 || { cat said; exit 1; }
files > /scratch/after
diff /scratch/before /scratch/after
