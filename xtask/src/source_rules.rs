//! Rules about the source that no lint knows: who may name what, and how long a file may be.

use std::path::Path;

use crate::run;

const LONGEST: usize = 600;

/// Every Rust file of the workspace: path from its root, text.
fn sources() -> Vec<(String, String)> {
    let root = run::root();
    let mut all = Vec::new();
    for member in ["lb-common", "lb-ebpf", "lb-user", "tests", "xtask"] {
        for (path, text) in run::rust_files(&root.join(member)) {
            let path = path
                .strip_prefix(&root)
                .unwrap_or(Path::new(""))
                .display()
                .to_string();
            all.push((path, text));
        }
    }
    assert!(
        all.len() > 20,
        "the sources were not found under {}",
        root.display()
    );
    all
}

/// The text before the unit tests at its end.
fn product(text: &str) -> &str {
    text.split("\n#[cfg(test)]\nmod ").next().unwrap_or(text)
}

/// Lines of code (not of comment) in files that `covers` picks which contain one of `words`.
fn offences(covers: impl Fn(&str) -> bool, part: fn(&str) -> &str, words: &[&str]) -> Vec<String> {
    let mut found = Vec::new();
    for (path, text) in sources().iter().filter(|(path, _)| covers(path)) {
        let code = part(text)
            .lines()
            .enumerate()
            .filter(|(_, line)| !line.trim_start().starts_with("//"));
        for (number, line) in code {
            found.extend(
                words
                    .iter()
                    .filter(|word| line.contains(*word))
                    .map(|word| format!("{path}:{}: {word}: {}", number + 1, line.trim())),
            );
        }
    }
    found
}

#[test]
fn only_the_kernel_shell_names_aya() {
    // Roots of programs, and what they say to the kernel.
    let shell = [
        "lb-ebpf/src/kernel/",
        "lb-ebpf/src/main.rs",
        "lb-ebpf/src/check_main.rs",
        "lb-ebpf/src/bench.rs",
    ];
    let pure =
        |path: &str| path.starts_with("lb-ebpf/src/") && !shell.iter().any(|own| path.starts_with(own));
    assert_eq!(offences(pure, product, &["aya"]), Vec::<String>::new());
}

#[test]
fn plans_know_no_clock_no_chance_and_no_map() {
    let pure =
        |path: &str| path.starts_with("lb-user/src/plan/") && !path.starts_with("lb-user/src/plan/tests");
    let words = [
        "std::time",
        "SystemTime",
        "Instant::now",
        "getrandom",
        "rustix",
        "tokio",
        "aya",
        "std::fs",
        "std::net::Tcp",
    ];
    assert_eq!(offences(pure, product, &words), Vec::<String>::new());
}

#[test]
fn nothing_is_left_to_do_and_no_test_is_ignored() {
    let words = ["todo!(", "unimplemented!(", "#[ignore"];
    assert_eq!(
        offences(|path| path != "xtask/src/source_rules.rs", str::as_ref, &words),
        Vec::<String>::new()
    );
}

#[test]
fn files_are_short_and_start_with_a_sentence() {
    for (path, text) in sources() {
        let lines = text.lines().count();
        assert!(
            lines <= LONGEST,
            "{path} has {lines} lines, {LONGEST} is the most"
        );
        assert!(
            text.starts_with("//! "),
            "{path} does not start with a sentence saying what it is"
        );
    }
}
