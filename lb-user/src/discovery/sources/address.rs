//! Addresses as sources write them, and which of them a backend may have.

use std::net::{IpAddr, SocketAddr};

use crate::{config::check::unusable, discovery::Endpoint};

/// Reads `192.0.2.1`, `192.0.2.1:80`, `2001:db8::1`, `[2001:db8::1]` or `[2001:db8::1]:80`.
pub fn parse(text: &str) -> Result<(IpAddr, Option<u16>), String> {
    if let Ok(address) = text.parse::<IpAddr>() {
        return Ok((address, None));
    }
    if let Ok(socket) = text.parse::<SocketAddr>() {
        return Ok((socket.ip(), Some(socket.port())));
    }
    let bare = text
        .strip_prefix('[')
        .and_then(|text| text.strip_suffix(']'))
        .and_then(|text| text.parse().ok());
    match bare {
        Some(v6) => Ok((IpAddr::V6(v6), None)),
        None => Err("is no IP address, with or without a port; names are not resolved".to_owned()),
    }
}

/// A serving endpoint of weight 1 at an address that a backend may have.
pub fn endpoint(address: IpAddr, port: Option<u16>) -> Result<Endpoint, String> {
    let mut endpoint = Endpoint::new(address);
    if let Some((what, _)) = unusable(endpoint.address) {
        return Err(format!("the address is {what}"));
    }
    if let IpAddr::V4(v4) = endpoint.address
        && v4.is_link_local()
    {
        return Err("the address is link-local, which depends on an interface".to_owned());
    }
    if port == Some(0) {
        return Err("port 0 is none".to_owned());
    }
    endpoint.port = port;
    Ok(endpoint)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_read_with_and_without_ports() {
        let v4 = IpAddr::from([192, 0, 2, 1]);
        let v6: IpAddr = "2001:db8::1".parse().unwrap();
        for (text, expected) in [
            ("192.0.2.1", (v4, None)),
            ("192.0.2.1:80", (v4, Some(80))),
            ("2001:db8::1", (v6, None)),
            ("[2001:db8::1]", (v6, None)),
            ("[2001:db8::1]:443", (v6, Some(443))),
        ] {
            assert_eq!(parse(text), Ok(expected), "{text}");
        }
    }

    #[test]
    fn what_is_no_address_is_refused() {
        for text in [
            "",
            "web-1",
            "web-1:80",
            "192.0.2.1:",
            "192.0.2.1:65536",
            "192.0.2",
            "[192.0.2.1]",
            "fe80::1%eth0",
            " 192.0.2.1",
        ] {
            assert!(parse(text).is_err(), "{text:?}");
        }
    }

    #[test]
    fn what_no_backend_can_have_is_refused() {
        for (text, why) in [
            ("0.0.0.0", "unspecified"),
            ("::", "unspecified"),
            ("224.0.0.1", "multicast"),
            ("ff02::1", "multicast"),
            ("127.0.0.1", "loopback"),
            ("::1", "loopback"),
            ("::ffff:127.0.0.1", "loopback"),
            ("255.255.255.255", "broadcast"),
            ("fe80::1", "link-local"),
            ("169.254.169.254", "link-local"),
        ] {
            let said = endpoint(text.parse().unwrap(), None).unwrap_err();
            assert!(said.contains(why), "{text}: {said}");
        }
        assert!(endpoint([192, 0, 2, 1].into(), Some(0)).is_err());
    }

    #[test]
    fn an_ipv4_mapped_address_is_ipv4() {
        let endpoint = endpoint("::ffff:192.0.2.1".parse().unwrap(), None).unwrap();
        assert_eq!(endpoint.address, IpAddr::from([192, 0, 2, 1]));
    }
}
