//! `libtieline_tcp_connect.so`: the provider tcp-connect as a file that the core finds at run time.

use tieline_plugin_api::export_provider;

export_provider!(
    tieline_provider_tcp_connect::TcpConnect,
    name = "tcp-connect",
    version = env!("CARGO_PKG_VERSION")
);
