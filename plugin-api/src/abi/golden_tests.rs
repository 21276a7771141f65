use super::{DIGEST, DIGESTS, RECORDS};
use crate::abi::*;
use abi_stable::type_layout::{TLField, TypeLayout};

/// One layout for every record and table that crosses the boundary, in a fixed order that only grows.
static LAYOUTS: &[&TypeLayout] = &[
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
    <WatchWord as StableAbi>::LAYOUT,
    <WatchList as StableAbi>::LAYOUT,
    <MemoryUse as StableAbi>::LAYOUT,
    <Iov as StableAbi>::LAYOUT,
    <Rma as StableAbi>::LAYOUT,
    <Atomic as StableAbi>::LAYOUT,
    <RmaPart as StableAbi>::LAYOUT,
    <RmaList as StableAbi>::LAYOUT,
    <ImportParams as StableAbi>::LAYOUT,
    <ConnectParams as StableAbi>::LAYOUT,
    <EndpointLimits as StableAbi>::LAYOUT,
    <EndpointOps as StableAbi>::LAYOUT,
    <ConnectorOps as StableAbi>::LAYOUT,
    <Layouts as StableAbi>::LAYOUT,
];

/// The text of a type, with single blanks.
fn words(layout: &TypeLayout) -> String {
    layout.full_type().to_string().split_whitespace().collect::<Vec<_>>().join(" ")
}

/// The type of a field; for a slot, its signature without the names of the parameters.
fn kind(field: &TLField) -> String {
    let functions = field.function_range().iter().map(|function| {
        let parameters: Vec<String> =
            function.param_type_layouts.iter().map(|parameter| words(parameter())).collect();
        let returned = function.return_type_layout().map_or("()".into(), |it| words(it()));
        format!("fn({}) -> {returned}", parameters.join(", "))
    });
    let functions = functions.collect::<Vec<_>>().join("; ");
    if functions.is_empty() { words(field.layout()) } else { functions }
}

/// A record as text: one line for itself and one for each field.
fn record(layout: &TypeLayout) -> String {
    let mut end: usize = 0;
    let mut text = format!("{} {} {}\n", layout.name(), layout.size(), layout.alignment());
    for field in layout.get_fields().map(|fields| fields.to_vec()).unwrap_or_default() {
        let inner = field.layout();
        let offset = end.next_multiple_of(inner.alignment().max(1));
        end = offset + inner.size();
        text += &format!("  {} {offset} {} {}\n", field.name(), inner.size(), kind(&field));
    }
    text
}

#[test]
fn every_field_of_every_type_is_written_down() {
    for layout in LAYOUTS {
        let record = RECORDS.iter().find(|record| record.name == layout.name());
        let record = record.unwrap_or_else(|| panic!("{} is missing", layout.name()));
        let fields = layout.get_fields().map(|fields| fields.to_vec()).unwrap_or_default();
        let names: Vec<&str> = fields.iter().map(|field| field.name()).collect();
        let written: Vec<&str> = record.fields.iter().map(|(name, _)| *name).collect();
        assert_eq!(names, written, "fields of {}", record.name);
    }
    assert_eq!(RECORDS.len(), LAYOUTS.len());
}

#[test]
fn digest_is_that_of_the_layouts() {
    let text: String = LAYOUTS.iter().map(|layout| record(layout)).collect();
    let digest = crate::address_hash(text.as_bytes());
    assert_eq!(
        digest, DIGEST,
        "the layouts have changed: add ({ABI_MINOR}, {digest:#018x}) to the end of DIGESTS.\n{text}"
    );
    assert_eq!(DIGESTS.last().map(|last| last.0), Some(ABI_MINOR));
    // The digests of one minor are in the order of its states, the present one last.
    assert!(DIGESTS.is_sorted_by_key(|known| known.0));
    // A released minor has no later state.
    let last = |minor| DIGESTS.iter().rfind(|known| known.0 == minor).map(|known| known.1);
    assert_eq!(last(1), Some(0x0aa2_545a_aef0_0da4));
}

#[test]
fn records_of_another_order_or_signature_have_another_text() {
    let ours = |name| record(LAYOUTS.iter().find(|layout| layout.name() == name).unwrap());
    assert_ne!(ours("Cost"), record(<other::Cost as StableAbi>::LAYOUT));
    let (ours, theirs) = (ours("ConnectorOps"), record(<other::ConnectorOps as StableAbi>::LAYOUT));
    let poll = |text: &str| text.lines().find(|line| line.contains("poll")).map(str::to_owned);
    let poll = (poll(&ours).unwrap(), poll(&theirs).unwrap());
    assert!(poll.0.ends_with("fn(*mut c_void, *mut Event, u32) -> i64"), "{poll:?}");
    assert!(poll.1.ends_with("fn(*mut u32, u64) -> i64"), "{poll:?}");
}

mod other {
    use super::StableAbi;

    #[repr(C)]
    #[derive(StableAbi)]
    pub(super) struct Cost {
        pub(super) overhead_ns: f64,
        pub(super) bytes_per_second: f64,
        pub(super) latency_ns: f64,
    }

    #[repr(C)]
    #[derive(StableAbi)]
    pub(super) struct ConnectorOps {
        pub(super) size: usize,
        pub(super) poll: Option<unsafe extern "C" fn(*mut u32, u64) -> i64>,
    }
}

#[test]
fn providers_compile_no_other_project_with_this_crate() {
    let manifest = include_str!("../../Cargo.toml");
    assert!(!manifest.lines().any(|line| line == "[dependencies]"), "{manifest}");
}
