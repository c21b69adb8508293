//! Nothing in this module reaches outside: no clock, no file, no socket, no map, no chance.

use std::{
    fs,
    path::{Path, PathBuf},
};

const OUTSIDE: [&str; 13] = [
    "Instant",
    "SystemTime",
    "std::fs",
    "std::net",
    "std::env",
    "std::process",
    "std::thread",
    "tokio",
    "rustix",
    "getrandom",
    "aya",
    "crate::maps",
    "async ",
];

fn sources(folder: &Path, found: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        let is_test = ["vectors", "purity.rs", "tests.rs"]
            .iter()
            .any(|name| path.ends_with(name));
        if path.is_dir() && !is_test {
            sources(&path, found);
        } else if path.extension().is_some_and(|extension| extension == "rs") && !is_test {
            found.push(path);
        }
    }
}

#[test]
fn skew_is_pure() {
    let mut found = Vec::new();
    sources(
        &Path::new(env!("CARGO_MANIFEST_DIR")).join("src/skew"),
        &mut found,
    );
    assert!(found.len() > 25, "{} files only", found.len());
    for path in found {
        let text = fs::read_to_string(&path).unwrap();
        for word in OUTSIDE {
            let code = text
                .lines()
                .find(|line| line.contains(word) && !line.trim_start().starts_with("//"));
            assert_eq!(code, None, "{} names {word}", path.display());
        }
    }
}
