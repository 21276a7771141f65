//! The layouts of the ABI's types in this build of the crate, for the comparison at load.

use super::*;
use abi_stable::type_layout::TypeLayout;

/// The version of abi_stable that defines these layouts.
pub const ABI_STABLE: &str = "0.11";

/// One layout for every record and table that crosses the boundary, in a fixed order that only grows.
pub static LAYOUTS: &[&TypeLayout] = &[
    <NoteDesc as StableAbi>::LAYOUT,
    <Host as StableAbi>::LAYOUT,
    <ProviderOps as StableAbi>::LAYOUT,
    <ConfigVar as StableAbi>::LAYOUT,
    <ConfigValue as StableAbi>::LAYOUT,
    <AsyncEvent as StableAbi>::LAYOUT,
    <DomainAttr as StableAbi>::LAYOUT,
    <DomainParams as StableAbi>::LAYOUT,
    <Cost as StableAbi>::LAYOUT,
    <ModuleAttr as StableAbi>::LAYOUT,
    <MemoryRegion as StableAbi>::LAYOUT,
    <AllocParams as StableAbi>::LAYOUT,
    <RegisterParams as StableAbi>::LAYOUT,
    <KeyParams as StableAbi>::LAYOUT,
    <DomainOps as StableAbi>::LAYOUT,
    <InterfaceParams as StableAbi>::LAYOUT,
    <EndpointParams as StableAbi>::LAYOUT,
    <Event as StableAbi>::LAYOUT,
    <InterfaceOps as StableAbi>::LAYOUT,
    <MemoryUse as StableAbi>::LAYOUT,
    <Iov as StableAbi>::LAYOUT,
    <Rma as StableAbi>::LAYOUT,
    <Atomic as StableAbi>::LAYOUT,
    <ImportParams as StableAbi>::LAYOUT,
    <ConnectParams as StableAbi>::LAYOUT,
    <EndpointLimits as StableAbi>::LAYOUT,
    <EndpointOps as StableAbi>::LAYOUT,
    <ConnectorOps as StableAbi>::LAYOUT,
    <Layouts as StableAbi>::LAYOUT,
];

/// Points `out` at [`LAYOUTS`].
pub(crate) fn describe() -> Layouts {
    Layouts {
        size: size_of::<Layouts>(),
        abi_stable: fixed(ABI_STABLE),
        // A `&TypeLayout` is one pointer; the array is constant.
        layouts: LAYOUTS.as_ptr().cast(),
        count: LAYOUTS.len(),
    }
}
