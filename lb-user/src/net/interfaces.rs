//! This host's interfaces, their addresses, and the XDP programs on them.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::IpAddr,
};

use futures_util::TryStreamExt;
use netlink_packet_route::{
    address::{AddressAttribute, AddressMessage},
    link::{LinkAttribute, LinkFlags, LinkLayerType, LinkMessage, LinkXdp, XdpAttached},
};
use rtnetlink::{Handle, LinkMessageBuilder, LinkUnspec};

use super::{NetError, blocking, connect};

/// An interface as the kernel shows it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Interface {
    pub index: u32,
    pub name: String,
    pub mac: Option<[u8; 6]>,
    pub mtu: u32,
    /// Set up, and with a carrier.
    pub up: bool,
    pub ethernet: bool,
    pub loopback: bool,
    pub addresses: BTreeSet<IpAddr>,
    pub xdp: Option<AttachedXdp>,
}

/// An XDP program on an interface.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AttachedXdp {
    pub program_id: u32,
    pub native: bool,
}

/// What a configuration is checked against.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct HostFacts {
    /// By name.
    pub interfaces: BTreeMap<String, Interface>,
    pub addresses: BTreeSet<IpAddr>,
}

impl HostFacts {
    pub fn gather() -> Result<Self, NetError> {
        let interfaces = interfaces()?;
        let addresses = interfaces
            .values()
            .flat_map(|interface| interface.addresses.iter().copied())
            .collect();
        Ok(Self {
            interfaces,
            addresses,
        })
    }
}

/// Every interface of the caller's network namespace, by name.
pub fn interfaces() -> Result<BTreeMap<String, Interface>, NetError> {
    let by_index = blocking(async { list(&connect()?).await })?;
    Ok(by_index
        .into_values()
        .map(|interface| (interface.name.clone(), interface))
        .collect())
}

/// Removes an XDP program that was attached over netlink. One held by a link is refused by the kernel (EBUSY).
pub fn clear_xdp(index: u32, native: bool) -> Result<(), NetError> {
    /// `XDP_FLAGS_SKB_MODE` and `XDP_FLAGS_DRV_MODE` (include/uapi/linux/if_link.h).
    const FLAGS: [u32; 2] = [1 << 1, 1 << 2];
    let xdp = vec![LinkXdp::Fd(-1), LinkXdp::Flags(FLAGS[usize::from(native)])];
    let mut message = LinkMessageBuilder::<LinkUnspec>::default().index(index).build();
    message.attributes.push(LinkAttribute::Xdp(xdp));
    blocking(async {
        connect()?
            .link()
            .set(message)
            .execute()
            .await
            .map_err(|source| NetError::Request {
                what: format!("remove the XDP program from interface {index}"),
                source,
            })
    })
}

/// Every interface with its addresses, by index.
pub(super) async fn list(handle: &Handle) -> Result<BTreeMap<u32, Interface>, NetError> {
    let failed = |what: &str| {
        let what = what.to_owned();
        move |source| NetError::Request { what, source }
    };
    let links: Vec<LinkMessage> = handle
        .link()
        .get()
        .execute()
        .try_collect()
        .await
        .map_err(failed("list interfaces"))?;
    let mut by_index: BTreeMap<u32, Interface> = links
        .iter()
        .map(|link| (link.header.index, interface(link)))
        .collect();
    let addresses: Vec<AddressMessage> = handle
        .address()
        .get()
        .execute()
        .try_collect()
        .await
        .map_err(failed("list addresses"))?;
    for address in &addresses {
        if let Some(interface) = by_index.get_mut(&address.header.index) {
            interface.addresses.extend(local_address(address));
        }
    }
    Ok(by_index)
}

fn interface(link: &LinkMessage) -> Interface {
    let mut seen = Interface {
        index: link.header.index,
        name: String::new(),
        mac: None,
        mtu: 0,
        up: link.header.flags.contains(LinkFlags::Up | LinkFlags::LowerUp),
        ethernet: link.header.link_layer_type == LinkLayerType::Ether,
        loopback: link.header.flags.contains(LinkFlags::Loopback),
        addresses: BTreeSet::new(),
        xdp: None,
    };
    for attribute in &link.attributes {
        match attribute {
            LinkAttribute::IfName(name) => seen.name.clone_from(name),
            LinkAttribute::Mtu(mtu) => seen.mtu = *mtu,
            LinkAttribute::Address(bytes) => seen.mac = bytes.as_slice().try_into().ok(),
            LinkAttribute::Xdp(xdp) => seen.xdp = attached_xdp(xdp),
            _ => {}
        }
    }
    seen
}

fn attached_xdp(attributes: &[LinkXdp]) -> Option<AttachedXdp> {
    let mut program_id = None;
    let mut native = false;
    for attribute in attributes {
        match attribute {
            LinkXdp::ProgId(id) => program_id = program_id.or(Some(*id)),
            LinkXdp::DrvProgId(id) => (program_id, native) = (Some(*id), true),
            LinkXdp::SkbProgId(id) => program_id = program_id.or(Some(*id)),
            LinkXdp::Attached(attached) => native |= *attached == XdpAttached::Driver,
            _ => {}
        }
    }
    program_id
        .filter(|id| *id != 0)
        .map(|program_id| AttachedXdp { program_id, native })
}

/// `IFA_LOCAL` where there is one: `IFA_ADDRESS` is the peer on point-to-point interfaces.
pub(super) fn local_address(message: &AddressMessage) -> Option<IpAddr> {
    let find = |wanted: fn(&AddressAttribute) -> Option<IpAddr>| message.attributes.iter().find_map(wanted);
    find(|attribute| match attribute {
        AddressAttribute::Local(address) => Some(*address),
        _ => None,
    })
    .or_else(|| {
        find(|attribute| match attribute {
            AddressAttribute::Address(address) => Some(*address),
            _ => None,
        })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_mode_and_program_of_xdp_are_told_apart() {
        let native = [
            LinkXdp::Attached(XdpAttached::Driver),
            LinkXdp::ProgId(7),
            LinkXdp::DrvProgId(7),
        ];
        assert_eq!(
            attached_xdp(&native),
            Some(AttachedXdp {
                program_id: 7,
                native: true
            })
        );
        let generic = [
            LinkXdp::Attached(XdpAttached::SocketBuffer),
            LinkXdp::ProgId(8),
            LinkXdp::SkbProgId(8),
        ];
        assert_eq!(
            attached_xdp(&generic),
            Some(AttachedXdp {
                program_id: 8,
                native: false
            })
        );
        assert_eq!(attached_xdp(&[LinkXdp::Attached(XdpAttached::None)]), None);
    }

    #[test]
    fn the_host_has_a_loopback_interface() {
        let facts = HostFacts::gather().unwrap();
        assert!(facts.interfaces.values().any(|interface| interface.loopback));
    }
}
