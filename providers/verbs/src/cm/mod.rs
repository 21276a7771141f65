//! The connection-only module `rdmacm`: datagrams that form connections, over connections of the RDMA connection manager.

#![allow(dead_code)] // the module is being built

mod abi;
#[cfg(test)]
mod layout_tests;
mod load;
