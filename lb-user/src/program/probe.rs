//! The known-answer program: loaded beside the balancer over the same maps, attached nowhere, run on one CPU after the other.

use std::{io, thread};

use aya::{
    Ebpf, EbpfError, TestRun, TestRunOptions,
    programs::{ProgramError, Xdp},
};
use lb_common::{map_names, sample::Sample, service::ServiceKey};
use lb_ebpf::probe::{LENGTH, SAMPLE_AT, SERVICE_AT};
use rustix::thread::{CpuSet, sched_setaffinity};

use super::{Datapath, load::loader, object};

/// Its name in the object.
const PROBE: &str = "probe";
/// `XDP_PASS` (linux/bpf.h); other answers mean that nothing was picked.
const PICKED: u32 = 2;

/// Why a known-answer test could not be made.
#[derive(Debug, thiserror::Error)]
pub enum ProbeError {
    #[error("the kernel refuses the object of the known-answer test")]
    Object(#[source] EbpfError),
    #[error("the object has no program {PROBE}; rebuild with `cargo xtask build`")]
    Missing,
    #[error("the kernel refuses program {PROBE}")]
    Program(#[source] ProgramError),
    #[error("cannot run program {PROBE} on CPU {cpu}")]
    Run { cpu: u32, source: ProgramError },
    #[error("the thread of the known-answer test ended early")]
    Thread,
}

/// The loaded program.
pub struct Probe {
    ebpf: Ebpf,
}

/// A flow to pick for: a service's key and a sample with the flow's words, ports, protocol and family.
pub type Question = (ServiceKey, Sample);

/// What a CPU picked; `None`: it would have dropped the packet, or knows no such service.
pub type Answer = Option<Sample>;

impl Datapath {
    /// Loads the known-answer program over the pinned maps.
    pub fn probe(&self) -> Result<Probe, ProbeError> {
        let mut loader = loader();
        for map in map_names::ALL {
            loader.map_pin_path(map.name, self.pins.map(map.name));
        }
        let mut ebpf = loader.load(object()).map_err(ProbeError::Object)?;
        let program: &mut Xdp = ebpf
            .program_mut(PROBE)
            .and_then(|program| program.try_into().ok())
            .ok_or(ProbeError::Missing)?;
        program.load().map_err(ProbeError::Program)?;
        Ok(Probe { ebpf })
    }
}

impl Probe {
    /// Asks each CPU below `cpus` that is online all questions.
    pub fn ask(&self, cpus: u32, questions: &[Question]) -> Result<Vec<(u32, Vec<Answer>)>, ProbeError> {
        // A thread of its own, which ends with its affinity.
        thread::scope(|scope| {
            let asked = scope.spawn(|| {
                let online = (0..cpus).filter(|cpu| pin(*cpu).is_ok());
                online
                    .map(|cpu| {
                        let answers = questions.iter().map(|question| self.ask_one(cpu, question));
                        Ok((cpu, answers.collect::<Result<_, _>>()?))
                    })
                    .collect()
            });
            asked.join().unwrap_or(Err(ProbeError::Thread))
        })
    }

    fn ask_one(&self, cpu: u32, (key, flow): &Question) -> Result<Answer, ProbeError> {
        let program: &Xdp = self
            .ebpf
            .program(PROBE)
            .and_then(|program| program.try_into().ok())
            .ok_or(ProbeError::Missing)?;
        let mut question = [0; LENGTH];
        put(&mut question[SERVICE_AT..], key);
        put(&mut question[SAMPLE_AT..], flow);
        let mut answer = [0; LENGTH];
        let done = program
            .test_run(TestRunOptions {
                data_in: Some(&question),
                data_out: Some(&mut answer),
                ..TestRunOptions::default()
            })
            .map_err(|source| ProbeError::Run { cpu, source })?;
        let picked = done.return_value == PICKED;
        Ok(picked.then(|| take(&answer[SAMPLE_AT..])))
    }
}

/// Keeps the calling thread on one CPU.
fn pin(cpu: u32) -> io::Result<()> {
    let mut set = CpuSet::new();
    if cpu as usize >= CpuSet::MAX_CPU {
        return Err(io::Error::from(io::ErrorKind::Unsupported));
    }
    set.set(cpu as usize);
    Ok(sched_setaffinity(None, &set)?)
}

/// Writes a plain-data value into the start of `bytes`.
fn put<T: aya::Pod>(bytes: &mut [u8], value: &T) {
    assert!(size_of::<T>() <= bytes.len());
    // SAFETY: both are valid for the size of `T`, which is plain data.
    unsafe { bytes.as_mut_ptr().cast::<T>().write_unaligned(*value) };
}

fn take(bytes: &[u8]) -> Sample {
    assert!(size_of::<Sample>() <= bytes.len());
    // SAFETY: there are as many bytes, and any of them make a plain-data value.
    unsafe { bytes.as_ptr().cast::<Sample>().read_unaligned() }
}
