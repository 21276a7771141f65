//! A libfabric provider over Tieline: programs that use libfabric, for example every MPI, run over Tieline without a change.
//!
//! libfabric loads the shared object from a directory of `FI_PROVIDER_PATH` and calls its only export, `fi_prov_ini`.
//! docs/mpi.md describes how to switch it on.
//!
//! | libfabric | Tieline |
//! |---|---|
//! | domain | context |
//! | endpoint | worker; its address is the worker's name, at most 48 bytes |
//! | address vector | names, or hosts and ports (`place`); an endpoint resolves one at the first operation to it, and operations wait for the answer |
//! | send, receive | a message; the receiver matches it (`receive`), and fetches a rendezvous message into the buffer of the receive |
//! | tag | the 8-byte header of a message; the crate `tieline-tag` matches it |
//! | key | a number; the first operation with it asks the owner for the remote key (`keys`) |
//! | completion queue | operations that Tieline reports with `Worker::track`, or that have completed in their call |
//!
//! The modules of `abi` are the functions that libfabric calls. They turn addresses into safe values, take the domain's lock, and
//! catch panics. A panic returns `-FI_EOTHER`, and so does every later call of the domain. All other modules are safe code. They run
//! under the lock of their domain, so they use cells and reference counts without atomics.

mod abi;
mod address;
mod atomics;
mod counter;
mod domain;
mod endpoint;
mod flow;
mod keys;
mod offer;
mod ops;
mod peers;
mod place;
mod progress;
mod queue;
mod receive;
mod regions;
mod rma;
mod send;
mod slab;
mod status;
mod tagged;
