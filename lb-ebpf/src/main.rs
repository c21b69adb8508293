//! The XDP programs: frame in, verdict out, one match to the XDP action.
#![cfg_attr(target_arch = "bpf", no_std, no_main)]

#[cfg(target_arch = "bpf")]
mod kernel;

#[cfg(target_arch = "bpf")]
mod programs {
    use aya_ebpf::{bindings::xdp_action, helpers::bpf_redirect, macros::xdp, programs::XdpContext};
    use lb_ebpf::{
        datapath, decap,
        frame::Frame,
        probe::{self, Answer},
        rare,
        verdict::Verdict,
    };

    use crate::kernel::{frame::XdpFrame, maps::KernelTables, rare::leave};

    /// The balancer.
    #[xdp]
    pub fn evenkeel(context: XdpContext) -> u32 {
        let mut frame = XdpFrame::new(&context);
        let tables = KernelTables::new(&context);
        let verdict = datapath::handle(&mut frame, &tables, |to, _, _| leave(to, &context));
        action(verdict, &frame)
    }

    /// What the balancer leaves to it: ICMP.
    #[xdp]
    pub fn icmp(context: XdpContext) -> u32 {
        let mut frame = XdpFrame::new(&context);
        let tables = KernelTables::new(&context);
        let verdict = rare::icmp(&mut frame, &tables);
        action(verdict, &frame)
    }

    /// Likewise: packets too big for the way to their backend.
    #[xdp]
    pub fn too_big(context: XdpContext) -> u32 {
        let mut frame = XdpFrame::new(&context);
        let tables = KernelTables::new(&context);
        let verdict = rare::too_big(&mut frame, &tables);
        action(verdict, &frame)
    }

    /// Likewise: fragments.
    #[xdp]
    pub fn fragment(context: XdpContext) -> u32 {
        let mut frame = XdpFrame::new(&context);
        let tables = KernelTables::new(&context);
        let verdict = rare::fragment(&mut frame, &tables, |to, _, _| leave(to, &context));
        action(verdict, &frame)
    }

    #[inline(always)]
    fn action(verdict: Verdict, frame: &XdpFrame<'_>) -> u32 {
        match verdict {
            Verdict::Pass(_) => xdp_action::XDP_PASS,
            Verdict::Drop(_) => xdp_action::XDP_DROP,
            Verdict::Answer(_) => xdp_action::XDP_TX,
            Verdict::Forward { interface, .. } if interface == frame.ingress() => xdp_action::XDP_TX,
            // SAFETY: the helper checks the interface itself; an unknown one drops the frame.
            Verdict::Forward { interface, .. } => unsafe { bpf_redirect(interface, 0) as u32 },
        }
    }

    /// For backends without a tunnel device: strips the outer header and passes.
    #[xdp]
    pub fn decap(context: XdpContext) -> u32 {
        decap::strip(&mut XdpFrame::new(&context));
        xdp_action::XDP_PASS
    }

    /// Attached nowhere: the daemon runs it on each CPU and computes the choice again.
    #[xdp]
    pub fn probe(context: XdpContext) -> u32 {
        match probe::answer(&mut XdpFrame::new(&context), &KernelTables::new(&context)) {
            Answer::Picked => xdp_action::XDP_PASS,
            Answer::Dropped => xdp_action::XDP_DROP,
            Answer::Nothing => xdp_action::XDP_ABORTED,
        }
    }

    /// Passes everything: a veth hands frames on only to a peer that runs some XDP program.
    #[xdp]
    pub fn pass(_: XdpContext) -> u32 {
        xdp_action::XDP_PASS
    }

    #[panic_handler]
    fn panic(_: &core::panic::PanicInfo<'_>) -> ! {
        loop {}
    }

    #[unsafe(link_section = "license")]
    #[unsafe(no_mangle)]
    static LICENSE: [u8; 13] = *b"Dual MIT/GPL\0";
}

#[cfg(not(target_arch = "bpf"))]
fn main() {
    println!("lb-xdp is a BPF program; `cargo xtask build` compiles it and puts it into the evenkeel binary");
}
