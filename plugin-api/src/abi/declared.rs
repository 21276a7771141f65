//! The host's side of configuration variables: what a provider has declared, checked, and the values that it is given.

use super::shims::{read_params, write_attr};
use super::{ABI_MAJOR, ABI_MINOR, ConfigValue, ConfigVar, Host};
use crate::config::{Accepts, Value, shown};
use crate::{Failure, OK, Status, config_kind};
use core::ffi::c_void;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// A variable as a provider has declared it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Declared {
    /// `TIELINE_SHM_FASTBOX_SIZE`.
    pub name: String,
    /// The default, as a user would write it.
    pub default: String,
    /// What it does.
    pub doc: String,
    kind: u32,
    least: u64,
    most: u64,
    words: String,
}

impl Declared {
    /// A variable of this name.
    #[must_use]
    pub fn new(name: &str, default: &str, doc: &str, accepts: Accepts<'_>) -> Declared {
        let Accepts { kind, least, most, words } = accepts;
        let (name, default, doc) = (name.into(), default.into(), doc.into());
        Declared { name, default, doc, kind, least, most, words: words.into() }
    }

    /// What its value may be.
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

/// A text that somebody has set, and who: nobody, where it is a default that the host knows better.
pub type Set = (String, Option<String>);

/// The variables that one provider has declared, with their values.
#[derive(Debug, Default)]
pub struct Declarations(Mutex<Vec<(String, Box<Value>)>>);

impl Declarations {
    /// None yet.
    #[must_use]
    pub const fn new() -> Declarations {
        Declarations(Mutex::new(Vec::new()))
    }

    /// Takes a list in. `set` is told of each variable, and says what somebody has set it to; where it knows better what a
    /// variable is, it says so in its place.
    ///
    /// # Errors
    /// A list that makes no sense, and the first value that is none, in a sentence; the others are taken all the same.
    ///
    /// # Safety
    /// `vars` points to `count` records, each as long as the first one's `size`, with texts that can be read.
    pub unsafe fn declare(
        &self,
        vars: *const ConfigVar,
        count: usize,
        mut set: impl FnMut(&mut Declared) -> Option<Set>,
    ) -> Result<(), Failure> {
        if count > 0 && vars.is_null() {
            return Err(Failure::new(Status::Invalid, "the list of variables is null"));
        }
        let mut refused = Ok(());
        for at in 0..count {
            // SAFETY: the first record's size is the distance between records, says the caller.
            let mut declared = unsafe {
                let distance = *vars.cast::<usize>();
                read(vars.cast::<u8>().add(at * distance).cast())
            }?;
            let value = {
                let set = set(&mut declared);
                value_of(&declared, set)
            };
            let mut list = self.locked();
            match value {
                Ok(value) if list.iter().all(|(name, _)| *name != declared.name) => {
                    list.push((declared.name, Box::new(value)));
                }
                Ok(_) => {}
                Err(failure) => refused = refused.and(Err(failure)),
            }
        }
        refused
    }

    /// Writes the value of a variable.
    ///
    /// # Safety
    /// The name can be read; `out` is a record whose size is set.
    pub unsafe fn get(&self, name: *const u8, name_len: usize, out: *mut ConfigValue) -> i32 {
        if out.is_null() {
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
        // SAFETY: the caller's record. Its texts stay where they are until `clear`.
        unsafe { write_attr(out, &record) };
        OK
    }

    /// Lets go of all: no text that was handed out is valid any more.
    pub fn clear(&self) {
        self.locked().clear();
    }

    fn locked(&self) -> MutexGuard<'_, Vec<(String, Box<Value>)>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// One record of a list.
///
/// # Safety
/// As [`Declarations::declare`].
unsafe fn read(record: *const ConfigVar) -> Result<Declared, Failure> {
    // SAFETY: the caller's promise, for the record and for its texts.
    unsafe {
        let var = read_params(record, ConfigVar::empty())?;
        let declared = Declared {
            name: text(var.name, var.name_len)?,
            default: text(var.default_value, var.default_value_len)?,
            doc: text(var.doc, var.doc_len)?,
            kind: var.kind,
            least: var.least,
            most: var.most,
            words: text(var.words, var.words_len)?,
        };
        let refuse = |why: &str| {
            Err(Failure::new(Status::Invalid, format!("variable {:?}: {why}", declared.name)))
        };
        if !declared.name.starts_with("TIELINE_") {
            return refuse("its name does not begin with TIELINE_");
        }
        if !(config_kind::SIZE..=config_kind::LIST).contains(&var.kind) {
            return refuse(&format!("kind {} is not known", var.kind));
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
    // SAFETY: the caller's promise; no more than a page of it is taken.
    let bytes = unsafe { core::slice::from_raw_parts(at, len.min(4096)) };
    let text = core::str::from_utf8(bytes);
    text.map(str::to_owned).map_err(|_| Failure::new(Status::Invalid, "a text is not UTF-8"))
}

type Setter = dyn Fn(&str) -> Option<String> + Send + Sync;

/// What a host that is played has besides its table.
struct Played {
    declarations: Declarations,
    set: Box<Setter>,
}

/// The table of a host that is no more than its settings: for tests of a provider by its tables. Each call makes one, for
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
    // SAFETY: the context of a table of `played_host`, which is never freed; the provider's records.
    unsafe {
        let played = &*context.cast::<Played>();
        let set = |var: &mut Declared| Some(((played.set)(&var.name)?, Some("here".to_owned())));
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
}
