//! A parsed TOML file: its parts are read one by one, so that one error does not hide the next.

use std::ops::Range;

use serde::de::DeserializeOwned;
use toml::{
    Spanned,
    de::{DeTable, DeValue, ValueDeserializer},
};

use super::{
    check::validate,
    keys::{self, Key},
    problem::{Place, Problem, Problems},
    spec::{BackendSpec, ServiceSpec},
};
use crate::discovery::SourceSpec;

/// A parsed file, and what is wrong with it so far.
pub(super) struct Document<'a> {
    text: &'a str,
    file: &'a str,
    pub root: DeTable<'a>,
    problems: Vec<Problem>,
    /// Where each service that could be read stands in the file, and its backends in turn.
    read: Vec<(usize, Vec<usize>)>,
}

impl<'a> Document<'a> {
    pub fn parse(text: &'a str, file: &'a str) -> Result<Self, Problems> {
        let (root, errors) = DeTable::parse_recoverable(text);
        let mut document = Self {
            text,
            file,
            root: root.into_inner(),
            problems: Vec::new(),
            read: Vec::new(),
        };
        for error in errors {
            document.toml_error(Place::File, &error);
        }
        if document.problems.is_empty() {
            Ok(document)
        } else {
            Err(Problems(document.problems))
        }
    }

    /// The value, if nothing was wrong with any part of the file; else all problems, in the order of lines.
    pub fn finish<T>(mut self, value: T) -> Result<T, Problems> {
        if self.problems.is_empty() {
            return Ok(value);
        }
        self.problems.sort_by_key(|problem| problem.line);
        Err(Problems(self.problems))
    }

    pub fn refuse_unknown(&mut self, known: &[&str]) {
        let unknown: Vec<(String, Range<usize>)> = self
            .root
            .keys()
            .filter(|key| !known.contains(&key.get_ref().as_ref()))
            .map(|key| (key.get_ref().to_string(), key.span()))
            .collect();
        for (key, span) in unknown {
            let known: Vec<String> = known.iter().map(|key| format!("`{key}`")).collect();
            let what = format!("unknown section or key `{key}`, expected {}", known.join(", "));
            self.problem_at(span, &Place::File, what, "");
        }
    }

    /// The section's value; `None` after an error or if the section is missing.
    pub fn section<T: DeserializeOwned>(&mut self, name: &str, keys: &'static [Key]) -> Option<T> {
        let value = self.root.get(name)?.clone();
        let place = Place::Section {
            section: name.to_owned(),
            key: String::new(),
        };
        self.part(&place, value, &keys.iter().collect::<Vec<_>>())
    }

    /// A table of these keys, every one of which is looked at; `None` after an error.
    fn part<T: DeserializeOwned>(
        &mut self,
        place: &Place,
        value: Spanned<DeValue<'a>>,
        keys: &[&'static Key],
    ) -> Option<T> {
        self.part_with(place, value, keys, |_, _, _| None)
    }

    /// [`part`](Self::part), asking `culprit` for the key at fault when an error does not say where it is.
    fn part_with<T: DeserializeOwned>(
        &mut self,
        place: &Place,
        mut value: Spanned<DeValue<'a>>,
        keys: &[&'static Key],
        culprit: Culprit,
    ) -> Option<T> {
        let span = value.span();
        // A struct could be read from a list too, by position.
        let DeValue::Table(table) = value.get_mut() else {
            let what = format!("{} is no table of keys and values", self.quote(&span));
            let remedy = "write its keys below a header like [datapath] or [[service]]";
            self.problem_at(span, place, what, remedy);
            return None;
        };
        let known = self.problems.len();
        self.refuse_strange_keys(place, table, keys);
        for key in keys.iter().filter(|key| key.required) {
            if !table.contains_key(key.name) {
                self.problem_at(span.clone(), place, format!("{} is missing", key.name), key.write);
            }
        }
        loop {
            let error = match T::deserialize(ValueDeserializer::from(value.clone())) {
                Ok(part) if self.problems.len() == known => return Some(part),
                Ok(_) => return None,
                Err(error) => error,
            };
            let at = error.span().unwrap_or_else(|| span.clone());
            let unread = keys.iter().find_map(|key| {
                let found = value.get_ref().get(key.name)?.span();
                (found.start <= at.start && at.end <= found.end).then_some((*key, found))
            });
            let unread = unread.or_else(|| culprit(&value, keys, error.message()));
            let Some((key, found)) = unread else {
                // Only a missing key is left to say, and was said.
                if self.problems.len() == known {
                    self.problem_at(at, place, error.message(), "");
                }
                return None;
            };
            let what = format!("{} = {} is not {}", key.name, self.quote(&found), key.is_not);
            self.problem_at(found, place, what, key.write);
            // The next one may be wrong too.
            if let DeValue::Table(table) = value.get_mut() {
                table.remove(key.name);
            }
        }
    }

    /// Reports keys that are not known and takes them out.
    fn refuse_strange_keys(&mut self, place: &Place, table: &mut DeTable<'a>, keys: &[&Key]) {
        let is_known = |name: &str| keys.iter().any(|key| key.name == name);
        let strange: Vec<(String, Range<usize>)> = table
            .keys()
            .filter(|key| !is_known(key.get_ref()))
            .map(|key| (key.get_ref().to_string(), key.span()))
            .collect();
        for (name, span) in strange {
            let names: Vec<&str> = keys.iter().map(|key| key.name).collect();
            let what = format!("there is no key {name}");
            self.problem_at(span, place, what, &format!("there are {}", names.join(", ")));
            table.remove(name.as_str());
        }
    }

    fn quote(&self, span: &Range<usize>) -> &'a str {
        self.text
            .get(span.clone())
            .and_then(|text| text.lines().next())
            .unwrap_or_default()
    }

    /// The services that can be read, checked.
    pub fn services(&mut self) -> Vec<ServiceSpec> {
        let Some(list) = self.root.get("service").cloned() else {
            return Vec::new();
        };
        let span = list.span();
        let DeValue::Array(list) = list.into_inner() else {
            self.problem_at(
                span,
                &Place::File,
                "`service` is no list",
                "start each service with [[service]]",
            );
            return Vec::new();
        };
        let services: Vec<ServiceSpec> = list
            .into_iter()
            .enumerate()
            .filter_map(|(index, value)| self.service(index, value))
            .collect();
        for mut problem in validate(&services).err().unwrap_or_default() {
            problem.line = self.line_of(&problem.place);
            self.push(problem);
        }
        services
    }

    /// Backends are read one by one; those that cannot be read are reported and left out.
    fn service(&mut self, index: usize, mut value: Spanned<DeValue<'a>>) -> Option<ServiceSpec> {
        let mut backends = Vec::new();
        let mut sources = Vec::new();
        let mut health = None;
        let mut name = String::new();
        if let DeValue::Table(table) = value.get_mut() {
            name = text_of(table, "name");
            backends = take_list(table, "backend");
            sources = take_list(table, "source");
            if table
                .get("health")
                .is_some_and(|table| table.get_ref().is_table())
            {
                health = table.remove("health");
            }
        }
        let place = Place::Service {
            index,
            name,
            key: String::new(),
        };
        let keys: Vec<&Key> = keys::SERVICE.iter().collect();
        let mut service: Option<ServiceSpec> = self.part(&place, value, &keys);
        let mut read = Vec::new();
        let keys: Vec<&Key> = keys::BACKEND.iter().collect();
        for (at, backend) in backends.into_iter().enumerate() {
            if let Some(backend) = self.part::<BackendSpec>(&place, backend, &keys) {
                read.push(at);
                service
                    .as_mut()
                    .into_iter()
                    .for_each(|service| service.backends.push(backend.clone()));
            }
        }
        let sources: Vec<SourceSpec> = sources
            .into_iter()
            .filter_map(|source| self.typed(&place, source, keys::source, keys::SOURCE_TYPES))
            .collect();
        let health = health.and_then(|health| self.typed(&place, health, keys::health, keys::HEALTH_TYPES));
        if let Some(service) = &mut service {
            service.sources = sources;
            service.health = health;
            self.read.push((index, read));
        }
        service
    }

    /// A table whose `type` says which keys it may have.
    fn typed<T: DeserializeOwned>(
        &mut self,
        place: &Place,
        value: Spanned<DeValue<'a>>,
        keys: fn(&str) -> Option<Vec<&'static Key>>,
        types: &str,
    ) -> Option<T> {
        let of = match value.get_ref() {
            DeValue::Table(table) => text_of(table, "type"),
            _ => String::new(),
        };
        let Some(keys) = keys(&of) else {
            let what = match of.is_empty() {
                true => "there is no type".to_owned(),
                false => format!("type = {of:?} is unknown"),
            };
            self.problem_at(value.span(), place, what, types);
            return None;
        };
        self.part_with(place, value, &keys, culprit::<T>)
    }

    /// The line of a key, or else of the table it belongs to.
    fn line_of(&self, place: &Place) -> Option<usize> {
        let (table, key) = match place {
            Place::File => return None,
            Place::Section { section, key } => (self.root.get(section.as_str())?, key),
            Place::Service { index, key, .. } => (self.service_value(self.read.get(*index)?.0)?, key),
            Place::Backend {
                service, index, key, ..
            } => {
                let (service, backends) = self.read.get(*service)?;
                let list = self.service_value(*service)?.get_ref().get("backend")?;
                (list.get_ref().get(*backends.get(*index)?)?, key)
            }
        };
        let entry = table
            .get_ref()
            .as_table()
            .and_then(|table| table.get_key_value(key.as_str()));
        Some(self.line(entry.map_or_else(|| table.span(), |(key, _)| key.span())))
    }

    fn service_value(&self, index: usize) -> Option<&Spanned<DeValue<'a>>> {
        self.root.get("service")?.get_ref().get(index)
    }

    fn line(&self, span: Range<usize>) -> usize {
        let before = self
            .text
            .as_bytes()
            .get(..span.start)
            .unwrap_or(self.text.as_bytes());
        before.iter().filter(|byte| **byte == b'\n').count() + 1
    }

    fn toml_error(&mut self, place: Place, error: &toml::de::Error) {
        let line = error.span().map(|span| self.line(span));
        let remedy = "the file must be TOML (https://toml.io)";
        self.push(Problem {
            line,
            ..Problem::new(place, error.message(), remedy)
        });
    }

    pub fn problem(&mut self, place: Place, what: impl Into<String>, remedy: impl Into<String>) {
        let line = self.line_of(&place);
        self.push(Problem {
            line,
            ..Problem::new(place, what, remedy)
        });
    }

    fn problem_at(&mut self, span: Range<usize>, place: &Place, what: impl Into<String>, remedy: &str) {
        let line = Some(self.line(span));
        self.push(Problem {
            line,
            ..Problem::new(place.clone(), what, remedy)
        });
    }

    fn push(&mut self, problem: Problem) {
        self.problems.push(Problem {
            file: Some(self.file.to_owned()),
            ..problem
        });
    }
}

type Culprit = fn(&Spanned<DeValue<'_>>, &[&'static Key], &str) -> Option<(&'static Key, Range<usize>)>;

/// The key without which a table fails otherwise, or not at all: for tables whose errors do not say where they are.
fn culprit<T: DeserializeOwned>(
    table: &Spanned<DeValue<'_>>,
    keys: &[&'static Key],
    error: &str,
) -> Option<(&'static Key, Range<usize>)> {
    let DeValue::Table(entries) = table.get_ref() else {
        return None;
    };
    let spoils = |key: &&&'static Key| {
        let Some(value) = entries.get(key.name) else {
            return false;
        };
        if key.required {
            // Every one of them is text or a list of it, and without it the table would fail anyway.
            return value.get_ref().as_str().is_none() && value.get_ref().as_array().is_none();
        }
        let mut without = table.clone();
        if let DeValue::Table(entries) = without.get_mut() {
            entries.remove(key.name);
        }
        let other = T::deserialize(ValueDeserializer::from(without));
        !other.is_err_and(|other| other.message() == error)
    };
    let culprit = keys.iter().find(spoils)?;
    Some((*culprit, entries.get(culprit.name)?.span()))
}

fn text_of(table: &DeTable<'_>, key: &str) -> String {
    let text = table.get(key).and_then(|value| value.get_ref().as_str());
    text.unwrap_or_default().to_owned()
}

/// Takes a list out; what is no list stays, to be complained of.
fn take_list<'a>(table: &mut DeTable<'a>, key: &str) -> Vec<Spanned<DeValue<'a>>> {
    if !table.get(key).is_some_and(|list| list.get_ref().is_array()) {
        return Vec::new();
    }
    match table.remove(key).map(Spanned::into_inner) {
        Some(DeValue::Array(list)) => list.into_iter().collect(),
        _ => Vec::new(),
    }
}
