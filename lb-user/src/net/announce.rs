//! VIPs as addresses of this host, where a routing daemon finds them.

use std::{collections::BTreeSet, net::IpAddr};

use futures_util::TryStreamExt;
use netlink_packet_route::address::{AddressMessage, AddressScope};
use rtnetlink::Handle;

use super::{NetError, blocking, connect, interfaces::local_address};

/// Makes these addresses be on an interface (with the longest prefix) and those not; which were changed.
///
/// Addresses that are as they should be already are left as they are. On a failure what came before it is done.
pub fn announce(
    interface: &str,
    present: &BTreeSet<IpAddr>,
    absent: &BTreeSet<IpAddr>,
) -> Result<BTreeSet<IpAddr>, NetError> {
    blocking(async {
        let handle = connect()?;
        let index = index_of(&handle, interface).await?;
        let found = addresses(&handle, index).await?;
        let mut changed = BTreeSet::new();
        for address in present {
            let known = found
                .iter()
                .any(|message| local_address(message) == Some(*address));
            if !known {
                let length = if address.is_ipv4() { 32 } else { 128 };
                let mut request = handle.address().add(index, *address, length);
                // Nobody is told of it on the link, and nobody asks whether another has it: that is the router's business.
                request.message_mut().header.scope = AddressScope::Universe;
                request.execute().await.map_err(|source| NetError::Request {
                    what: format!("put {address} on {interface}"),
                    source,
                })?;
                changed.insert(*address);
            }
        }
        for message in found {
            let Some(address) = local_address(&message).filter(|address| absent.contains(address)) else {
                continue;
            };
            handle
                .address()
                .del(message)
                .execute()
                .await
                .map_err(|source| NetError::Request {
                    what: format!("take {address} off {interface}"),
                    source,
                })?;
            changed.insert(address);
        }
        Ok(changed)
    })
}

async fn index_of(handle: &Handle, interface: &str) -> Result<u32, NetError> {
    let failed = |source| NetError::Request {
        what: format!("find the interface {interface}"),
        source,
    };
    let mut links = handle.link().get().match_name(interface.to_owned()).execute();
    let link = links.try_next().await.map_err(failed)?;
    Ok(link.map(|link| link.header.index).unwrap_or_default())
}

async fn addresses(handle: &Handle, index: u32) -> Result<Vec<AddressMessage>, NetError> {
    let request = handle.address().get().set_link_index_filter(index);
    request
        .execute()
        .try_collect()
        .await
        .map_err(|source| NetError::Request {
            what: "list addresses".to_owned(),
            source,
        })
}
