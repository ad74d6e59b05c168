//! Addresses as users write them: `HOST:PORT`.

use std::fmt;
use std::str::FromStr;

use serde::Deserialize;

/// A host and a port. The host is a name or an IP address; one of IPv6 is in brackets. A name is
/// resolved for each use.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(try_from = "String")]
pub(crate) struct HostPort(String);

impl HostPort {
    pub(crate) fn as_str(&self) -> &str {
        &self.0
    }
}

impl FromStr for HostPort {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let refused = |remedy: &str| Err(format!("{text:?} is no address: {remedy}"));
        let Some((host, port)) = text.rsplit_once(':') else {
            return refused("write HOST:PORT, for example 127.0.0.1:7000");
        };
        if port.parse::<u16>().is_err() {
            return refused("the port after the last colon is a number from 0 to 65535");
        }
        let in_brackets = host.strip_prefix('[').and_then(|host| host.strip_suffix(']'));
        if in_brackets.is_none() && host.contains([':', '[', ']']) {
            return refused("put an IPv6 address in brackets, for example [::1]:7000");
        }
        if host.is_empty() || host.contains(|c: char| c.is_whitespace() || c.is_control()) {
            return refused("the host before the colon is a name or an IP address");
        }
        Ok(Self(text.to_ascii_lowercase()))
    }
}

impl TryFrom<String> for HostPort {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        text.parse()
    }
}

impl fmt::Display for HostPort {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hosts_and_ports_are_read() {
        for text in ["127.0.0.1:7000", "localhost:0", "[::1]:65535", "db.example:5432"] {
            assert_eq!(text.parse::<HostPort>().expect(text).as_str(), text);
        }
        assert_eq!("DB.Example:1".parse::<HostPort>().expect("an address").as_str(), "db.example:1");
    }

    #[test]
    fn other_texts_are_refused_with_a_remedy() {
        for (text, remedy) in [
            ("localhost", "HOST:PORT"),
            ("localhost:", "65535"),
            ("localhost:65536", "65535"),
            ("localhost:http", "65535"),
            ("::1:7000", "brackets"),
            ("[::1:7000", "brackets"),
            (":7000", "before the colon"),
            ("a b:7000", "before the colon"),
        ] {
            let error = text.parse::<HostPort>().expect_err(text);
            assert!(error.contains(remedy), "{error}");
        }
    }
}
