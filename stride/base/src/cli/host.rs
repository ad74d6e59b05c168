//! The server's address on the command line.

use std::net::Ipv6Addr;

/// The text names a port beside the host, which has an option.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("it has a port in it, which is given by an option: `{host} -p {port}`")]
pub(super) struct PortBesideHostError {
    host: String,
    port: String,
}

/// Takes a host name or an address, an IPv6 address with or without brackets.
pub(super) fn server(text: &str) -> Result<String, PortBesideHostError> {
    let Some((host, port)) = text.rsplit_once(':') else { return Ok(text.to_owned()) };
    let without_interface = text.split('%').next().unwrap_or(text);
    let is_address = without_interface.parse::<Ipv6Addr>().is_ok() || text.ends_with(']');
    if is_address || port.is_empty() || !port.bytes().all(|byte| byte.is_ascii_digit()) {
        return Ok(text.to_owned());
    }
    Err(PortBesideHostError { host: host.to_owned(), port: port.to_owned() })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_port_beside_the_host_is_refused_with_the_option() {
        for (text, words) in [
            ("localhost:4000", "`localhost -p 4000`"),
            ("192.0.2.1:18515", "`192.0.2.1 -p 18515`"),
            ("[::1]:4000", "`[::1] -p 4000`"),
        ] {
            let error = server(text).unwrap_err().to_string();
            assert!(error.contains(words), "{error}");
        }
    }

    #[test]
    fn hosts_and_addresses_are_taken() {
        for text in ["localhost", "192.0.2.1", "::1", "[::1]", "fe80::1%eth0", "2001:db8::4000"] {
            assert_eq!(server(text).as_deref(), Ok(text));
        }
    }
}
