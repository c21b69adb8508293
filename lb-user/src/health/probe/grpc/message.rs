//! `HealthCheckRequest` and `HealthCheckResponse` of grpc.health.v1, written and read by hand.
//!
//! Each has one field of number 1: `string service` there, `ServingStatus status` here. A message follows a flag for
//! compression and its length in four octets (gRPC over HTTP/2, Length-Prefixed-Message).

/// Octets before a message.
const PREFIX: usize = 5;
/// `service = 1`, length-delimited.
const SERVICE: u8 = 1 << 3 | 2;
/// `status = 1`, varint.
const STATUS: u64 = 1 << 3;
const SERVING: u64 = 1;

/// The request for a service, with its prefix; for the server as a whole when the name is empty.
pub fn request(service: &str) -> Vec<u8> {
    let mut message = Vec::new();
    if !service.is_empty() {
        message.push(SERVICE);
        push_varint(&mut message, service.len());
        message.extend_from_slice(service.as_bytes());
    }
    let length = u32::try_from(message.len()).unwrap_or(u32::MAX);
    let mut framed = vec![0];
    framed.extend_from_slice(&length.to_be_bytes());
    framed.append(&mut message);
    framed
}

/// Whether an answer with its prefix says SERVING; what else it says.
pub fn serving(framed: &[u8]) -> Result<(), String> {
    let garbled = || "the answer is no HealthCheckResponse".to_owned();
    let (prefix, message) = framed.split_at_checked(PREFIX).ok_or_else(garbled)?;
    if prefix[0] != 0 {
        return Err("the answer is compressed, which was not asked for".to_owned());
    }
    if prefix[1..] != u32::try_from(message.len()).unwrap_or(u32::MAX).to_be_bytes() {
        return Err(garbled());
    }
    match status(message).ok_or_else(garbled)? {
        SERVING => Ok(()),
        0 => Err("the server says UNKNOWN".to_owned()),
        2 => Err("the server says NOT_SERVING".to_owned()),
        3 => Err("the server says SERVICE_UNKNOWN".to_owned()),
        other => Err(format!("the server says {other}, which is no status")),
    }
}

/// The last status in the message; 0 unless there is one, as everywhere in proto3. `None` for what is no message.
fn status(mut message: &[u8]) -> Option<u64> {
    let mut status = 0;
    while !message.is_empty() {
        let tag = take_varint(&mut message)?;
        // Wire types (Protocol Buffers, Encoding): varint, 64 bits, length-delimited, 32 bits; groups are history.
        let skipped = match tag & 7 {
            0 => {
                let value = take_varint(&mut message)?;
                if tag == STATUS {
                    status = value;
                }
                0
            }
            1 => 8,
            2 => usize::try_from(take_varint(&mut message)?).ok()?,
            5 => 4,
            _ => return None,
        };
        message = message.get(skipped..)?;
    }
    Some(status)
}

fn push_varint(to: &mut Vec<u8>, mut value: usize) {
    while value >= 0x80 {
        to.push((value & 0x7f) as u8 | 0x80);
        value >>= 7;
    }
    to.push(value as u8);
}

/// At most ten octets.
fn take_varint(from: &mut &[u8]) -> Option<u64> {
    let mut value = 0;
    for shift in (0..70).step_by(7) {
        let (&octet, rest) = from.split_first()?;
        *from = rest;
        value |= u64::from(octet & 0x7f).checked_shl(shift).unwrap_or(0);
        if octet & 0x80 == 0 {
            return Some(value);
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn framed(message: &[u8]) -> Vec<u8> {
        let mut framed = vec![0];
        framed.extend_from_slice(&(message.len() as u32).to_be_bytes());
        framed.extend_from_slice(message);
        framed
    }

    #[test]
    fn requests_are_as_protoc_writes_them() {
        assert_eq!(request(""), [0, 0, 0, 0, 0]);
        assert_eq!(request("shop"), *b"\0\0\0\0\x06\x0a\x04shop");
        let long = request(&"x".repeat(300));
        assert_eq!(long[..8], [0, 0, 0, 1, 47, 0x0a, 0xac, 0x02]);
        assert_eq!(long.len(), 5 + 3 + 300);
    }

    #[test]
    fn only_serving_is_well() {
        for (message, said) in [
            (&[8, 1][..], None),
            (&[8, 2, 8, 1], None),
            // Fields that are not known are passed over.
            (
                &[18, 2, 8, 2, 8, 1, 29, 1, 2, 3, 4, 33, 1, 2, 3, 4, 5, 6, 7, 8],
                None,
            ),
            (&[], Some("the server says UNKNOWN")),
            (&[8, 0], Some("the server says UNKNOWN")),
            (&[8, 2], Some("the server says NOT_SERVING")),
            (&[8, 3], Some("the server says SERVICE_UNKNOWN")),
            (&[8, 0x81, 1], Some("the server says 129, which is no status")),
            (&[8], Some("the answer is no HealthCheckResponse")),
            (&[18, 9, 1], Some("the answer is no HealthCheckResponse")),
            (&[11], Some("the answer is no HealthCheckResponse")),
            (&[0xff; 40], Some("the answer is no HealthCheckResponse")),
        ] {
            assert_eq!(serving(&framed(message)).err().as_deref(), said, "{message:?}");
        }
        assert!(serving(&[]).is_err());
        assert!(serving(&[0, 0, 0, 0, 3, 8, 1]).is_err());
        assert!(serving(&[1, 0, 0, 0, 2, 8, 1]).is_err_and(|said| said.contains("compressed")));
    }

    proptest! {
        #[test]
        fn nothing_from_the_wire_panics(octets in prop::collection::vec(any::<u8>(), 0..64)) {
            let _ = serving(&octets);
            let _ = serving(&framed(&octets));
        }
    }
}
