# The source rpm builds in a root without a network, and each provider's rpm requires the ABI that its note states.
cd /scratch
ip route > routes
lacks . routes
rpmbuild --rebuild --nodeps --define "_topdir $PWD/top" --define '_libdir /usr/lib64' /packages/*.src.rpm > said 2>&1 || { tail -40 said; exit 1; }
mkdir rpms
find top/RPMS -name '*.rpm' ! -name '*-debug*' -exec cp -t rpms '{}' +
[ "$(ls rpms | wc -l)" = 9 ]
for package in rpms/*.rpm; do
    rpm -qp --requires "$package" > requires 2>/dev/null
    rpm -qp --provides "$package" > provides 2>/dev/null
    lacks '^libtieline\(_\|-fi\)' provides
    case $package in
    */tieline-provider-*) grep -qxF 'tieline-abi(1)(64bit) >= 0' requires ;;
    */libtieline-0*) grep -qxF "tieline-abi(1)(64bit) = $(abi_minor)" provides ;;
    esac
done
