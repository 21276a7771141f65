//! The C library: `tieline.h` is made from this crate, `libtieline.so.0` and `libtieline.a` are linked from it.
//!
//! ```c
//! struct tieline_worker *worker;
//! int32_t status = tieline_worker_open(context, NULL, &worker);
//! if (status < 0) fprintf(stderr, "%s\n", tieline_error_text());
//! ```
//!
//! It stands on the public interface of the crate `tieline`, and on what that has for it beside (`core/src/endpoint/at_once.rs`: calls
//! that do not panic), and adds what C lacks. [docs/c.md](../../../docs/c.md) has the rules as a C programmer meets them; this is how
//! they are kept:
//!
//! * **A handle is no address.** Its bits are a place in a table, the kind of the object and how often the place was used
//!   (`abi/table.rs`). Nothing that the caller gives is followed before the place says the same three things, so a handle that was
//!   closed, is of another kind, or is no handle at all is an error and never an access to freed memory.
//! * **A worker has a mark** (`abi/enter.rs`): who is in a call of it. It is a word that is read and written without a locked
//!   instruction. Another thread that comes meanwhile is told `Busy`; a handler, which comes from inside, is let in.
//! * **Nothing unwinds into C.** Every entry catches a panic, but around what cannot panic (`Mark::at_once`), ends the object that it was
//!   in (its mark says so for ever), and returns `ProviderFailed` with the panic's words.
//! * **Records grow at their ends** (`abi/records.rs`), by the rules of the provider ABI.
//! * **Errors stay in the thread** (`abi/error.rs`) until the next one, as values; their C strings are made when somebody asks.
//!
//! `unsafe` code is in the folder `abi` alone: every function there that is exported takes addresses from the caller, who promises
//! what the header says of them.

pub mod abi;
