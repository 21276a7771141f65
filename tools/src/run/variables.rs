//! The environment of ranks on other hosts: the launcher's variables, the secret, and the address of the exchange.

use crate::system_error;
use std::ffi::OsString;
use std::fs::File;
use std::io::Read;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener};
use tieline::Error;
use tieline::job::server::Server;

pub(super) fn secret() -> Result<Option<String>, Error> {
    let secret = tieline::job::secret()?;
    Ok(Some(secret).filter(|secret| !secret.is_empty()))
}

/// Returns the TIELINE_ variables of the launcher's environment, except those that this launch replaces, and names with unusual
/// characters.
pub(super) fn forwarded() -> Vec<(String, OsString)> {
    const OWN: &[&str] =
        &["TIELINE_SECRET", "TIELINE_SECRET_FILE", "TIELINE_BOOTSTRAP", "TIELINE_RENDEZVOUS"];
    let mut variables: Vec<_> = std::env::vars_os()
        .filter_map(|(name, value)| Some((name.into_string().ok()?, value)))
        .filter(|(name, _)| name.starts_with("TIELINE_") && !OWN.contains(&name.as_str()))
        // The name becomes part of a script, so only these characters are allowed.
        .filter(|(name, _)| name.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_'))
        .collect();
    variables.sort();
    variables
}

/// Opens the exchange to other hosts. Its address lists the addresses that may lead to this host, or the one that is given.
pub(super) fn listen(
    server: &mut Server,
    address: Option<IpAddr>,
    secret: &str,
) -> Result<String, Error> {
    let failed = |e: std::io::Error| {
        let fix = "let --address name an address of this host, or leave it out";
        system_error("cannot open the exchange of the job", &e, fix)
    };
    let any = [IpAddr::from(Ipv6Addr::UNSPECIFIED), IpAddr::from(Ipv4Addr::UNSPECIFIED)];
    let wanted = address.as_ref().map_or(&any[..], std::slice::from_ref);
    let mut listener = Err(std::io::ErrorKind::AddrNotAvailable.into());
    for address in wanted {
        listener = listener.or_else(|_| TcpListener::bind((*address, 0)));
    }
    let listener = listener.map_err(failed)?;
    let port = listener.local_addr().map_err(failed)?.port();
    server.listen_tcp(listener, secret.as_bytes())?;
    let addresses = match address {
        Some(address) => vec![address],
        None => addresses()?,
    };
    let shown = addresses.iter().map(|ip| SocketAddr::from((*ip, port)).to_string());
    Ok(format!("tcp:{}", shown.collect::<Vec<_>>().join(",")))
}

/// Returns this host's addresses, or those of TIELINE_TCP_INTERFACES if it is set; a loopback address if there is no other.
fn addresses() -> Result<Vec<IpAddr>, Error> {
    let odd = |why: String| {
        crate::misuse("no address for the other hosts", why, "give one with --address")
    };
    let interfaces = std::env::var("TIELINE_TCP_INTERFACES").unwrap_or_default();
    let filter = tieline_net::Filter::parse(&interfaces).map_err(odd)?;
    let all = tieline_net::local_addresses(&filter).map_err(odd)?;
    let usable = |last_resort: bool| {
        // A link-local IPv6 address is only usable together with an interface of the other host.
        let all = all.iter().filter(move |a| !a.loopback && a.scope_id == 0);
        all.filter(move |a| a.last_resort == last_resort).map(|a| a.ip).collect::<Vec<_>>()
    };
    let found = [usable(false), usable(true)].into_iter().find(|list| !list.is_empty());
    Ok(found.unwrap_or_else(|| all.iter().map(|a| a.ip).collect()))
}

pub(super) fn random_hex() -> Result<String, Error> {
    let mut bytes = [0; 16];
    File::open("/dev/urandom")
        .and_then(|mut file| file.read_exact(&mut bytes))
        .map_err(|e| system_error("cannot make an identity for the job", &e, "see /dev/urandom"))?;
    Ok(bytes.iter().map(|b| format!("{b:02x}")).collect())
}
