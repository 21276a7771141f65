# Each provider's rpm requires the ABI that its note states, the library provides it, and no rpm provides a provider's file name as a library.
for package in "$RPMS"/*/*.rpm; do
    rpm -qp --requires "$package" > requires 2>/dev/null
    rpm -qp --provides "$package" > provides 2>/dev/null
    lacks '^libtieline\(_\|-fi\)' provides
    case $package in
    */tieline-provider-*) grep -qxF 'tieline-abi(1)(64bit) >= 0' requires ;;
    */libtieline-0*) grep -qxF "tieline-abi(1)(64bit) = $(abi_minor)" provides ;;
    esac
    # The package has no scripts: `rpm -q --scripts` then prints nothing.
    [ -z "$(rpm -qp --scripts "$package" 2>/dev/null)" ]
done
rpm -qp --provides "$RPMS"/*/tieline-provider-ofi-0*.rpm 2>/dev/null | grep -qx 'tieline-provider(1)(ofi)(64bit) = .*'
