//! Provider `tcp`: messages, put and get over TCP.

mod config;
mod conn;
mod crossing;
mod domain;
mod endpoint;
mod frame;
mod interface;
mod link;
#[cfg(test)]
mod loopback_tests;
mod ops;
mod outbox;
mod provider;
mod receive;
mod regions;
mod ring;
#[cfg(test)]
mod session_tests;
mod stream;
mod sys;
mod window;

pub use provider::Tcp;
