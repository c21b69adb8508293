//! Promise: whatever the frames and whatever is in the maps, the loaded program and the library do the same.
//!
//! `EVENKEEL_FUZZ_SEED` repeats a run, `EVENKEEL_FUZZ_FRAMES` makes it longer. A difference prints the frame and the
//! world it met: it is to become a named case.

use std::{env, time::SystemTime};

use lb_ebpf::testing::{
    case::hex,
    engine::{Action, Engine, HostEngine},
    random::{self, Rng, Traffic},
    world::World,
};
use tests::{Proof, engine::KernelEngine};

const FRAMES: u64 = 200_000;
const FRAMES_A_WORLD: u64 = 200;

fn number(variable: &str) -> Option<u64> {
    let text = env::var(variable).ok()?;
    Some(
        text.parse()
            .unwrap_or_else(|error| panic!("{variable}={text}: {error}")),
    )
}

/// One world and its frames; every engine meets the same ones.
struct Run {
    rng: Rng,
    traffic: Traffic,
    world: World,
}

/// What happens next in a world.
enum Next {
    Frame(Vec<u8>),
    World,
}

impl Run {
    fn new(seed: u64, cpu: u32) -> Self {
        let mut rng = Rng::new(seed);
        let traffic = Traffic::new(&mut rng);
        let world = random::world(&mut rng, cpu, &traffic);
        Self { rng, traffic, world }
    }

    fn next(&mut self) -> Next {
        if self.rng.once_in(20) {
            random::disturb(&mut self.rng, &mut self.world);
            return Next::World;
        }
        Next::Frame(self.traffic.frame(&mut self.rng))
    }
}

#[test]
fn library_and_program_agree_on_random_frames_and_maps() -> Proof {
    let seed = number("EVENKEEL_FUZZ_SEED").unwrap_or_else(|| {
        SystemTime::UNIX_EPOCH
            .elapsed()
            .map_or(0, |since| since.as_nanos() as u64)
    });
    let frames = number("EVENKEEL_FUZZ_FRAMES").unwrap_or(FRAMES);
    let mut kernel = KernelEngine::load(lb_user::program::object())?;
    let mut host = HostEngine::new(kernel.cpu());
    println!("EVENKEEL_FUZZ_SEED={seed} EVENKEEL_FUZZ_FRAMES={frames}");
    for number in 0..frames.div_ceil(FRAMES_A_WORLD) {
        let seed = seed.wrapping_add(number);
        if !quick(seed, &mut host, &mut kernel) {
            slow(seed, &mut host, &mut kernel);
            panic!(
                "EVENKEEL_FUZZ_SEED={seed}: the engines differed, but not again when the frames were repeated"
            );
        }
    }
    Ok(())
}

/// Runs a world's frames and compares what is left at the end.
fn quick(seed: u64, host: &mut HostEngine, kernel: &mut KernelEngine) -> bool {
    let mut run = Run::new(seed, kernel.cpu());
    host.reset(&run.world);
    kernel.reset(&run.world);
    for _ in 0..FRAMES_A_WORLD {
        match run.next() {
            Next::World => {
                host.configure(&run.world);
                kernel.configure(&run.world);
            }
            Next::Frame(frame) => {
                if host.run(&frame) != kernel.run(&frame) {
                    return false;
                }
            }
        }
    }
    host.state() == kernel.state() && host.samples() == kernel.samples()
}

/// Runs them again and compares everything after every frame; panics at the first difference.
fn slow(seed: u64, host: &mut HostEngine, kernel: &mut KernelEngine) {
    let mut run = Run::new(seed, kernel.cpu());
    host.reset(&run.world);
    kernel.reset(&run.world);
    for number in 0..FRAMES_A_WORLD {
        let frame = match run.next() {
            Next::World => {
                host.configure(&run.world);
                kernel.configure(&run.world);
                continue;
            }
            Next::Frame(frame) => frame,
        };
        let before = host.state();
        let (verdict, bytes) = host.judge(&frame);
        let found = kernel.run(&frame);
        let (here, there) = (host.state(), kernel.state());
        let mut differences = here.differences(&there);
        if Action::of(verdict) != found.action {
            differences.push("the frame goes elsewhere".to_owned());
        }
        if bytes != found.bytes {
            differences.push(format!(
                "library makes {}\nprogram makes {}",
                hex(&bytes),
                hex(&found.bytes)
            ));
        }
        assert!(
            differences.is_empty() && host.samples() == kernel.samples(),
            "EVENKEEL_FUZZ_SEED={seed}, frame {number}: library and program differ\nframe {}\nlibrary {verdict:?}\n\
             program {:?}\n{}\nmoved by the library:\n{}\n{}",
            hex(&frame),
            found.action,
            differences.join("\n"),
            before.differences(&here).join("\n"),
            run.world.describe(),
        );
    }
}
