//! Every way out of the datapath: each has a name, one counter, one metric label and one row in `README.md`.

/// What happens to a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// The kernel's own stack gets the frame, unchanged.
    Pass(Pass),
    /// The frame ends here.
    Drop(Drop),
    /// The frame, rewritten, leaves for a backend through `interface`.
    Forward { how: Forward, interface: u32 },
}

/// A verdict that needs no backend: how a stage ends the way of a frame early.
///
/// `repr(C)` keeps its parts on whole words: the verifier refuses unaligned words on the stack.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Exit {
    Pass(Pass),
    Drop(Drop),
}

impl From<Exit> for Verdict {
    #[inline(always)]
    fn from(exit: Exit) -> Self {
        match exit {
            Exit::Pass(reason) => Self::Pass(reason),
            Exit::Drop(reason) => Self::Drop(reason),
        }
    }
}

macro_rules! reasons {
    ($(#[$doc:meta])* $kind:ident, $word:literal: $($(#[$reason_doc:meta])* $reason:ident = $number:literal, $name:literal;)+) => {
        $(#[$doc])*
        #[repr(u8)]
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
        pub enum $kind {
            $($(#[$reason_doc])* $reason = $number,)+
        }

        impl $kind {
            pub const ALL: &[Self] = &[$(Self::$reason),+];

            /// The metric label `reason`.
            pub const fn name(self) -> &'static str {
                match self {
                    $(Self::$reason => $name,)+
                }
            }
        }
    };
}

reasons! {
    /// Why a frame is left to the kernel.
    Pass, "pass":
    /// The daemon has not set the datapath up.
    NotConfigured = 0, "not_configured";
    /// Not IPv4 or IPv6 (LLDP, more than two VLAN tags …).
    NotIp = 1, "not_ip";
    Arp = 2, "arp";
    /// IPv6 neighbour discovery, router messages and MLD.
    NeighbourDiscovery = 3, "neighbour_discovery";
    /// The destination is no VIP.
    NotVip = 4, "not_vip";
    /// The destination may be a VIP, but no service has this port and protocol.
    NoService = 5, "no_service";
    /// A transport that services do not have (yet): neither TCP, UDP nor ICMP.
    OtherProtocol = 6, "other_protocol";
    /// Truncated or contradictory, and not addressed to a service.
    MalformedForeign = 7, "malformed_foreign";
    /// ICMP to a VIP, left to the kernel.
    Icmp = 8, "icmp";
}

reasons! {
    /// Why a frame ends here.
    Drop, "drop":
    /// Truncated, or lengths that contradict each other, addressed to a VIP.
    Malformed = 16, "malformed";
    /// The service has no backend that may take a new flow.
    NoBackend = 17, "no_backend";
    /// Neither the CPU's nor the shared seed is set.
    NoSeed = 18, "no_seed";
    /// A fragment addressed to a VIP.
    Fragment = 19, "fragment";
    /// The packet would not fit the way to the backend after encapsulation.
    TooBig = 20, "too_big";
    /// The backend's next hop is not resolved.
    NoNextHop = 21, "no_next_hop";
    /// The kernel refused to make room for an outer header.
    NoHeadroom = 22, "no_headroom";
    /// More than eight IPv6 extension headers, addressed to a VIP.
    TooManyHeaders = 23, "too_many_headers";
    /// A map's entry that must be there was not.
    Inconsistent = 24, "map_inconsistent";
}

reasons! {
    /// How a frame leaves for a backend.
    Forward, "forward":
    Dsr = 48, "dsr";
    Ipip = 49, "ipip";
}

impl Verdict {
    /// The index of the verdict's counter in `CPU_COUNTERS[cpu].verdicts`.
    #[inline(always)]
    pub const fn counter(self) -> u32 {
        match self {
            Self::Pass(reason) => reason as u32,
            Self::Drop(reason) => reason as u32,
            Self::Forward { how, .. } => how as u32,
        }
    }

    /// The metric labels `verdict` and `reason`.
    pub const fn names(self) -> (&'static str, &'static str) {
        match self {
            Self::Pass(reason) => ("pass", reason.name()),
            Self::Drop(reason) => ("drop", reason.name()),
            Self::Forward { how, .. } => ("forward", how.name()),
        }
    }

    /// Every verdict once, in the order of the counters.
    pub fn all() -> impl Iterator<Item = Self> {
        let pass = Pass::ALL.iter().map(|reason| Self::Pass(*reason));
        let drop = Drop::ALL.iter().map(|reason| Self::Drop(*reason));
        let forward = Forward::ALL.iter().map(|how| Self::Forward {
            how: *how,
            interface: 0,
        });
        pass.chain(drop).chain(forward)
    }
}
