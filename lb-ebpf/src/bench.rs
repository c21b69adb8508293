//! Programs for `cargo xtask bench` only: the wrapper that steps flows, the floor, and a kernel-LRU balancer.
#![cfg_attr(target_arch = "bpf", no_std, no_main)]

#[cfg(target_arch = "bpf")]
mod kernel;

#[cfg(target_arch = "bpf")]
mod programs {
    use aya_ebpf::{
        bindings::{BPF_F_MMAPABLE, xdp_action},
        btf_maps::{Array, HashMap, LruHashMap, ProgramArray},
        helpers::{bpf_ktime_get_ns, bpf_redirect},
        macros::{btf_map, xdp},
        programs::XdpContext,
    };
    use lb_common::{
        backend::Backend,
        bench::BenchState,
        flow::FlowValue,
        pod::Pod,
        service::{Service, ServiceKey},
        settings::Settings,
    };
    use lb_ebpf::{
        flow, forward,
        frame::Frame,
        opaque::opaque,
        parse::{self, Packet},
        pick, service,
        tables::{Tables, Tally},
        verdict::{Exit, Pass, Verdict},
    };

    use crate::kernel::{frame::XdpFrame, maps::KernelTables};

    #[btf_map]
    static BENCH_STATE: Array<BenchState, 1, { BPF_F_MMAPABLE as usize }> = Array::new();
    #[btf_map]
    static BENCH_TARGET: ProgramArray<1> = ProgramArray::new();
    #[btf_map]
    static BENCH_LRU: LruHashMap<LruKey, u64, 1024> = LruHashMap::new();
    #[btf_map]
    static BENCH_SERVICES: HashMap<ServiceKey, Service, 64> = HashMap::new();

    /// The 5-tuple as a key of the kernel's hash, both families.
    #[repr(C)]
    #[derive(Clone, Copy)]
    struct LruKey {
        words: [u64; 4],
        ports: u32,
        protocol: u32,
    }

    /// Restores the packet, steps to the next flow and calls the program under test; reads the clock twice only, at
    /// the first and the last repetition that are timed.
    #[xdp]
    pub fn bench_wrap(context: XdpContext) -> u32 {
        let Some(state) = BENCH_STATE.get_ptr_mut(0) else {
            return xdp_action::XDP_ABORTED;
        };
        // SAFETY: one CPU alone runs the benchmark.
        let state = unsafe { &mut *state };
        if state.runs == state.first_run {
            // SAFETY: the helper has no preconditions.
            state.started = unsafe { bpf_ktime_get_ns() };
        }
        state.runs += 1;
        if state.runs == state.last_run {
            // SAFETY: as above.
            state.ended = unsafe { bpf_ktime_get_ns() };
        }
        if restore(&context, state).is_none() {
            return xdp_action::XDP_ABORTED;
        }
        // SAFETY: the target is an XDP program; a missing one falls through.
        unsafe { BENCH_TARGET.tail_call(&context, 0) };
        xdp_action::XDP_ABORTED
    }

    #[inline(always)]
    fn restore(context: &XdpContext, state: &mut BenchState) -> Option<()> {
        let mut frame = XdpFrame::new(context);
        // Hidden, since a 32-bit difference of packet pointers is refused.
        let moved = (opaque(frame.length() as u64) as i64 - state.length as i64) as i32;
        if moved != 0 {
            frame.move_start(-moved)?;
            frame.write(12, state.ethertype)?;
        }
        if state.flows > 1 {
            let flow = state.next;
            state.next = if flow + 1 >= state.flows { 0 } else { flow + 1 };
            let address = state.first_address + (flow >> 12);
            let port = 1024 + (flow & 0xfff) as u16;
            if state.v6 == 0 {
                put(&mut frame, 26, address.to_be())?;
                put(&mut frame, 34, port.to_be())?;
            } else {
                put(&mut frame, 34, address.to_be())?;
                put(&mut frame, 54, port.to_be())?;
            }
        }
        Some(())
    }

    #[inline(always)]
    fn put<T: Pod>(frame: &mut XdpFrame<'_>, offset: usize, value: T) -> Option<()> {
        frame.write(offset, value)
    }

    /// Returns at once.
    #[xdp]
    pub fn bench_floor(_: XdpContext) -> u32 {
        xdp_action::XDP_TX
    }

    /// The same balancer in the usual design: services in a kernel hash that is asked first, and flows in a kernel LRU
    /// hash. `BENCH_SERVICES` is its own; parsing, picking and forwarding are Evenkeel's.
    #[xdp]
    pub fn bench_lru(context: XdpContext) -> u32 {
        let mut frame = XdpFrame::new(&context);
        let tables = KernelTables::new(&context);
        let Some(tally) = Tally::of(&tables) else {
            return xdp_action::XDP_PASS;
        };
        let verdict = handle(&mut frame, &tables, tally);
        tally.verdict(verdict);
        match verdict {
            Verdict::Pass(_) => xdp_action::XDP_PASS,
            Verdict::Drop(_) => xdp_action::XDP_DROP,
            Verdict::Answer(_) => xdp_action::XDP_TX,
            Verdict::Forward { interface, .. } if interface == frame.ingress() => xdp_action::XDP_TX,
            // SAFETY: the helper checks the interface itself.
            Verdict::Forward { interface, .. } => unsafe { bpf_redirect(interface, 0) as u32 },
        }
    }

    #[inline(always)]
    fn handle(frame: &mut XdpFrame<'_>, tables: &KernelTables<'_>, tally: Tally<'_>) -> Verdict {
        let packet = match parse::parse(frame, tables) {
            Ok(packet) => packet,
            Err(exit) => return exit.into(),
        };
        let Some(settings) = tables.settings() else {
            return Verdict::Pass(Pass::NotConfigured);
        };
        let now = settings.seconds(tables.jiffies());
        match backend_of(&packet, settings, now, tables, tally) {
            Ok((backend, id)) => {
                let index = pick::counter_index(id, settings, tables);
                if let Some(counters) = tables.backend_counters(index) {
                    counters.packets.add(1);
                    counters.bytes.add(frame.length() as u64);
                }
                forward::forward(frame, &packet, 0, backend)
            }
            Err(exit) => exit.into(),
        }
    }

    #[inline(always)]
    fn service_of(packet: &Packet) -> Option<&'static Service> {
        let key = service::key_of(packet);
        // SAFETY: an entry removed meanwhile keeps its memory until this run of the program ends (RCU).
        unsafe {
            BENCH_SERVICES
                .get(key)
                .or_else(|| BENCH_SERVICES.get(key.all_ports()))
        }
    }

    #[inline(always)]
    fn backend_of<'a>(
        packet: &Packet,
        settings: &Settings,
        now: u32,
        tables: &'a KernelTables<'_>,
        tally: Tally<'_>,
    ) -> Result<(&'a Backend, u32), Exit> {
        let service = service_of(packet).ok_or(Exit::Pass(Pass::NoService))?;
        let key = LruKey {
            words: packet.tuple.words,
            ports: packet.tuple.ports,
            protocol: packet.tuple.protocol as u32,
        };
        if let Some(entry) = BENCH_LRU.get_ptr_mut(key) {
            // SAFETY: the entry is in the map; a racing writer would do no harm here.
            let value = FlowValue::unpack(unsafe { *entry });
            if let Some(backend) = flow::keeps(&value, packet, settings, now, tables, tally) {
                let after = FlowValue {
                    state: flow::next_state(value.state, packet),
                    last_seen: now,
                    ..value
                };
                if after != value {
                    // SAFETY: as above.
                    unsafe { *entry = after.pack() };
                }
                return Ok((backend, value.backend.id()));
            }
        }
        let fingerprint = settings.table_key.of_flow(&packet.tuple);
        let picked =
            pick::pick(packet, fingerprint, service, settings, now, tables, tally).map_err(Exit::Drop)?;
        let value = FlowValue {
            backend: picked.reference,
            state: flow::next_state(0, packet),
            last_seen: now,
        };
        let _ = BENCH_LRU.insert(key, value.pack(), 0);
        Ok((picked.backend, picked.reference.id()))
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
    println!("lb-bench holds BPF programs; `cargo xtask bench` compiles and measures them");
}
