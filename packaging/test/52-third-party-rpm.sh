# The same provider makes an rpm, whose dependency comes from its note too.
command -v rpmbuild > /dev/null || { echo 'skipped: there is no rpmbuild here'; exit 1; }
cd /scratch/tieline-provider-vendor-net
make clean
# The build dependencies are Debian packages here, which rpm does not know.
sed -i 's/rpmbuild -bb/rpmbuild -bb --nodeps/' Makefile
make rpm > said 2>&1 || { cat said; exit 1; }
package=$(ls rpm/RPMS/*/tieline-provider-vendor-net-0.1.0-1.*.rpm)
rpm -qp --requires "$package" 2>/dev/null | grep -qxF 'tieline-abi(1)(64bit) >= 0'
rpm -qp --provides "$package" 2>/dev/null | grep -qxF 'tieline-provider(1)(vendor-net)(64bit) = 0.1.0'
rpm -qp --provides "$package" > provided 2>/dev/null
lacks '^libtieline_' provided
