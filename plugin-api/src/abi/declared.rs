//! The host's side of configuration variables: checks a provider's declarations, returns the values, and plays a host for tests.

use super::shims::{read_params_of, write_attr};
use super::{ABI_MAJOR, ABI_MINOR, ConfigValue, ConfigVar, Host};
use crate::config::{Accepts, Value, shown};
use crate::{Failure, OK, Status, config_kind};
use core::ffi::c_void;
use core::mem::offset_of;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// A variable as a provider has declared it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Declared {
    /// The variable's name: `TIELINE_SHM_FASTBOX_SIZE`.
    pub name: String,
    /// The default, as a user would write it.
    pub default: String,
    /// The variable's effect.
    pub doc: String,
    kind: u32,
    least: u64,
    most: u64,
    words: String,
}

impl Declared {
    /// Makes a variable with this name.
    #[must_use]
    pub fn new(name: &str, default: &str, doc: &str, accepts: Accepts<'_>) -> Declared {
        let Accepts { kind, least, most, words } = accepts;
        let (name, default, doc) = (name.into(), default.into(), doc.into());
        Declared { name, default, doc, kind, least, most, words: words.into() }
    }

    /// Returns the variable's accepted values.
    #[must_use]
    pub fn accepts(&self) -> Accepts<'_> {
        Accepts { kind: self.kind, least: self.least, most: self.most, words: &self.words }
    }
}

impl From<&crate::ConfigDoc> for Declared {
    fn from(doc: &crate::ConfigDoc) -> Declared {
        Declared::new(doc.name, doc.default, doc.doc, doc.accepts)
    }
}

/// A text that was set, and its origin. The origin is `None` if the text is the host's own default.
pub type Set = (String, Option<String>);

/// The variables that one provider has declared, with their values.
#[derive(Debug, Default)]
pub struct Declarations(Mutex<Vec<(String, Box<Value>)>>);

impl Declarations {
    /// Makes a list without variables.
    #[must_use]
    pub const fn new() -> Declarations {
        Declarations(Mutex::new(Vec::new()))
    }

    /// Adds a list of variables. `set` gets each variable and returns the text that the variable is set to. `set` may replace the
    /// declaration by the host's own. If `set` fails, no variable is added.
    ///
    /// # Errors
    /// `INVALID`: the first value that is not valid, in a sentence; the variables with valid values are still added.
    /// `UNSUPPORTED_PARAM`: the list has something that only a newer minor defines. `PROVIDER_FAILED`: the list is malformed or
    /// contradicts itself. In these two cases no variable is added. The error of `set` is returned unchanged.
    ///
    /// # Safety
    /// `vars` points to `count` records, each as long as the first one's `size`, with texts that can be read.
    pub unsafe fn declare(
        &self,
        vars: *const ConfigVar,
        count: usize,
        mut set: impl FnMut(&mut Declared) -> Result<Option<Set>, Failure>,
    ) -> Result<(), Failure> {
        if count == 0 {
            return Ok(());
        }
        if vars.is_null() || !vars.is_aligned() || count > MOST_RECORDS {
            return Err(nonsense("the list of variables is null, at an odd address or too long"));
        }
        // SAFETY: the list has a first record, whose first field is its size.
        let distance = unsafe { *vars.cast::<usize>() };
        if !(LEAST_RECORD..=MOST_RECORD).contains(&distance)
            || distance % align_of::<ConfigVar>() != 0
        {
            let why = format!("a record of a variable says that it is {distance} bytes long");
            return Err(nonsense(&why));
        }
        // The whole list is checked before any value: a provider's error must not be reported as the user's.
        let mut declared: Vec<Declared> = Vec::new();
        for at in 0..count {
            // SAFETY: the caller guarantees that the first record's size is the distance between records; both are bounded.
            let var = unsafe { read(vars.cast::<u8>().add(at * distance).cast(), distance) }?;
            let taken = self.locked().iter().any(|(name, _)| *name == var.name);
            if taken || declared.iter().any(|other| other.name == var.name) {
                return Err(nonsense(&format!("variable {:?} is declared twice", var.name)));
            }
            declared.push(var);
        }
        let mut refused = Ok(());
        let told = declared.into_iter().map(|mut var| set(&mut var).map(|set| (var, set)));
        for (var, set) in told.collect::<Result<Vec<_>, Failure>>()? {
            match value_of(&var, set) {
                Ok(value) => self.locked().push((var.name, Box::new(value))),
                Err(failure) => refused = refused.and(Err(failure)),
            }
        }
        refused
    }

    /// Writes the value of a variable.
    ///
    /// # Safety
    /// The name can be read; `out` is a record of the length that its size field states.
    pub unsafe fn get(&self, name: *const u8, name_len: usize, out: *mut ConfigValue) -> i32 {
        // SAFETY: the caller guarantees the record, whose first field is its size.
        if out.is_null() || unsafe { *out.cast::<usize>() } < LEAST_VALUE {
            return Status::Invalid as i32;
        }
        // SAFETY: the caller's promise.
        let Ok(name) = (unsafe { text(name, name_len) }) else { return Status::Invalid as i32 };
        let list = self.locked();
        let Some((_, value)) = list.iter().find(|(known, _)| *known == name) else {
            return Status::NoDevice as i32;
        };
        let record = ConfigValue {
            size: size_of::<ConfigValue>(),
            number: value.number,
            word: value.word,
            is_default: u32::from(value.is_default),
            text: value.text.as_ptr(),
            text_len: value.text.len(),
            origin: value.origin.as_ptr(),
            origin_len: value.origin.len(),
        };
        // SAFETY: the caller guarantees the record. The value's texts stay at their addresses until `clear`.
        unsafe { write_attr(out, &record) };
        OK
    }

    /// Removes all variables. Texts that `get` returned become invalid.
    pub fn clear(&self) {
        self.locked().clear();
    }

    fn locked(&self) -> MutexGuard<'_, Vec<(String, Box<Value>)>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The maximum number of variables in a list.
const MOST_RECORDS: usize = 4096;
/// The maximum number of bytes in a record.
const MOST_RECORD: usize = 4096;
/// The maximum number of bytes in a text.
const MOST_TEXT: usize = 4096;
/// The length of the record of minor 0: none is shorter.
const LEAST_RECORD: usize = offset_of!(ConfigVar, words_len) + size_of::<usize>();

/// The smallest length of a record for a value.
const LEAST_VALUE: usize = offset_of!(ConfigValue, origin_len) + size_of::<usize>();

/// Returns the failure of a list that is malformed or contradicts itself.
fn nonsense(why: &str) -> Failure {
    Failure::new(Status::ProviderFailed, why)
}

/// Reads one record of a list whose records are `size` bytes long.
///
/// # Safety
/// As [`Declarations::declare`].
unsafe fn read(record: *const ConfigVar, size: usize) -> Result<Declared, Failure> {
    // SAFETY: the caller guarantees the record and its texts.
    unsafe {
        let var = read_params_of(record, size, ConfigVar::empty()).map_err(|failure| {
            let why = "the record of a variable has a field that this core does not know, and that is not zero";
            Failure::new(failure.status, why)
        })?;
        let declared = Declared {
            name: text(var.name, var.name_len)?,
            default: text(var.default_value, var.default_value_len)?,
            doc: text(var.doc, var.doc_len)?,
            kind: var.kind,
            least: var.least,
            most: var.most,
            words: text(var.words, var.words_len)?,
        };
        let refuse = |why: &str| Err(nonsense(&format!("variable {:?}: {why}", declared.name)));
        if !declared.name.starts_with("TIELINE_") {
            return refuse("its name does not begin with TIELINE_");
        }
        if !(config_kind::SIZE..=config_kind::LIST).contains(&var.kind) {
            let why = format!("variable {:?}: kind {} is not known", declared.name, var.kind);
            return Err(Failure::new(Status::UnsupportedParam, why));
        }
        if var.most != 0 && var.least > var.most {
            return refuse("its least number is greater than its greatest");
        }
        if declared.accepts().read(&declared.default).is_none() {
            return refuse("it does not accept its own default");
        }
        Ok(declared)
    }
}

fn value_of(declared: &Declared, set: Option<Set>) -> Result<Value, Failure> {
    let set = set.filter(|(text, _)| !text.trim().is_empty());
    let (text, origin) = set.unwrap_or_else(|| (declared.default.clone(), None));
    let is_default = origin.is_none();
    let origin = origin.unwrap_or_else(|| "default".into());
    let Some(value) = declared.accepts().value(&text) else {
        let (name, accepted) = (&declared.name, declared.accepts().accepted());
        let text = shown(name, &text);
        let why = format!("{name}={text} ({origin}) is not valid: {accepted}");
        return Err(Failure::new(Status::Invalid, why));
    };
    Ok(Value { origin, is_default, ..value })
}

/// # Safety
/// `at` is null or readable for `len` bytes.
unsafe fn text(at: *const u8, len: usize) -> Result<String, Failure> {
    if at.is_null() || len == 0 {
        return Ok(String::new());
    }
    // SAFETY: the caller guarantees the text; at most `MOST_TEXT` bytes of it are read.
    let bytes = unsafe { core::slice::from_raw_parts(at, len.min(MOST_TEXT)) };
    if len > MOST_TEXT {
        let begin = String::from_utf8_lossy(&bytes[..32]);
        let why = format!("the text that begins {begin:?} is longer than {MOST_TEXT} bytes");
        return Err(nonsense(&why));
    }
    let text = core::str::from_utf8(bytes);
    text.map(str::to_owned).map_err(|_| nonsense("a text is not UTF-8"))
}

type Setter = dyn Fn(&str) -> Option<String> + Send + Sync;

/// The state of a played host besides its table.
struct Played {
    declarations: Declarations,
    set: Box<Setter>,
}

/// Returns the table of a played host that has only settings, for tests of a provider through its tables. Each call makes one, for
/// the life of the process.
pub fn played_host(set: impl Fn(&str) -> Option<String> + Send + Sync + 'static) -> Host {
    let played =
        Box::leak(Box::new(Played { declarations: Declarations::new(), set: Box::new(set) }));
    Host {
        abi_major: u32::from(ABI_MAJOR),
        abi_minor: u32::from(ABI_MINOR),
        context: core::ptr::from_mut(played).cast(),
        config_declare: Some(played_declare),
        config_get: Some(played_get),
        ..Host::empty()
    }
}

unsafe extern "C" fn played_declare(
    context: *mut c_void,
    vars: *const ConfigVar,
    count: usize,
) -> i32 {
    // SAFETY: the context belongs to a table of `played_host`, which is never freed; the records are the provider's.
    unsafe {
        let played = &*context.cast::<Played>();
        let set = |var: &mut Declared| {
            Ok((played.set)(&var.name).map(|text| (text, Some("here".to_owned()))))
        };
        played.declarations.declare(vars, count, set).map_or_else(|f| f.status as i32, |()| OK)
    }
}

unsafe extern "C" fn played_get(
    context: *mut c_void,
    name: *const u8,
    name_len: usize,
    out: *mut ConfigValue,
) -> i32 {
    // SAFETY: as played_declare.
    unsafe { (*context.cast::<Played>()).declarations.get(name, name_len, out) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_word_is_handed_out_as_it_was_declared() {
        let doc = crate::ConfigDoc::text("TIELINE_X", "auto", "").one_of("auto|off");
        let set = Some(("OFF ".into(), Some("environment".into())));
        let value = value_of(&Declared::from(&doc), set).unwrap();
        assert_eq!((&value.text[..], value.word), ("off", 2));
    }

    fn list<const N: usize>(docs: [crate::ConfigDoc; N]) -> [ConfigVar; N] {
        docs.map(|doc| super::super::host::record(&doc))
    }

    /// Declares a list to a host in which every variable is set to `set`.
    fn declare(vars: &[ConfigVar], set: &str) -> Result<(), (Status, String)> {
        let declarations = Declarations::new();
        let set = |_: &mut Declared| Ok(Some((set.into(), Some("environment".into()))));
        // SAFETY: the records and their texts live for the call.
        let declared = unsafe { declarations.declare(vars.as_ptr(), vars.len(), set) };
        declared.map_err(|failure| (failure.status, failure.text))
    }

    #[test]
    fn invalid_declaration_is_reported_before_invalid_value() {
        let doc = |name| crate::ConfigDoc::count(name, "4", "");
        let nonsense = |vars: &[ConfigVar], words: &str| {
            // The value that is set is not valid either. The error of the list comes first.
            let (status, text) = declare(vars, "no number").unwrap_err();
            assert!(status == Status::ProviderFailed && text.contains(words), "{status:?} {text}");
        };
        nonsense(&list([doc("TIELINE_A").between(5, 9)]), "its own default");
        nonsense(&list([doc("TIELINE_A").between(9, 5)]), "greater than its greatest");
        nonsense(&list([doc("TIELINE_A"), doc("TIELINE_A")]), "declared twice");
        nonsense(&list([doc("TIELINE_A"), doc("OTHER")]), "does not begin with TIELINE_");
        let long: &'static str = "TIELINE_LONG_".repeat(400).leak();
        nonsense(&list([doc(long)]), "TIELINE_LONG_");
        let mut newer = list([doc("TIELINE_A")]);
        newer[0].kind = 77;
        assert_eq!(declare(&newer, "4").unwrap_err().0, Status::UnsupportedParam);
        let refused = declare(&list([doc("TIELINE_A")]), "no number").unwrap_err();
        assert_eq!(refused.0, Status::Invalid);
    }

    #[test]
    fn records_lie_as_far_apart_as_the_first_one_is_long() {
        let mut vars = list([
            crate::ConfigDoc::count("TIELINE_A", "4", ""),
            crate::ConfigDoc::count("TIELINE_B", "4", ""),
        ]);
        vars[1].size = 0;
        assert_eq!(declare(&vars, "5"), Ok(()), "only the first one's size counts");
        for size in [0, 8, LEAST_RECORD - 8, LEAST_RECORD + 1, 1 << 40] {
            vars[0].size = size;
            let (status, text) = declare(&vars, "5").unwrap_err();
            assert!(text.contains(&format!("{size} bytes long")), "{text}");
            assert_eq!(status, Status::ProviderFailed);
        }
        let declarations = Declarations::new();
        // SAFETY: the function does not read a list that is too long.
        let refused = unsafe { declarations.declare(vars.as_ptr(), usize::MAX, |_| Ok(None)) };
        assert!(refused.unwrap_err().text.contains("too long"));
    }

    #[test]
    fn a_value_goes_only_where_there_is_room_for_it() {
        let declarations = Declarations::new();
        let vars = list([crate::ConfigDoc::count("TIELINE_A", "4", "")]);
        // SAFETY: the record and its text live for the call.
        unsafe { declarations.declare(vars.as_ptr(), 1, |_| Ok(None)) }.unwrap();
        let get = |size| {
            let mut out = ConfigValue { size, ..ConfigValue::empty() };
            // SAFETY: the name can be read, and the record is no shorter than its size states.
            (unsafe { declarations.get("TIELINE_A".as_ptr(), 9, &mut out) }, out.number)
        };
        assert_eq!(get(size_of::<ConfigValue>()), (OK, 4));
        assert_eq!([get(0), get(8), get(48)], [(Status::Invalid as i32, 0); 3]);
    }

    #[test]
    fn a_secret_is_in_no_sentence() {
        let doc = crate::ConfigDoc::text("TIELINE_SECRET", "", "").one_of("a|b");
        let set = Some(("open sesame".into(), Some("environment".into())));
        let failure = value_of(&Declared::from(&doc), set).unwrap_err();
        assert!(failure.text.starts_with("TIELINE_SECRET=(set) (environment) is"), "{failure:?}");
        assert!(!doc.read("open sesame").unwrap_err().text.contains("sesame"));
    }

    #[test]
    fn an_empty_text_counts_as_not_set() {
        let declared = Declared::from(&crate::ConfigDoc::size("TIELINE_X", "4k", "").between(1, 0));
        let value = value_of(&declared, Some((" ".into(), Some("environment".into())))).unwrap();
        assert_eq!((value.number, value.is_default, &value.origin[..]), (4096, true, "default"));
    }

    #[test]
    fn a_text_is_as_long_as_may_be_and_no_longer() {
        let of = |len: usize| {
            let bytes = vec![b'x'; len];
            // SAFETY: `len` bytes can be read.
            unsafe { text(bytes.as_ptr(), len) }.map_err(|failure| failure.text)
        };
        assert_eq!(of(MOST_TEXT), Ok("x".repeat(MOST_TEXT)));
        let begin = "x".repeat(32);
        let words = format!("the text that begins \"{begin}\" is longer than 4096 bytes");
        assert_eq!(of(MOST_TEXT + 1), Err(words));
        assert_eq!(of(0), Ok(String::new()));
        // SAFETY: nothing is read at null; the other bytes can be read.
        let (null, odd) = unsafe { (text(core::ptr::null(), 9), text([0xff].as_ptr(), 1)) };
        assert_eq!(null.map_err(|failure| failure.text), Ok(String::new()));
        assert_eq!(odd.unwrap_err().text, "a text is not UTF-8");
    }

    #[test]
    fn first_invalid_value_is_reported_and_valid_ones_are_kept() {
        let declarations = Declarations::new();
        let doc = |name| crate::ConfigDoc::count(name, "4", "");
        let vars = list([doc("TIELINE_A"), doc("TIELINE_B"), doc("TIELINE_C")]);
        let set = |var: &mut Declared| {
            let text = if var.name == "TIELINE_B" { "5" } else { "none" };
            Ok(Some((text.to_owned(), Some("program".to_owned()))))
        };
        // SAFETY: the records and their texts live for the call.
        let failure = unsafe { declarations.declare(vars.as_ptr(), 3, set) }.unwrap_err();
        let words =
            "TIELINE_A=none (program) is not valid: a count is a whole number such as 16, or inf";
        assert_eq!((failure.status, &*failure.text), (Status::Invalid, words));
        let get = |name: &str| {
            let mut out = ConfigValue { size: size_of::<ConfigValue>(), ..ConfigValue::empty() };
            // SAFETY: the name can be read, and the record has the size that it states.
            let code = unsafe { declarations.get(name.as_ptr(), name.len(), &mut out) };
            (code, out.number, out.is_default)
        };
        assert_eq!(get("TIELINE_B"), (OK, 5, 0));
        assert_eq!(get("TIELINE_A").0, Status::NoDevice as i32);
        // SAFETY: no list is read.
        assert!(unsafe { declarations.declare(core::ptr::null(), 0, |_| Ok(None)) }.is_ok());
        // SAFETY: a null list is refused unread.
        let null = unsafe { declarations.declare(core::ptr::null(), 1, |_| Ok(None)) };
        assert!(null.unwrap_err().text.contains("null"));
        // A second list cannot declare a variable again.
        // SAFETY: records with their texts.
        let twice = unsafe { declarations.declare(vars[1..].as_ptr(), 1, |_| Ok(None)) };
        assert_eq!(twice.unwrap_err().text, "variable \"TIELINE_B\" is declared twice");
        declarations.clear();
        assert_eq!(get("TIELINE_B").0, Status::NoDevice as i32);
    }

    #[test]
    fn a_host_that_is_played_says_what_was_set_and_by_whom() {
        let host = played_host(|name| (name == "TIELINE_A").then(|| "7".to_owned()));
        let doc = |name| crate::ConfigDoc::count(name, "4", "");
        let vars = list([doc("TIELINE_A"), doc("TIELINE_B")]);
        let (declare, get) = (host.config_declare.unwrap(), host.config_get.unwrap());
        // SAFETY: the context belongs to the table, and the records and their texts live for the call.
        assert_eq!(unsafe { declare(host.context, vars.as_ptr(), 2) }, OK);
        let get = |name: &str| {
            let mut out = ConfigValue { size: size_of::<ConfigValue>(), ..ConfigValue::empty() };
            // SAFETY: the name can be read, and the record has the size that it states.
            let code = unsafe { get(host.context, name.as_ptr(), name.len(), &mut out) };
            (code, out.number, out.is_default)
        };
        assert_eq!((get("TIELINE_A"), get("TIELINE_B")), ((OK, 7, 0), (OK, 4, 1)));
        let mut newer = list([doc("TIELINE_C")]);
        newer[0].kind = 77;
        // SAFETY: the context belongs to the table, and the records and their texts live for the call.
        let code = unsafe { declare(host.context, newer.as_ptr(), 1) };
        assert_eq!(code, Status::UnsupportedParam as i32);
    }
}
