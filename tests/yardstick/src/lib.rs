//! Compares the C declarations of a provider with those of a crate that generates its declarations from the headers.
//!
//! `build.rs` reads the declarations and writes the comparisons. The tests run them.

/// One value of the provider beside the same value of the crate.
#[derive(Debug)]
pub struct Comparison {
    /// The compared property, such as `offset of abi::ibv_wc.status`.
    pub what: String,
    /// The value in the provider's declaration.
    pub ours: u64,
    /// The value in the crate's declaration.
    pub theirs: u64,
    /// Whether the provider's value is allowed.
    pub fits: bool,
}

/// Fails if a value does not fit, and names all such values.
///
/// # Panics
/// Panics if a value does not fit, or if there is no comparison.
pub fn assert_fit(comparisons: &[Comparison]) {
    assert!(!comparisons.is_empty());
    let wrong: Vec<_> = comparisons.iter().filter(|comparison| !comparison.fits).collect();
    assert!(wrong.is_empty(), "{} of {} differ: {wrong:#?}", wrong.len(), comparisons.len());
    println!("{} values compared", comparisons.len());
}

/// The number of declarations of each kind.
#[derive(Debug, PartialEq, Eq)]
pub struct Declared {
    /// The number of structures and unions.
    pub records: usize,
    /// The number of their fields that other modules can use.
    pub fields: usize,
    /// The number of constants in `numbers!`.
    pub constants: usize,
}

impl Declared {
    /// Counts the records and fields in the text of source files; the constants are counted by the compiler.
    pub fn count(texts: &[&str], constants: usize) -> Declared {
        let lines = || texts.iter().flat_map(|text| text.lines());
        Declared {
            records: lines().filter(|line| line.starts_with("#[repr(")).count(),
            fields: lines().filter(|line| is_field(line)).count(),
            constants,
        }
    }
}

fn is_field(line: &str) -> bool {
    line.starts_with("    pub(crate) ") || line.starts_with("    pub ")
}

/// Returns the constants outside of `numbers!`, for which `build.rs` writes no comparison.
pub fn other_constants<'t>(texts: &[&'t str]) -> Vec<&'t str> {
    let lines = texts.iter().flat_map(|text| text.lines());
    let is_constant =
        |line: &'t str| line.strip_prefix("pub(crate) const ").or(line.strip_prefix("pub const "));
    let constants = lines.filter_map(is_constant);
    let values = constants.filter(|rest| !rest.starts_with("fn "));
    values.filter_map(|rest| rest.split(':').next()).collect()
}

/// Adds one comparison, which requires that the first value equals the second, or does not exceed it.
#[macro_export]
macro_rules! compare {
    ($out:ident, $what:expr, $ours:expr, $relation:tt, $theirs:expr) => {{
        let (ours, theirs) = ($ours as u64, $theirs as u64);
        $out.push($crate::Comparison { what: $what, ours, theirs, fits: ours $relation theirs });
    }};
}

/// Compares the size and alignment of a record.
#[macro_export]
macro_rules! compare_record {
    // The provider declares all fields.
    ($out:ident, whole, $ours:ty, $theirs:ty) => {
        $crate::compare_record!($out, ==, size_of::<$ours>(), $ours, $theirs);
    };
    // The provider declares the first fields.
    ($out:ident, head, $ours:ty, $theirs:ty) => {
        $crate::compare_record!($out, <=, size_of::<$ours>(), $ours, $theirs);
    };
    // The provider declares the first fields, and space for more.
    ($out:ident, spare, $ours:ty, $theirs:ty) => {
        $crate::compare_record!($out, <=, core::mem::offset_of!($ours, spare), $ours, $theirs);
        let what = format!("size of {} with the room behind it", stringify!($theirs));
        $crate::compare!($out, what, size_of::<$ours>(), >=, size_of::<$theirs>());
    };
    ($out:ident, $relation:tt, $size:expr, $ours:ty, $theirs:ty) => {
        let what = |property| format!("{property} of {}", stringify!($ours));
        $crate::compare!($out, what("size"), $size, $relation, size_of::<$theirs>());
        $crate::compare!($out, what("alignment"), align_of::<$ours>(), $relation, align_of::<$theirs>());
    };
}

/// Compares the offset of a field, and its size if it is `whole`.
#[macro_export]
macro_rules! compare_field {
    ($out:ident, offset, $ours:ty, $theirs:ty, $field:ident, $($place:ident).+) => {
        let what = format!("offset of {}.{}", stringify!($ours), stringify!($field));
        let theirs = core::mem::offset_of!($theirs, $($place).+);
        $crate::compare!($out, what, core::mem::offset_of!($ours, $field), ==, theirs);
    };
    ($out:ident, whole, $ours:ty, $theirs:ty, $field:ident, $($place:ident).+) => {
        $crate::compare_field!($out, offset, $ours, $theirs, $field, $($place).+);
        let what = format!("size of {}.{}", stringify!($ours), stringify!($field));
        let ours = $crate::size_of_field!($ours, $field);
        $crate::compare!($out, what, ours, ==, $crate::size_of_field!($theirs, $($place).+));
    };
}

/// Returns the size of a field of a structure or union.
#[macro_export]
macro_rules! size_of_field {
    ($record:ty, $($field:ident).+) => {{
        fn size<R, F>(_: impl Fn(*const R) -> *const F) -> usize {
            size_of::<F>()
        }
        // SAFETY: the closure is never called: only its type is used.
        size(|record: *const $record| unsafe { &raw const (*record).$($field).+ })
    }};
}

/// Compares the value of a constant.
#[macro_export]
macro_rules! compare_constant {
    ($out:ident, $ours:path, $theirs:expr) => {
        $crate::compare!($out, stringify!($ours).to_owned(), $ours, ==, $theirs);
    };
}
