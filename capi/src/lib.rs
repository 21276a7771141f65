//! The C library. `tieline.h` is generated from this crate; `libtieline.so.0` and `libtieline.a` contain this crate.
//!
//! ```c
//! struct tieline_worker *worker;
//! int32_t status = tieline_worker_open(context, &worker);
//! if (status < 0) fprintf(stderr, "%s\n", tieline_error_text());
//! ```
//!
//! This crate uses the public interface of the crate `tieline`, plus calls of that crate that cannot panic
//! (`core/src/endpoint/at_once.rs`), and adds handles, error records and panic guards for C. [docs/c.md](../../../docs/c.md) states
//! the rules for the C programmer. These rules are implemented as follows:
//!
//! * **A handle is not an address.** Its bits are a place in a table, the kind of the object, and a use count of the place
//!   (`abi/table.rs`). A handle is followed only if the place holds the same three values. A closed handle, a handle of another
//!   kind, or bits that are no handle are therefore an error and not an access to freed memory. The use count of a place wraps
//!   after 2^32 objects.
//! * **A worker has a mark** (`abi/enter.rs`) that records which thread is in a call of the worker. The mark is a word that is read
//!   and written without a locked instruction. Another thread that calls during a call gets `Busy`; two calls that begin at the
//!   same instant may both be admitted. A nested call from a handler is admitted.
//! * **No panic unwinds into C.** Calls of the core run under a guard that catches panics, except code that cannot panic
//!   (`Mark::at_once`). Functions that only read a table or the thread's error have no guard. After a panic, the call returns
//!   `ProviderFailed` with the panic's text. A panic under a worker's mark also ends that worker: the mark stays `BROKEN`.
//! * **Records with a size grow at their ends** (`abi/records.rs`), by the rules of the provider ABI.
//! * **Errors stay in the thread** (`abi/error.rs`) until the thread's next error. Errors are stored as values; their C strings are
//!   made on request.
//!
//! `unsafe` code is confined to the folder `abi`. Exported functions there take addresses from the caller, who guarantees the
//! conditions of `abi/mod.rs` for these addresses.

pub mod abi;
