//! What was computed against what is wanted, to the tolerances of the file.

use serde_json::Value;

/// A computed output.
#[derive(Clone, Debug)]
pub(super) enum Found {
    Nothing,
    Flag(bool),
    Count(u64),
    /// Computed in f64: within 1e-9, absolute or relative.
    Number(f64),
    /// Went through an S that is kept in f32: within 1e-4 or, since an f32 has no more digits, 5e-7 of the largest S on
    /// the way. (The product keeps S below some tens, the vectors let it grow.)
    S {
        value: f64,
        largest: f64,
    },
    /// Place of a largest S: the indices and the S at any place, since places of equal S may be exchanged.
    Place {
        at: [usize; 2],
        s: Vec<Vec<f64>>,
    },
    List(Vec<Found>),
    Map(Vec<(&'static str, Found)>),
}

#[derive(Default)]
pub(super) struct Comparison {
    pub(super) problems: Vec<String>,
    pub(super) numbers: usize,
}

impl Comparison {
    pub(super) fn problem(&mut self, text: String) {
        self.problems.push(text);
    }

    fn expect(&mut self, holds: bool, text: impl FnOnce() -> String) {
        self.numbers += 1;
        if !holds {
            self.problem(text());
        }
    }
}

pub(super) fn numbers(values: impl IntoIterator<Item = f64>) -> Found {
    Found::List(values.into_iter().map(Found::Number).collect())
}

pub(super) fn option<T>(value: Option<T>, found: impl FnOnce(T) -> Found) -> Found {
    value.map_or(Found::Nothing, found)
}

impl Found {
    pub(super) fn compare(&self, path: &str, wanted: &Value, comparison: &mut Comparison) {
        let wrong = || format!("{path}: {self:?} instead of {wanted}");
        match self {
            Self::Nothing => comparison.expect(wanted.is_null(), wrong),
            Self::Flag(flag) => comparison.expect(wanted.as_bool() == Some(*flag), wrong),
            Self::Count(count) => comparison.expect(number(wanted) == Some(*count as f64), wrong),
            Self::Number(value) => comparison.expect(is_near(*value, wanted, 1e-9, 1e-9), wrong),
            Self::S { value, largest } => {
                comparison.expect(
                    is_near(*value, wanted, f64::max(1e-4, 5e-7 * largest), 5e-7),
                    wrong,
                );
            }
            Self::Place { at, s } => comparison.expect(is_place(*at, s, wanted), || {
                format!("{path}: largest at {at:?} instead of {wanted}")
            }),
            Self::List(values) => match wanted.as_array().filter(|wanted| wanted.len() == values.len()) {
                Some(wanted) => {
                    for (index, (value, wanted)) in values.iter().zip(wanted).enumerate() {
                        value.compare(&format!("{path}[{index}]"), wanted, comparison);
                    }
                }
                None => comparison.problem(wrong()),
            },
            Self::Map(fields) => match wanted.as_object() {
                Some(wanted) => {
                    for (name, wanted) in wanted {
                        let path = format!("{path}.{name}");
                        match fields.iter().find(|(known, _)| known == name) {
                            Some((_, found)) => found.compare(&path, wanted, comparison),
                            None => comparison.problem(format!("{path}: this output is not known")),
                        }
                    }
                }
                None => comparison.problem(wrong()),
            },
        }
    }
}

fn number(value: &Value) -> Option<f64> {
    match value {
        // Infinite numbers, which JSON does not have.
        Value::String(word) => word.parse().ok(),
        value => value.as_f64(),
    }
}

fn is_near(found: f64, wanted: &Value, absolute: f64, relative: f64) -> bool {
    // What is not finite may be written as nothing.
    let Some(wanted) = number(wanted) else {
        return wanted.is_null() && !found.is_finite();
    };
    found == wanted
        || (found.is_nan() && wanted.is_nan())
        || (found - wanted).abs() <= absolute.max(relative * wanted.abs())
}

fn is_place(at: [usize; 2], s: &[Vec<f64>], wanted: &Value) -> bool {
    let Some(wanted) = wanted.as_array().filter(|wanted| wanted.len() == 2) else {
        return false;
    };
    let indices: Vec<usize> = wanted
        .iter()
        .filter_map(|index| Some(index.as_u64()? as usize))
        .collect();
    let [category, tilt] = indices[..] else {
        return false;
    };
    let there = s.get(category).and_then(|s| s.get(tilt));
    let top = s[at[0]][at[1]];
    there.is_some_and(|there| (there - top).abs() <= f64::max(1e-4, 5e-7 * top.abs()))
}

/// Changes a wanted value by a little more than what is tolerated.
pub(super) fn disturb(value: &mut Value) {
    *value = match value.take() {
        Value::Null => 1.into(),
        Value::Bool(flag) => (!flag).into(),
        Value::Number(number) => {
            let number = number.as_f64().unwrap();
            (number + f64::max(3e-4, 3e-6 * number.abs())).into()
        }
        Value::String(text) => format!("{text}?").into(),
        Value::Array(mut values) => {
            match values.last_mut() {
                Some(last) => disturb(last),
                None => values.push(1.into()),
            }
            values.into()
        }
        Value::Object(mut fields) => {
            match fields.values_mut().last() {
                Some(last) => disturb(last),
                None => return,
            }
            fields.into()
        }
    };
}
