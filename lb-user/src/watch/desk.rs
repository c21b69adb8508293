//! The watch as the rest of the daemon meets it: ticks, samples, answers of known-answer tests go in; reports come out.

use std::{
    collections::BTreeSet,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant, SystemTime, UNIX_EPOCH},
};

use lb_common::sample::Sample;

use super::{
    gauges::Gauges,
    monitor::{Ask, KnownAnswers, Monitor, Outcome, Settings},
    published::Board,
    readback::{self, Findings},
    record::{self, Reading},
    report::SkewReport,
    samples::Sampled,
    source::{Mapped, Source},
};
use crate::{
    metrics::Recorder,
    program::{Answer, Question},
    skew::attribution::Place,
    state::desired::Sampling,
};

/// Checks over which a rate is averaged before another part of them is sampled.
const SMOOTH: f64 = 5.0;
/// Samples a second, as a multiple of what is aimed at, between which the part stays.
const RATE_RANGE: std::ops::RangeInclusive<f64> = 0.4..=2.0;

/// Shared by the watch's tasks, the controller, the interface and the metrics.
pub struct Desk {
    board: Arc<Board>,
    source: Mapped,
    started: Instant,
    state: Mutex<State>,
}

struct State {
    monitor: Monitor,
    /// Found by the reconcile, which puts it right before the next check.
    pending: Findings,
    /// New flows and packets a second, smoothed.
    rates: [f64; 2],
    sampling: Option<Sampling>,
    /// Seconds since 1970.
    last_check: Option<f64>,
}

impl Desk {
    pub fn new(board: Arc<Board>, source: Mapped, settings: Settings) -> Self {
        Self {
            board,
            source,
            started: Instant::now(),
            state: Mutex::new(State {
                monitor: Monitor::new(settings),
                pending: Findings::default(),
                rates: [0.0; 2],
                sampling: None,
                last_check: None,
            }),
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        // A panic in a check leaves numbers that the next checks correct.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn configure(&self, settings: Settings) {
        self.lock().monitor.configure(settings);
    }

    pub fn interval(&self) -> Duration {
        self.lock().monitor.settings.interval
    }

    /// How old a CPU's seed may become; noted when the oldest one is older. Answers whether that is new.
    pub fn note_seed_age(&self, age: Duration, limit: Duration) -> bool {
        let old = (age > limit).then_some([age, limit]);
        let mut state = self.lock();
        let before = std::mem::replace(&mut state.monitor.old_seed, old);
        old.is_some() && before.is_none()
    }

    /// Takes one check.
    pub fn tick(&self, recorder: &Recorder) -> Outcome {
        let start = Instant::now();
        let looked = readback::look(&self.board, &self.source);
        let mut state = self.lock();
        let pending = std::mem::take(&mut state.pending);
        let (published, findings) = match looked {
            Some((published, mut findings)) => {
                recorder.self_checked("seeds", findings.seeds.is_empty());
                recorder.self_checked("slots", findings.tables.is_empty());
                findings.merge(pending);
                (published, Some(findings))
            }
            None => (self.board.read(), (!pending.is_clean()).then_some(pending)),
        };
        let at = self.started.elapsed();
        let outcome = state.monitor.check(at, published, findings, &self.source);
        state.last_check = Some(unix_ms() as f64 / 1000.0);
        drop(state);
        recorder.skew_checked(start.elapsed());
        outcome
    }

    /// The controller is about to compare the maps with the plan and to put right what differs: remembers what that is,
    /// and answers it.
    pub fn look_before_repair(&self) -> Findings {
        let Some((_, findings)) = readback::look(&self.board, &self.source) else {
            return Findings::default();
        };
        if !findings.is_clean() {
            self.lock().pending.merge(findings.clone());
        }
        findings
    }

    /// CPUs whose seed was found wrong at the last look, put right since or not.
    pub fn cpus_with_wrong_seed(&self) -> BTreeSet<u32> {
        let state = self.lock();
        let findings = [&state.monitor.findings, &state.pending];
        let seeds = findings.into_iter().flat_map(|findings| &findings.seeds);
        seeds
            .filter_map(|finding| match finding.place {
                Place::Cpu(cpu) => Some(cpu),
                Place::Shared => None,
            })
            .collect()
    }

    /// All that should be in the maps was written on command; `differed`: something is known not to have been there.
    pub fn put_right(&self, differed: bool) {
        let mut state = self.lock();
        if differed || !state.monitor.findings.is_clean() {
            state.monitor.put_right();
            state.pending = Findings::default();
        }
    }

    /// Seeds were rotated on command, maybe because of an alarm.
    pub fn rotated(&self) {
        let mut state = self.lock();
        if state.monitor.is_alarm() {
            state.monitor.rotated();
        }
    }

    /// What became of a remedy.
    pub fn carried_out(&self, ask: &Ask, result: &Result<usize, String>) {
        self.lock().monitor.carried_out(ask, result, unix_ms());
    }

    /// Samples of new flows.
    pub fn take(&self, samples: &[Sample], recorder: &Recorder) {
        let published = self.board.read();
        let mut state = self.lock();
        let before = state.monitor.sampled.wrong;
        for sample in samples {
            state.monitor.sampled.take(sample, &published, &self.source);
        }
        let ok = state.monitor.sampled.wrong == before;
        drop(state);
        recorder.self_checked("samples", ok);
    }

    /// Flows to ask every CPU about: one of each service, another one each time.
    pub fn questions(&self, most: usize, random: u64) -> Vec<Question> {
        let published = self.board.read();
        let services: Vec<_> = published
            .services
            .iter()
            .filter(|(_, table)| !table.slots.is_empty())
            .collect();
        let count = services.len();
        let first = if count > most { random as usize % count } else { 0 };
        let chosen = services.iter().cycle().skip(first).take(count.min(most));
        chosen
            .enumerate()
            .map(|(place, (key, _))| {
                let mixed = random
                    .wrapping_mul(0x9e37_79b9_7f4a_7c15)
                    .wrapping_add(place as u64);
                let flow = Sample {
                    words: [
                        mixed,
                        mixed.rotate_left(17),
                        mixed.rotate_left(31),
                        mixed.rotate_left(47),
                    ],
                    ports: (mixed >> 16) as u32,
                    protocol: key.protocol,
                    family: key.family,
                    ..Sample::default()
                };
                (**key, flow)
            })
            .collect()
    }

    /// Computes the answers of the CPUs again.
    pub fn known_answers(
        &self,
        questions: &[Question],
        answers: Result<Vec<(u32, Vec<Answer>)>, String>,
        recorder: &Recorder,
    ) {
        let published = self.board.read();
        let mut state = self.lock();
        let mut known = KnownAnswers {
            at: Some(self.started.elapsed()),
            ..KnownAnswers::default()
        };
        match answers {
            Ok(answers) => {
                known.cpus = answers.len();
                let (seen, wrong) = (state.monitor.sampled.seen, state.monitor.sampled.wrong);
                let all = answers
                    .into_iter()
                    .flat_map(|(_, answers)| questions.iter().zip(answers));
                for ((key, asked), answer) in all {
                    if let (Some(table), Some(answer)) = (published.services.get(key), answer) {
                        let same = (answer.words, answer.ports) == (asked.words, asked.ports);
                        let sampled: &mut Sampled = &mut state.monitor.sampled;
                        if same {
                            sampled.audit(&answer, table, &published, &self.source);
                        }
                    }
                }
                known.checked = state.monitor.sampled.seen - seen;
                known.wrong = state.monitor.sampled.wrong - wrong;
            }
            Err(error) => known.error = Some(error),
        }
        let ok = known.wrong == 0 && known.error.is_none();
        state.monitor.known_answers = known;
        drop(state);
        recorder.self_checked("hash", ok);
    }

    /// Which part of the traffic should be sampled, when that is another one than now.
    pub fn sampling(&self) -> Option<Sampling> {
        let mut state = self.lock();
        let seconds = state.monitor.settings.interval.as_secs_f64();
        let [flows, packets] = state.monitor.traffic_in_check();
        for (rate, count) in state.rates.iter_mut().zip([flows, packets]) {
            *rate += (count as f64 / seconds - *rate) / SMOOTH;
        }
        let [flows, packets] = state.rates;
        let wanted = Sampling {
            flow_bits: Sampled::bits_for(flows),
            packet_bits: Sampled::bits_for(packets),
        };
        let fits = state
            .sampling
            .is_some_and(|now| fits(now.flow_bits, flows) && fits(now.packet_bits, packets));
        (!fits && state.sampling != Some(wanted)).then_some(wanted)
    }

    /// The datapath samples this part from now on.
    pub fn set_sampling(&self, sampling: Sampling) {
        let mut state = self.lock();
        state.sampling = Some(sampling);
        state.monitor.sampled.set_sampling(sampling);
    }

    /// Everything that is known, of one service or of all; `None` when there is no such service.
    pub fn report(&self, service: Option<&str>) -> Option<SkewReport> {
        self.lock().monitor.report_of(service, unix_ms())
    }

    /// Counters as they are now, to be recorded.
    pub fn reading(&self) -> Reading {
        let state = self.lock();
        record::take(&state.monitor, &self.source, self.started.elapsed(), unix_ms())
    }

    /// For the metrics, and when the last check was made, in seconds since 1970.
    pub fn gauges(&self) -> (Gauges, Option<f64>) {
        let state = self.lock();
        (Gauges::of(&state.monitor), state.last_check)
    }

    /// CPUs that the maps were made for.
    pub fn cpus(&self) -> u32 {
        self.source.cpus()
    }

    /// Generations of all seeds as published: a known-answer test is due when they change.
    pub fn seed_generations(&self) -> Vec<u32> {
        let published = self.board.read();
        published.seeds.values().map(|seed| seed.generation).collect()
    }
}

/// Whether one in 2^`bits` of so many a second is near enough to what is aimed at.
fn fits(bits: u32, per_second: f64) -> bool {
    let sampled = per_second / f64::from(1u32 << bits.min(31)) / super::samples::RATE;
    RATE_RANGE.contains(&sampled) || (bits == 0 && sampled <= 1.0)
}

fn unix_ms() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
}
