# A provider that needs a later core, and a provider of another ABI major, are refused at installation with a reason. A provider without a note fails the build of its package.
cd /scratch
tieline new-provider later-net --lang c
cd tieline-provider-later-net
# The header is changed to that of a later minor.
sed 's/#define TIELINE_ABI_MINOR .*/#define TIELINE_ABI_MINOR 9/' /usr/include/tieline_provider.h > tieline_provider.h
sed -i 's/TIELINE_PROVIDER_NOTE("later-net", "0.1.0", 0)/TIELINE_PROVIDER_NOTE_FOR("later-net", "0.1.0", 0, 9)/; s/<tieline_provider.h>/"tieline_provider.h"/' provider.c
export DEB_BUILD_OPTIONS=nocheck
make deb > said 2>&1 || { cat said; exit 1; }
fails dpkg -i ../tieline-provider-later-net_*.deb > said 2>&1
cat said
grep -q 'depends on tieline-abi-1 (>= 9)' said
grep -q "Version of tieline-abi-1.*is $(abi_minor)" said
dpkg --purge tieline-provider-later-net
# The header is changed to that of another major, which has another directory.
sed 's/#define TIELINE_ABI_MAJOR .*/#define TIELINE_ABI_MAJOR 2/' /usr/include/tieline_provider.h > tieline_provider.h
sed -i 's/, 0, 9)/, 0, 0)/' provider.c
make clean
# A provider of major 2 in the directory of major 1 fails the build of the package.
fails make deb > said 2>&1
grep -q 'belongs into tieline-2/providers' said
sed -i 's/^providersdir .*/providersdir = \/usr\/lib\/'$(dpkg-architecture -qDEB_HOST_MULTIARCH)'\/tieline-2\/providers/' Makefile
make deb > said 2>&1 || { cat said; exit 1; }
fails dpkg -i ../tieline-provider-later-net_*.deb > said 2>&1
grep -q 'depends on tieline-abi-2 (>= 0); however' said
dpkg --purge tieline-provider-later-net
# The note is removed from the provider.
sed -i '/^TIELINE_PROVIDER_NOTE/d' provider.c
make clean
fails make deb > said 2>&1
grep -q 'has no note .note.tieline.provider: it is no provider' said
