//! A case: a sentence, packets, and what must become of each, down to the last byte and counter.

use std::fmt::Write;

use lb_common::sample::Sample;

pub use super::expect::Expect;
use super::{
    engine::{Engine, Ran, State},
    packet::Packet,
    world::World,
};

/// One line of the table of cases.
pub struct Case {
    /// What must hold, in a sentence.
    pub sentence: String,
    /// The maps before the first step.
    pub world: World,
    pub steps: Vec<Step>,
    /// Why only the library can run it: a situation that a test run of the kernel cannot make.
    pub host_only: Option<&'static str>,
    /// Room in front of the frame, where it matters.
    pub headroom: Option<usize>,
}

/// What happens next in a case.
pub enum Step {
    Send(Box<Packet>, Expect),
    /// Time passes, seconds.
    Wait(u32),
    /// The daemon writes to the maps.
    Change(Box<dyn Fn(&mut World) + Send + Sync>),
    /// The daemon clears the bitmaps of fresh keys.
    ClearFresh,
}

impl Case {
    pub fn new(sentence: impl Into<String>, world: &World) -> Self {
        Self {
            sentence: sentence.into(),
            world: world.clone(),
            steps: Vec::new(),
            host_only: None,
            headroom: None,
        }
    }

    /// Changes the maps before the case begins.
    pub fn with(mut self, change: impl FnOnce(&mut World)) -> Self {
        change(&mut self.world);
        self
    }

    pub fn sends(mut self, packet: &Packet, expect: Expect) -> Self {
        self.steps.push(Step::Send(Box::new(packet.clone()), expect));
        self
    }

    pub fn waits(mut self, seconds: u32) -> Self {
        self.steps.push(Step::Wait(seconds));
        self
    }

    pub fn then(mut self, change: impl Fn(&mut World) + Send + Sync + 'static) -> Self {
        self.steps.push(Step::Change(Box::new(change)));
        self
    }

    pub fn clears_fresh(mut self) -> Self {
        self.steps.push(Step::ClearFresh);
        self
    }

    pub fn only_on_the_host(mut self, reason: &'static str) -> Self {
        self.host_only = Some(reason);
        self
    }

    pub fn headroom(mut self, octets: usize) -> Self {
        self.headroom = Some(octets);
        self
    }
}

/// Everything a case did on an engine, for comparison with another engine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Outcome {
    pub ran: Vec<Ran>,
    pub state: State,
    pub samples: Vec<Sample>,
}

/// Runs a case and answers what it did; `Err` tells every expectation that was not met.
pub fn check(case: &Case, engine: &mut impl Engine) -> Result<Outcome, String> {
    engine.reset(&case.world);
    let mut wrong = String::new();
    let mut world = case.world.clone();
    let mut ran = Vec::new();
    for (number, step) in case.steps.iter().enumerate() {
        if let Step::Send(packet, expect) = step {
            let frame = packet.bytes();
            let before = engine.state();
            let did = engine.run(&frame);
            for line in expect.unmet(packet, &frame, &did, &before, &engine.state(), &world) {
                let _ = writeln!(wrong, "  step {}: {line}", number + 1);
            }
            ran.push(did);
        } else {
            prepare(step, &mut world, engine);
        }
    }
    if wrong.is_empty() {
        Ok(Outcome {
            ran,
            state: engine.state(),
            samples: engine.samples(),
        })
    } else {
        Err(format!("{}\n{wrong}", case.sentence))
    }
}

/// Runs a case's steps again on the engine as it is, without expectations.
pub fn repeat(case: &Case, world: &mut World, engine: &mut impl Engine) -> Outcome {
    let mut ran = Vec::new();
    for step in &case.steps {
        match step {
            Step::Send(packet, _) => ran.push(engine.run(&packet.bytes())),
            other => prepare(other, world, engine),
        }
    }
    Outcome {
        ran,
        state: engine.state(),
        samples: engine.samples(),
    }
}

fn prepare(step: &Step, world: &mut World, engine: &mut impl Engine) {
    match step {
        Step::Send(..) => {}
        Step::Wait(seconds) => {
            world.now += seconds;
            engine.configure(world);
        }
        Step::Change(change) => {
            change(world);
            engine.configure(world);
        }
        Step::ClearFresh => engine.clear_fresh(),
    }
}

/// Octets as a test prints them.
pub fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::new(), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    })
}
