//! Every way out of the datapath: each has a name, one counter, one metric label and one row in `README.md`.

use lb_common::map_names::Rare;

/// What happens to a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// The kernel's own stack gets the frame, unchanged.
    Pass(Pass),
    /// The frame ends here.
    Drop(Drop),
    /// The frame, rewritten, leaves for a backend through `interface`.
    Forward { how: Forward, interface: u32 },
    /// The frame, made an answer to its sender, leaves through the interface it came in on.
    Answer(Answer),
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
    /// A fragment addressed to a VIP that is not of a TCP or UDP packet, or that no program for fragments is loaded for.
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
    /// An ICMP error about a packet of a service, but of no flow that is known.
    IcmpNoFlow = 25, "icmp_no_flow";
    /// A fragment whose first one was not seen, or too long ago, or went to a backend that is gone.
    FragmentUnknown = 26, "fragment_unknown";
    /// An answer by ICMP would have been due, but this CPU has made all it may in this second.
    IcmpRate = 27, "icmp_rate";
}

reasons! {
    /// How a frame leaves for a backend.
    Forward, "forward":
    Dsr = 48, "dsr";
    Ipip = 49, "ipip";
}

reasons! {
    /// What a frame is answered with.
    Answer, "answer":
    /// An echo request to a VIP.
    EchoReply = 56, "echo_reply";
    /// *Fragmentation needed* (ICMP) or *packet too big* (ICMPv6).
    PacketTooBig = 57, "packet_too_big";
}

impl Verdict {
    /// The index of the verdict's counter in `CPU_COUNTERS[cpu].verdicts`.
    #[inline(always)]
    pub const fn counter(self) -> u32 {
        match self {
            Self::Pass(reason) => reason as u32,
            Self::Drop(reason) => reason as u32,
            Self::Forward { how, .. } => how as u32,
            Self::Answer(answer) => answer as u32,
        }
    }

    /// To which of [`crate::rare`]'s programs the balancer leaves such a frame, if that is there, before it counts this
    /// verdict.
    #[inline(always)]
    pub const fn left_to(self) -> Option<Rare> {
        match self {
            Self::Pass(Pass::Icmp) => Some(Rare::Icmp),
            Self::Drop(Drop::TooBig) => Some(Rare::TooBig),
            Self::Drop(Drop::Fragment) => Some(Rare::Fragment),
            _ => None,
        }
    }

    /// The metric labels `verdict` and `reason`.
    pub const fn names(self) -> (&'static str, &'static str) {
        match self {
            Self::Pass(reason) => ("pass", reason.name()),
            Self::Drop(reason) => ("drop", reason.name()),
            Self::Forward { how, .. } => ("forward", how.name()),
            Self::Answer(answer) => ("answer", answer.name()),
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
        let answer = Answer::ALL.iter().map(|answer| Self::Answer(*answer));
        pass.chain(drop).chain(forward).chain(answer)
    }
}
