//! Holds the statistics to vectors that mpmath and scipy made.
//!
//! Every field of every case is compared: a kind, an input or an output that is not known here fails. The environment
//! variable `SKEW_VECTORS` names another file of the same format to use instead of the ones in the repository.

mod compare;
mod detector;
mod formulas;
mod text;

use serde::Deserialize;
use serde_json::{Map, Value};

/// A file of vectors.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Vectors {
    meta: Meta,
    cases: Vec<Case>,
}

/// What the vectors were made with.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Meta {
    #[serde(rename = "generator")]
    _generator: Option<Value>,
    #[serde(rename = "seed")]
    _seed: Option<Value>,
    #[serde(rename = "tolerance")]
    _tolerance: Option<Value>,
    #[serde(rename = "notes")]
    _notes: Option<Value>,
    theta_up: Vec<f64>,
    theta_dn: Vec<f64>,
    dense_theta: Vec<f64>,
    dense_z0: Vec<f64>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Case {
    id: String,
    kind: String,
    r#in: Map<String, Value>,
    out: Map<String, Value>,
    #[serde(rename = "note")]
    _note: Option<String>,
}

/// What a case is computed to, by name of the field.
type Fields = Vec<(&'static str, compare::Found)>;

/// Why a case could not be computed: the file has what this code does not know.
type Computed = Result<Fields, String>;

impl Case {
    fn compute(&self) -> Computed {
        match self.kind.as_str() {
            "tolerance" => formulas::tolerance(self.input()?),
            "sparse_increment" => formulas::sparse_increment(self.input()?),
            "classical" => formulas::classical(self.input()?),
            "dm_bayes_factor" => formulas::dm_bayes_factor(self.input()?),
            "effect" => formulas::effect(self.input()?),
            "share_interval" => formulas::share_interval(self.input()?),
            "lorden" => formulas::lorden(self.input()?),
            "n_required" => formulas::n_required(self.input()?),
            "expected_tv_given_neff" => formulas::expected_tv(self.input()?),
            "n_eff" => formulas::n_eff(self.input()?),
            "heterogeneity" => formulas::heterogeneity(self.input()?),
            "skewdet" => detector::skewdet(self.input()?),
            "skewdet_hist" => detector::histogram(self.input()?),
            "piecewise_null" => detector::piecewise(self.input()?),
            "rotation_bet" => detector::rotation(self.input()?),
            unknown => Err(format!("kind {unknown:?} is not known")),
        }
    }

    fn input<T: serde::de::DeserializeOwned>(&self) -> Result<T, String> {
        serde_json::from_value(Value::Object(self.r#in.clone())).map_err(|error| format!("in: {error}"))
    }

    /// Problems of this case, and how many numbers were compared.
    fn check(&self) -> (Vec<String>, usize) {
        let found = match self.compute() {
            Ok(found) => found,
            Err(error) => return (vec![format!("{}: {error}", self.id)], 0),
        };
        let mut comparison = compare::Comparison::default();
        for (name, wanted) in &self.out {
            let path = format!("{}.{name}", self.id);
            match found.iter().find(|(known, _)| known == name) {
                Some((_, found)) => found.compare(&path, wanted, &mut comparison),
                None => comparison.problem(format!("{path}: this output is not known")),
            }
        }
        if comparison.numbers == 0 {
            comparison.problem(format!("{}: nothing was compared", self.id));
        }
        (comparison.problems, comparison.numbers)
    }
}

/// Problems of a file of vectors, and how many numbers were compared.
fn check_file(text: &str) -> (Vec<String>, usize) {
    let vectors: Vectors = match serde_json::from_str(&text::without_bare_words(text)) {
        Ok(vectors) => vectors,
        Err(error) => return (vec![format!("not a file of vectors: {error}")], 0),
    };
    let mut problems = vectors.meta.problems();
    let mut numbers = 0;
    if vectors.cases.is_empty() {
        problems.push("no case".to_owned());
    }
    for case in &vectors.cases {
        let (more, compared) = case.check();
        problems.extend(more);
        numbers += compared;
    }
    (problems, numbers)
}

impl Meta {
    fn problems(&self) -> Vec<String> {
        use super::{dense, tilt};
        let (up, down) = tilt::THETA.split_at(tilt::UP_TILTS);
        let pairs: [(&str, &[f64], &[f64]); 4] = [
            ("theta_up", &self.theta_up, up),
            ("theta_dn", &self.theta_dn, down),
            ("dense_theta", &self.dense_theta, &super::DENSE_THETA),
            ("dense_z0", &self.dense_z0, &dense::CUTS),
        ];
        let differ = |(wanted, ours): (&[f64], &[f64])| {
            wanted.len() != ours.len()
                || wanted
                    .iter()
                    .zip(ours)
                    .any(|(a, b)| (a - b).abs() > 1e-15 * b.abs())
        };
        pairs
            .into_iter()
            .filter(|(_, wanted, ours)| differ((wanted, ours)))
            .map(|(name, wanted, ours)| format!("meta.{name}: {wanted:?} is not {ours:?}"))
            .collect()
    }
}

/// The file's text. A path that is not found from here is looked for from the workspace's root.
fn read(path: &str) -> String {
    let from_root = std::path::Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("..")
        .join(path);
    let text = std::fs::read_to_string(path).or_else(|_| std::fs::read_to_string(from_root));
    text.unwrap_or_else(|error| panic!("cannot read SKEW_VECTORS={path}: {error}; give an absolute path"))
}

#[test]
fn vectors_reproduce() {
    let files = match std::env::var("SKEW_VECTORS") {
        Ok(path) => vec![(path.clone(), read(&path))],
        Err(_) => vec![
            (
                "skew_vectors.json".to_owned(),
                include_str!("skew_vectors.json").to_owned(),
            ),
            (
                "extreme_vectors.json".to_owned(),
                include_str!("extreme_vectors.json").to_owned(),
            ),
        ],
    };
    for (name, text) in files {
        let (problems, numbers) = check_file(&text);
        println!("{name}: {numbers} numbers compared, {} problems", problems.len());
        assert!(problems.is_empty(), "{name}:\n{}", problems.join("\n"));
    }
}

/// The comparison can fail: each of these changes to the file must be noticed.
#[test]
fn vectors_that_were_tampered_with_are_refused() {
    let text = include_str!("skew_vectors.json");
    assert_eq!(check_file(text).0, Vec::<String>::new());
    let good: Value = serde_json::from_str(text).unwrap();
    let refuses = |what: &str, change: &dyn Fn(&mut Value)| {
        let mut changed = good.clone();
        change(&mut changed);
        assert_ne!(changed, good, "{what} changed nothing");
        assert!(
            !check_file(&changed.to_string()).0.is_empty(),
            "{what} went unnoticed"
        );
    };
    for case in good["cases"].as_array().unwrap() {
        for name in case["out"].as_object().unwrap().keys() {
            let mut changed = serde_json::json!({ "meta": good["meta"], "cases": [case] });
            compare::disturb(&mut changed["cases"][0]["out"][name]);
            let problems = check_file(&changed.to_string()).0;
            assert_eq!(problems.len(), 1, "another {}.{name} went unnoticed", case["id"]);
        }
    }
    refuses("an unknown kind", &|file| {
        file["cases"][0]["kind"] = "other".into()
    });
    refuses("an unknown input", &|file| {
        file["cases"][0]["in"]["other"] = 1.into()
    });
    refuses("an unknown output", &|file| {
        file["cases"][0]["out"]["other"] = 1.into()
    });
    refuses("an unknown field", &|file| file["cases"][0]["other"] = 1.into());
    refuses("another tilt", &|file| file["meta"]["theta_up"][0] = 0.2.into());
    refuses("no case", &|file| file["cases"] = Value::Array(Vec::new()));
    refuses("no output", &|file| {
        file["cases"][0]["out"] = Value::Object(Map::new())
    });
}
