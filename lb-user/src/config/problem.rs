//! One thing wrong with a configuration, and what to do about it.

use std::{fmt, net::IpAddr};

use serde::{Deserialize, Serialize};

/// What a problem is about.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum Place {
    /// The file as a whole.
    #[default]
    File,
    /// A key of a section such as `datapath`.
    Section { section: String, key: String },
    /// A service: its place in the list, its name, and the key.
    Service { index: usize, name: String, key: String },
    /// A backend of a service.
    Backend {
        service: usize,
        name: String,
        index: usize,
        address: IpAddr,
        key: String,
    },
}

/// Something wrong, where, and the next step.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Problem {
    pub place: Place,
    /// What is wrong.
    pub what: String,
    /// What to do.
    pub remedy: String,
    pub file: Option<String>,
    /// 1..
    pub line: Option<usize>,
}

impl Problem {
    pub fn new(place: Place, what: impl Into<String>, remedy: impl Into<String>) -> Self {
        Self {
            place,
            what: what.into(),
            remedy: remedy.into(),
            file: None,
            line: None,
        }
    }
}

impl Problem {
    /// Where and what, without the remedy.
    fn statement(&self) -> String {
        let Self { place, what, .. } = self;
        match (&self.file, self.line) {
            (Some(file), Some(line)) => format!("{file}:{line}: {place}{what}"),
            (Some(file), None) => format!("{file}: {place}{what}"),
            (None, _) => format!("{place}{what}"),
        }
    }
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.statement())?;
        if !self.remedy.is_empty() {
            write!(f, "; {}", self.remedy)?;
        }
        Ok(())
    }
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::File => Ok(()),
            Self::Section { section, key } if key.is_empty() => write!(f, "{section}: "),
            Self::Section { section, key } => write!(f, "{section}.{key}: "),
            Self::Service { index, name, .. } if name.is_empty() => write!(f, "service {}: ", index + 1),
            Self::Service { name, .. } => write!(f, "service {name}: "),
            Self::Backend { name, address, .. } => write!(f, "service {name}, backend {address}: "),
        }
    }
}

/// All that is wrong, one line each.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Problems(pub Vec<Problem>);

impl Problems {
    /// What is wrong, for whoever shows the next step apart; several problems keep their remedies.
    pub fn statement(&self) -> String {
        match &self.0[..] {
            [problem] => problem.statement(),
            _ => self.to_string(),
        }
    }

    /// What to do about it.
    pub fn next_step(&self) -> String {
        match &self.0[..] {
            [problem] if !problem.remedy.is_empty() => problem.remedy.clone(),
            [_] => "correct it, then try again".to_owned(),
            _ => "correct all of these, then try again".to_owned(),
        }
    }
}

impl fmt::Display for Problems {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (place, problem) in self.0.iter().enumerate() {
            let separator = if place == 0 { "" } else { "\n" };
            write!(f, "{separator}{problem}")?;
        }
        Ok(())
    }
}

impl std::error::Error for Problems {}
