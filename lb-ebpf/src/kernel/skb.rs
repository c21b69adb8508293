//! `Buffer` over a TC context, and the map of checks that are under way.

use aya_ebpf::{
    bindings::{
        BPF_F_ADJ_ROOM_ENCAP_L3_IPV4, BPF_F_ADJ_ROOM_ENCAP_L3_IPV6, BPF_F_MARK_MANGLED_0, BPF_F_NO_PREALLOC,
        BPF_F_PSEUDO_HDR, bpf_adj_room_mode::BPF_ADJ_ROOM_MAC,
    },
    btf_maps::HashMap,
    helpers::{bpf_csum_diff, bpf_csum_update},
    macros::btf_map,
    programs::TcContext,
};
use lb_common::{
    check::{self, CheckEntry, CheckKey},
    pod::Pod,
};
use lb_ebpf::{
    check::{Buffer, Checks, Readdress},
    headers::{IPV4_LENGTH, IPV6_LENGTH},
};

/// Tells `bpf_l4_csum_replace` that the addresses are IPv6, which have no header checksum to make up for them (Linux
/// 6.16 and some stable releases).
const BPF_F_IPV6: u64 = 1 << 7;

#[btf_map]
static CHECKS: HashMap<CheckKey, CheckEntry, { check::CHECKS.capacity }, { BPF_F_NO_PREALLOC as usize }> =
    HashMap::new();

/// The map.
pub struct KernelChecks;

impl Checks for KernelChecks {
    #[inline(always)]
    fn entry(&self, key: &CheckKey) -> Option<&CheckEntry> {
        // SAFETY: an entry removed meanwhile keeps its memory until this run of the program ends (RCU); of what is read
        // through the reference nothing changes while the entry stands.
        unsafe { CHECKS.get(key) }
    }

    #[inline(always)]
    fn handed(&self, key: &CheckKey) {
        if let Some(entry) = CHECKS.get_ptr_mut(key) {
            // SAFETY: the entry is in the map; all that write write the same.
            unsafe { (&raw mut (*entry).handed).write_volatile(1) };
        }
    }
}

/// The packet of one run of the program.
pub struct SkbBuffer<'a> {
    context: &'a TcContext,
}

impl<'a> SkbBuffer<'a> {
    #[inline(always)]
    pub fn new(context: &'a TcContext) -> Self {
        Self { context }
    }

    #[inline(always)]
    fn readdress_ipv4(&self, change: &Readdress, flags: u64) -> Option<()> {
        const SIZE: u64 = 4;
        let (from, to) = (change.from[0] as u32, change.to[0] as u32);
        let context = self.context;
        context
            .l3_csum_replace(change.header_sum, from as u64, to as u64, SIZE)
            .ok()?;
        context
            .l4_csum_replace(change.sum, from as u64, to as u64, flags | SIZE)
            .ok()?;
        context.store(change.at, &to, 0).ok()
    }

    #[inline(always)]
    fn readdress_ipv6(&self, change: &Readdress, flags: u64) -> Option<()> {
        const SIZE: u32 = 16;
        let (mut from, mut to) = (change.from, change.to);
        // SAFETY: both are 16 octets, of which the helper reads as many.
        let difference =
            unsafe { bpf_csum_diff(from.as_mut_ptr().cast(), SIZE, to.as_mut_ptr().cast(), SIZE, 0) };
        if difference < 0 {
            return None;
        }
        let difference = difference as u32;
        let context = self.context;
        let replace = |flags| context.l4_csum_replace(change.sum, 0, difference as u64, flags);
        if replace(flags | BPF_F_IPV6).is_err() {
            replace(flags).ok()?;
            // Without the flag the sum over the whole packet, if the card gave one, is changed by as much as the field,
            // though the address makes up for that. The helper refuses where there is no such sum.
            // SAFETY: the context is that of this run.
            unsafe { bpf_csum_update(context.skb.skb, difference) };
        }
        context.store(change.at, &to, 0).ok()
    }
}

impl Buffer for SkbBuffer<'_> {
    #[inline(always)]
    fn read<T: Pod>(&self, offset: usize) -> Option<T> {
        self.context.skb.load(offset).ok()
    }

    #[inline(always)]
    fn write<T: Pod>(&mut self, offset: usize, value: T) -> Option<()> {
        self.context.store(offset, &value, 0).ok()
    }

    #[inline(always)]
    fn is_segmented(&self) -> bool {
        // SAFETY: the context is that of this run; the verifier checks the access.
        unsafe { (*self.context.skb.skb).gso_size != 0 }
    }

    #[inline(always)]
    fn readdress(&mut self, change: &Readdress) -> Option<()> {
        let mut flags = BPF_F_PSEUDO_HDR as u64;
        if change.is_datagram {
            flags |= BPF_F_MARK_MANGLED_0 as u64;
        }
        if change.v6 {
            self.readdress_ipv6(change, flags)
        } else {
            self.readdress_ipv4(change, flags)
        }
    }

    #[inline(always)]
    fn open(&mut self, v6: bool) -> Option<()> {
        let (size, flags) = if v6 {
            (IPV6_LENGTH, BPF_F_ADJ_ROOM_ENCAP_L3_IPV6)
        } else {
            (IPV4_LENGTH, BPF_F_ADJ_ROOM_ENCAP_L3_IPV4)
        };
        // Segments of a larger packet are made smaller by as much, since the size of segments is not said to be fixed.
        self.context
            .adjust_room(size as i32, BPF_ADJ_ROOM_MAC, flags as u64)
            .ok()
    }
}
