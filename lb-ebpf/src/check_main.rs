//! The TC programs of health checks through the VIP: packet in, outcome out, one match to the TC action.
#![cfg_attr(target_arch = "bpf", no_std, no_main)]

#[cfg(target_arch = "bpf")]
#[path = "kernel/skb.rs"]
mod skb;

#[cfg(target_arch = "bpf")]
mod programs {
    use aya_ebpf::{
        bindings::{TC_ACT_SHOT, TC_ACT_UNSPEC},
        macros::classifier,
        programs::TcContext,
    };
    use lb_ebpf::check::{self, Outcome};

    use crate::skb::{KernelChecks, SkbBuffer};

    /// On what this host sends: to the VIP instead of the backend.
    #[classifier]
    pub fn check_egress(context: TcContext) -> i32 {
        action(check::egress(&mut SkbBuffer::new(&context), &KernelChecks))
    }

    /// On what this host receives: from the backend instead of the VIP.
    #[classifier]
    pub fn check_ingress(context: TcContext) -> i32 {
        action(check::ingress(&mut SkbBuffer::new(&context), &KernelChecks))
    }

    /// Programs of others come after these (TCX_NEXT, which is TC_ACT_UNSPEC).
    #[inline(always)]
    fn action(outcome: Outcome) -> i32 {
        match outcome {
            Outcome::Untouched | Outcome::Handed => TC_ACT_UNSPEC,
            Outcome::Lost => TC_ACT_SHOT,
        }
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
    println!(
        "lb-check holds BPF programs; `cargo xtask build` compiles them and puts them into the evenkeel binary"
    );
}
