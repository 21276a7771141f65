# The packages install on a system without any file of the project.
# After a purge (90-purge.sh) the system has the same files as before.
files > /scratch/before
dpkg -i /packages/*.deb > said 2>&1 || { cat said; exit 1; }
dpkg-query -W -f '${db:Status-Abbrev} ${Package}\n' 'tieline*' 'libtieline*' > state
# A package that is only provided has the state of a package that is not installed:
# `un`.
lacks '^[^iu]' state
