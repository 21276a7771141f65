# The provider for libfabric lies alone in its directory and exports one symbol, libfabric lists it with the environment file, and `tieline mpi` starts a launcher with it.
place=$(dirname /usr/lib/*/libfabric-tieline/libtieline-fi.so)
[ "$(ls $place)" = libtieline-fi.so ]
[ "$(stat -c '%a %U' $place/libtieline-fi.so)" = '644 root' ]
[ "$(nm -D --defined-only $place/libtieline-fi.so | sed 's/.* //')" = fi_prov_ini ]
grep -q 'OpenIB.org BSD' /usr/share/doc/tieline-libfabric/NOTICE.libfabric
grep -q 'OpenIB.org BSD' /usr/share/doc/tieline-provider-ofi/NOTICE.libfabric
# A launcher that says what MPICH says, and prints its environment.
cat > mpiexec << 'END'
#!/bin/sh
if [ "$1" = --version ]; then printf 'HYDRA build details:\n    Version:  5.0.2\n'; else env; fi
END
chmod +x mpiexec
tieline mpi -- ./mpiexec -n 2 > variables 2> said || { cat said; exit 1; }
grep -qx "FI_PROVIDER_PATH=$place" variables
grep -qx FI_PROVIDER=tieline variables
grep -qx MPIR_CVAR_CH4_NETMOD=ofi variables
grep -q "MPICH 5.0.2: sets FI_PROVIDER=tieline FI_PROVIDER_PATH=$place" said
. /usr/share/tieline-libfabric/environment.sh
[ "$FI_PROVIDER_PATH $FI_PROVIDER" = "$place tieline" ]
command -v fi_info > /dev/null || { echo 'skipped: there is no fi_info in this root: remove target/packages/roots'; exit 1; }
fi_info -p tieline > listed 2>&1 || { cat listed; exit 1; }
grep -q '^provider: tieline$' listed
