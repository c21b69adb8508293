//! Reads a record, and refuses what is none, naming the line.

use std::{
    cmp::Ordering,
    collections::BTreeSet,
    fs::File,
    io::{self, BufRead, BufReader},
    path::{Path, PathBuf},
};

use lb_common::{
    ids::MAX_BACKEND_IDS,
    slot_table::{HISTOGRAM_BUCKETS, MAX_SLOTS},
};

use super::format::{Check, Header, Place, ServiceRecord, VERSION};

/// Why a file is no record. Lines count from 1.
#[derive(Debug, thiserror::Error)]
pub enum RecordError {
    #[error("cannot open {}", .0.display())]
    Open(PathBuf, #[source] io::Error),
    #[error("cannot read line {line} of {}", file.display())]
    Read {
        file: PathBuf,
        line: u64,
        source: io::Error,
    },
    #[error("{} is empty", .0.display())]
    Empty(PathBuf),
    #[error("{} is no record of the spread: its first line is no header", file.display())]
    Header {
        file: PathBuf,
        source: serde_json::Error,
    },
    #[error("{} is a record of version {found}; this `evenkeel` reads version {VERSION}", file.display())]
    Version { file: PathBuf, found: u32 },
    #[error("line {line} of {} breaks off", file.display())]
    Cut {
        file: PathBuf,
        line: u64,
        source: serde_json::Error,
    },
    #[error("line {line} of {} is no check", file.display())]
    Line {
        file: PathBuf,
        line: u64,
        source: serde_json::Error,
    },
    #[error("line {line} of {} contradicts itself: {problem}", file.display())]
    Contradiction {
        file: PathBuf,
        line: u64,
        problem: String,
    },
}

impl RecordError {
    /// What to do about it.
    pub fn next_step(&self) -> String {
        match self {
            Self::Open(..) | Self::Read { .. } => "name a file that can be read".to_owned(),
            Self::Empty(..) => {
                "record for longer than one check: evenkeel skew --record FILE --for 60s".to_owned()
            }
            Self::Header { .. } => "name a file that `evenkeel skew --record FILE` made".to_owned(),
            Self::Version { .. } => "use the `evenkeel` of the version that recorded it".to_owned(),
            Self::Cut { line, .. } => {
                format!(
                    "the recording was broken off there: keep the lines before {line}, as with `head -n {}`",
                    line - 1
                )
            }
            Self::Line { line, .. } | Self::Contradiction { line, .. } => {
                format!("the file was changed or damaged: record again, or keep the lines before {line}")
            }
        }
    }
}

/// The checks of a record, in order; ends after the first error.
pub struct Records {
    file: PathBuf,
    lines: BufReader<File>,
    line: u64,
    last: Option<u64>,
    cpus: u32,
    failed: bool,
}

/// Opens a record and reads its header.
pub fn open(path: &Path) -> Result<(Header, Records), RecordError> {
    let file = path.to_path_buf();
    let lines = File::open(path).map_err(|error| RecordError::Open(file.clone(), error))?;
    let mut records = Records {
        file,
        lines: BufReader::new(lines),
        line: 0,
        last: None,
        cpus: 0,
        failed: false,
    };
    let first = records
        .read()?
        .ok_or_else(|| RecordError::Empty(records.file.clone()))?;
    let header = records.header(&first)?;
    records.cpus = header.cpus;
    Ok((header, records))
}

impl Records {
    fn read(&mut self) -> Result<Option<Vec<u8>>, RecordError> {
        let mut text = Vec::new();
        self.line += 1;
        let read = self.lines.read_until(b'\n', &mut text);
        let read = read.map_err(|source| RecordError::Read {
            file: self.file.clone(),
            line: self.line,
            source,
        })?;
        Ok((read > 0).then_some(text))
    }

    fn header(&self, text: &[u8]) -> Result<Header, RecordError> {
        // The version first: headers of other versions may have other fields.
        #[derive(serde::Deserialize)]
        struct Versioned {
            evenkeel_skew_record: u32,
        }
        let refused = |source| RecordError::Header {
            file: self.file.clone(),
            source,
        };
        let Versioned {
            evenkeel_skew_record: found,
        } = serde_json::from_slice(text).map_err(refused)?;
        if found != VERSION {
            let file = self.file.clone();
            return Err(RecordError::Version { file, found });
        }
        let header: Header = serde_json::from_slice(text).map_err(refused)?;
        if header.interval_ms == 0
            || header.false_alarms_per_year.partial_cmp(&0.0) != Some(Ordering::Greater)
        {
            return Err(self.contradiction("interval and budget of false alarms must be above 0".to_owned()));
        }
        Ok(header)
    }

    fn check(&mut self, text: &[u8]) -> Result<Check, RecordError> {
        let (file, line) = (self.file.clone(), self.line);
        let check: Check = serde_json::from_slice(text).map_err(|source| {
            if source.is_eof() && !text.ends_with(b"\n") {
                RecordError::Cut { file, line, source }
            } else {
                RecordError::Line { file, line, source }
            }
        })?;
        if let Some(last) = self.last.filter(|last| check.at_ms <= *last) {
            return Err(self.contradiction(format!(
                "it was taken at {} ms, not after the check before ({last} ms)",
                check.at_ms
            )));
        }
        self.last = Some(check.at_ms);
        contradiction(&check, self.cpus).map_or(Ok(check), |problem| Err(self.contradiction(problem)))
    }

    fn contradiction(&self, problem: String) -> RecordError {
        RecordError::Contradiction {
            file: self.file.clone(),
            line: self.line,
            problem,
        }
    }
}

impl Iterator for Records {
    type Item = Result<Check, RecordError>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.failed {
            return None;
        }
        let text = match self.read() {
            Ok(text) => text?,
            Err(error) => {
                self.failed = true;
                return Some(Err(error));
            }
        };
        let check = self.check(&text);
        self.failed = check.is_err();
        Some(check)
    }
}

/// What in a check cannot be.
fn contradiction(check: &Check, cpus: u32) -> Option<String> {
    let short = check
        .cpus
        .iter()
        .find(|cpu| cpu.fresh.len() != HISTOGRAM_BUCKETS as usize);
    if let Some(cpu) = short {
        return Some(format!(
            "the histogram of CPU {} has {} buckets instead of {HISTOGRAM_BUCKETS}",
            cpu.cpu,
            cpu.fresh.len()
        ));
    }
    if !check.cpus.is_sorted_by(|one, next| one.cpu < next.cpu) {
        return Some("CPUs are not in rising order".to_owned());
    }
    if let Some(cpu) = check.cpus.last().filter(|cpu| cpu.cpu >= cpus) {
        return Some(format!("CPU {} is none of the {cpus} that there are", cpu.cpu));
    }
    if !check.services.is_sorted_by(|one, next| one.name < next.name) {
        return Some("services are not in order of their names, each once".to_owned());
    }
    let beyond = check
        .seeds
        .iter()
        .find(|seed| matches!(seed.place, Place::Cpu(cpu) if cpu >= cpus));
    if let Some(Place::Cpu(cpu)) = beyond.map(|seed| seed.place) {
        return Some(format!(
            "there is a seed of CPU {cpu}, which is none of the {cpus} that there are"
        ));
    }
    check
        .services
        .iter()
        .find_map(|service| of_service(service, check.cpus.len()))
}

fn of_service(service: &ServiceRecord, cpus: usize) -> Option<String> {
    let name = &service.name;
    if let Some(backend) = service
        .backends
        .iter()
        .find(|backend| backend.fresh.len() != cpus)
    {
        return Some(format!(
            "backend {} of {name} has counts of {} CPUs, of {cpus} that there are",
            backend.endpoint,
            backend.fresh.len()
        ));
    }
    let owned: u64 = service
        .backends
        .iter()
        .map(|backend| u64::from(backend.owned))
        .sum();
    if owned > u64::from(service.slots) {
        return Some(format!(
            "backends of {name} own {owned} of {} slots",
            service.slots
        ));
    }
    if service.slots > MAX_SLOTS {
        return Some(format!(
            "{name} has {} slots, more than the {MAX_SLOTS} that are possible",
            service.slots
        ));
    }
    if let Some(backend) = service
        .backends
        .iter()
        .find(|backend| backend.id >= MAX_BACKEND_IDS)
    {
        return Some(format!(
            "backend {} of {name} has the impossible id {}",
            backend.endpoint, backend.id
        ));
    }
    let endpoints: BTreeSet<_> = service.backends.iter().map(|backend| backend.endpoint).collect();
    (endpoints.len() != service.backends.len()).then(|| format!("a backend of {name} is there twice"))
}
