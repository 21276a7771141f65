# The packages install where nothing of the project was before.
# What is here before is what is to be here after everything was purged (90-purge.sh).
files > /scratch/before
dpkg -i /packages/*.deb > said 2>&1 || { cat said; exit 1; }
dpkg-query -W -f '${db:Status-Abbrev} ${Package}\n' 'tieline*' 'libtieline*' > state
# What is only provided counts as a package that is not installed: `un`.
lacks '^[^iu]' state
