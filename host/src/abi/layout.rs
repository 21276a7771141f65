//! Compares the layouts in a Rust-built provider with the core's own, field by field.
//!
//! The check of abi_stable itself would also compare the version of the package that declares the types. That check would refuse a
//! provider built against another patch version of the same ABI. Only the common part of each record has to agree: names, order,
//! types, sizes. Either side may have more fields at the end if the record carries its size; frozen records must be equal. The
//! other side may have given a `reserved` field a name; only the field's place has to agree.

use abi_stable::type_layout::{TLData, TLField, TLPrimitive, TypeLayout};
use tieline_plugin_api::abi::layout::{ABI_STABLE, LAYOUTS};
use tieline_plugin_api::abi::{Layouts, fixed_str};

/// The first difference that makes a provider incompatible.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Drift {
    pub(crate) expected: String,
    pub(crate) found: String,
}

/// The name of a field to which a later minor version may assign a name and a meaning.
const RESERVED: &str = "reserved";
/// The maximum number of types, above that of the ABI.
const MOST_LAYOUTS: usize = 1024;

/// Returns the first difference between the provider's layouts and the core's. `None`: there is none, or the provider was built
/// with another abi_stable, so that a comparison is impossible.
///
/// # Safety
/// If `theirs.abi_stable` is the core's own version, `theirs.layouts` points to `theirs.count` pointers to `TypeLayout` constants
/// of that version, which stay valid for the life of the process.
pub(crate) unsafe fn drift(theirs: &Layouts) -> Option<Drift> {
    if fixed_str(&theirs.abi_stable) != Some(ABI_STABLE)
        || theirs.layouts.is_null()
        || theirs.count > MOST_LAYOUTS
    {
        return None;
    }
    for i in 0..theirs.count {
        // SAFETY: this is element `i < count` of the provider's array.
        let layout = unsafe { *theirs.layouts.add(i) }.cast::<TypeLayout>();
        if layout.is_null() {
            continue;
        }
        // SAFETY: the caller guarantees that this is a `TypeLayout` constant.
        let layout: &'static TypeLayout = unsafe { &*layout };
        // A type unknown to the core belongs to a newer minor version.
        let ours = LAYOUTS.iter().find(|ours| ours.name() == layout.name());
        if let Some(drift) = ours.and_then(|ours| compare(ours, layout)) {
            return Some(drift);
        }
    }
    None
}

/// Compares one type.
pub(crate) fn compare(ours: &TypeLayout, theirs: &TypeLayout) -> Option<Drift> {
    let (our_fields, their_fields) = (places(ours), places(theirs));
    let name = ours.name();
    for (ours, theirs) in our_fields.iter().zip(&their_fields) {
        if !ours.agrees(theirs) {
            return Some(Drift {
                expected: format!("{name}.{ours}"),
                found: format!("{name}.{theirs}"),
            });
        }
    }
    let grows = our_fields.first().is_some_and(|f| f.name == "size" || f.name == "desc_len");
    if !grows && (our_fields.len() != their_fields.len() || ours.size() != theirs.size()) {
        return Some(Drift {
            expected: format!("{name} of {} fields, {} bytes", our_fields.len(), ours.size()),
            found: format!("{name} of {} fields, {} bytes", their_fields.len(), theirs.size()),
        });
    }
    None
}

/// One field, with its place in a `repr(C)` record.
struct Place {
    name: &'static str,
    offset: usize,
    size: usize,
    kind: String,
}

impl Place {
    fn agrees(&self, other: &Place) -> bool {
        let unnamed = self.name == RESERVED || other.name == RESERVED;
        let same = self.name == other.name && self.kind == other.kind;
        (self.offset, self.size) == (other.offset, other.size) && (unnamed || same)
    }
}

impl std::fmt::Display for Place {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Place { name, offset, size, kind } = self;
        write!(f, "{name} at {offset}, {size} bytes: {kind}")
    }
}

fn places(layout: &TypeLayout) -> Vec<Place> {
    let mut end: usize = 0;
    let fields = layout.get_fields().map(|fields| fields.to_vec()).unwrap_or_default();
    fields
        .iter()
        .map(|field| {
            let inner = field.layout();
            let offset = end.next_multiple_of(inner.alignment().max(1));
            end = offset + inner.size();
            Place { name: field.name(), offset, size: inner.size(), kind: kind(field) }
        })
        .collect()
}

/// Formats a field's type; for a function, its signature without parameter names.
fn kind(field: &TLField) -> String {
    let functions: Vec<String> = field
        .function_range()
        .iter()
        .map(|function| {
            let parameters: Vec<String> =
                function.param_type_layouts.iter().map(|parameter| words(parameter())).collect();
            let returned = function.return_type_layout().map_or("()".into(), |it| words(it()));
            format!("fn({}) -> {returned}", parameters.join(", "))
        })
        .collect();
    if functions.is_empty() { words(field.layout()) } else { functions.join("; ") }
}

/// The depth to which the parameters of a type are described.
const DEPTH: usize = 8;

/// A type as text. abi_stable's own text needs a thread-local variable, which has ended in a function that `exit` calls.
fn words(layout: &TypeLayout) -> String {
    words_to(layout, DEPTH)
}

fn words_to(layout: &TypeLayout, depth: usize) -> String {
    let (name, generics) = (layout.name(), layout.full_type().generics());
    let mut parameters: Vec<String> = generics.lifetimes().map(str::to_owned).collect();
    if let Some(depth) = depth.checked_sub(1) {
        parameters.extend(generics.type_params().iter().map(|inner| words_to(inner(), depth)));
    }
    parameters.extend(generics.const_params().iter().map(|number| format!("{number:?}")));
    let primitive = match layout.data() {
        TLData::Primitive(primitive) => Some(primitive),
        _ => None,
    };
    match primitive {
        Some(TLPrimitive::SharedRef) => format!("& {}", parameters.join(" ")),
        Some(TLPrimitive::MutRef) => format!("& mut {}", parameters.join(" ")),
        Some(TLPrimitive::ConstPtr) => format!("*const {}", parameters.join(" ")),
        Some(TLPrimitive::MutPtr) => format!("*mut {}", parameters.join(" ")),
        Some(TLPrimitive::Array) => format!("[{}]", parameters.join(";")),
        _ if parameters.is_empty() => name.to_owned(),
        _ => format!("{name}<{}>", parameters.join(", ")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use abi_stable::StableAbi;

    #[test]
    fn a_layout_is_equal_to_itself() {
        for layout in LAYOUTS {
            assert_eq!(compare(layout, layout), None);
        }
    }

    #[test]
    fn every_field_says_its_name_and_kind() {
        for layout in LAYOUTS {
            let places = places(layout);
            assert!(!places.is_empty(), "{} has no fields", layout.name());
            let last = places.last().map_or(0, |place| place.offset + place.size);
            assert_eq!(last.next_multiple_of(layout.alignment()), layout.size());
            for place in places {
                assert!(!place.name.is_empty() && !place.kind.is_empty());
            }
        }
    }

    #[test]
    fn a_thread_without_thread_locals_compares_layouts() {
        use std::sync::mpsc::{Sender, channel};
        struct AtEnd(Sender<usize>);
        impl Drop for AtEnd {
            fn drop(&mut self) {
                let equal = LAYOUTS.iter().filter(|layout| compare(layout, layout).is_none());
                let _ = self.0.send(equal.count());
            }
        }
        thread_local! { static FIRST: std::cell::RefCell<Option<AtEnd>> = const { std::cell::RefCell::new(None) }; }
        let (to, ended) = channel();
        let thread = std::thread::spawn(|| {
            // A thread-local variable that is created first ends last.
            FIRST.set(Some(AtEnd(to)));
            for layout in LAYOUTS {
                assert_eq!(compare(layout, layout), None);
            }
        });
        thread.join().expect("no panic");
        assert_eq!(ended.recv(), Ok(LAYOUTS.len()));
    }

    #[test]
    fn a_type_is_described_like_in_abi_stable() {
        for layout in LAYOUTS.iter().flat_map(|layout| places_of(layout)) {
            let text = layout.full_type().to_string();
            let theirs = text.split_whitespace().collect::<Vec<_>>().join(" ");
            assert_eq!(words(layout), theirs);
        }
    }

    /// The types of the fields and of the parameters of functions.
    fn places_of(layout: &TypeLayout) -> Vec<&'static TypeLayout> {
        let fields = layout.get_fields().map(|fields| fields.to_vec()).unwrap_or_default();
        let of = |field: &TLField| {
            let functions = field.function_range();
            let mut types = vec![field.layout()];
            for function in functions.iter() {
                types.extend(function.param_type_layouts.iter().map(|inner| inner()));
            }
            types
        };
        fields.iter().flat_map(of).collect()
    }

    mod drifted {
        use super::StableAbi;

        #[repr(C)]
        #[derive(StableAbi)]
        pub(crate) struct Cost {
            pub(crate) overhead_ns: f64,
            pub(crate) bytes_per_second: f64,
            pub(crate) latency_ns: f64,
        }

        #[repr(C)]
        #[derive(StableAbi)]
        pub(crate) struct MemoryUse {
            pub(crate) size: usize,
            pub(crate) base_bytes: u64,
            pub(crate) peer_bytes: u64,
            pub(crate) peers: u64,
            pub(crate) buffer_bytes: u64,
            pub(crate) new_in_a_later_minor: u64,
        }

        #[repr(C)]
        #[derive(StableAbi)]
        pub(crate) struct Iov {
            pub(crate) base: *mut u8,
            pub(crate) len: usize,
            pub(crate) region: *mut core::ffi::c_void,
            pub(crate) more: usize,
        }

        #[repr(C)]
        #[derive(StableAbi)]
        pub(crate) struct ProviderOps {
            pub(crate) size: usize,
            pub(crate) abi_minor: u32,
            pub(crate) named_in_a_later_minor: i32,
        }

        #[repr(C)]
        #[derive(StableAbi)]
        pub(crate) struct ConfigVar {
            pub(crate) size: usize,
            pub(crate) reserved: u64,
            pub(crate) name_len: usize,
        }

        #[repr(C)]
        #[derive(StableAbi)]
        pub(crate) struct ConfigValue {
            pub(crate) size: usize,
            pub(crate) reserved: u32,
        }

        #[repr(C)]
        #[derive(StableAbi)]
        pub(crate) struct ConnectorOps {
            pub(crate) size: usize,
            pub(crate) poll: Option<unsafe extern "C" fn(*mut u32, u64) -> i64>,
        }
    }

    fn ours(name: &str) -> &'static TypeLayout {
        LAYOUTS.iter().find(|layout| layout.name() == name).expect("a type of the ABI")
    }

    #[test]
    fn swapped_fields_are_named() {
        let drift = compare(ours("Cost"), <drifted::Cost as StableAbi>::LAYOUT).expect("drift");
        assert!(drift.expected.starts_with("Cost.latency_ns at 8"), "{drift:?}");
        assert!(drift.found.starts_with("Cost.bytes_per_second at 8"), "{drift:?}");
    }

    #[test]
    fn a_record_with_its_size_may_grow_at_the_end() {
        assert_eq!(compare(ours("MemoryUse"), <drifted::MemoryUse as StableAbi>::LAYOUT), None);
    }

    #[test]
    fn reserved_field_may_be_named_on_other_side() {
        let named = <drifted::ProviderOps as StableAbi>::LAYOUT;
        assert_eq!(compare(ours("ProviderOps"), named), None);
        // The opposite direction: a newer core with an older provider.
        assert_eq!(compare(named, ours("ProviderOps")), None);
        let before = <drifted::ConfigVar as StableAbi>::LAYOUT;
        assert_eq!(compare(ours("ConfigVar"), before), None);
        let smaller = <drifted::ConfigValue as StableAbi>::LAYOUT;
        let drift = compare(ours("ConfigValue"), smaller).expect("its place is another one");
        assert!(drift.found.starts_with("ConfigValue.reserved at 8, 4 bytes"), "{drift:?}");
    }

    #[test]
    fn a_frozen_record_may_not_grow() {
        let drift = compare(ours("Iov"), <drifted::Iov as StableAbi>::LAYOUT).expect("drift");
        assert_eq!(drift.found, "Iov of 4 fields, 32 bytes");
    }

    #[test]
    fn a_slot_with_another_signature_is_named() {
        let layout = <drifted::ConnectorOps as StableAbi>::LAYOUT;
        let drift = compare(ours("ConnectorOps"), layout).expect("drift");
        assert!(drift.expected.starts_with("ConnectorOps.poll"), "{drift:?}");
        assert!(drift.expected.contains("(*mut c_void, *mut Event, u32) -> i64"), "{drift:?}");
        assert!(drift.found.contains("(*mut u32, u64) -> i64"), "{drift:?}");
    }
}
