# The provider of the preceding test also builds as an rpm, whose dependency comes from the provider's note.
command -v rpmbuild > /dev/null || { echo 'skipped: there is no rpmbuild here'; exit 1; }
cd /scratch/tieline-provider-vendor-net
make clean
# The build dependencies are installed as Debian packages, which rpm does not
# know.
sed -i 's/rpmbuild -bb/rpmbuild -bb --nodeps/' Makefile
make rpm > said 2>&1 || { cat said; exit 1; }
package=$(ls rpm/RPMS/*/tieline-provider-vendor-net-0.1.0-1.*.rpm)
rpm -qp --requires "$package" 2>/dev/null | grep -qxF 'tieline-abi(1)(64bit) >= 0'
rpm -qp --provides "$package" 2>/dev/null | grep -qxF 'tieline-provider(1)(vendor-net)(64bit) = 0.1.0'
rpm -qp --provides "$package" > provided 2>/dev/null
lacks '^libtieline_' provided
