//! Module `rc`: reliable connections. The module connects to an endpoint and offers messages, put, get and two atomics.

mod address;
#[cfg(test)]
mod any_order_tests;
#[cfg(test)]
mod attributes_tests;
#[cfg(test)]
mod close_tests;
mod connection;
mod credits;
#[cfg(test)]
mod drain_tests;
mod endpoint;
#[cfg(test)]
mod first_use_tests;
#[cfg(test)]
mod hardware_tests;
mod interface;
#[cfg(test)]
mod late_tests;
#[cfg(test)]
mod limits_tests;
#[cfg(test)]
mod list_tests;
#[cfg(test)]
mod moved_tests;
#[cfg(test)]
mod notify_tests;
#[cfg(test)]
mod posting_tests;
mod queue;
mod receives;
#[cfg(test)]
mod receives_tests;
#[cfg(test)]
mod short_put_tests;
mod state;
#[cfg(test)]
mod tests;
mod wire;

pub(crate) use address::{ENDPOINT_ADDRESS_LEN, INTERFACE_ADDRESS_LEN};
pub use endpoint::RcEndpoint;
pub use interface::RcInterface;
