//! `cargo xtask setup`: finds or installs the BPF toolchain, its linker and what the tests need.

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context, Result, anyhow, bail, ensure};

use crate::{
    bpf_build::{NIGHTLY, TOOLCHAIN_VARIABLE, Toolchain, Way},
    packages::{self, Package, package},
    run,
};

/// The oldest compiler the workspace accepts (`rust-version`).
const OLDEST_RUSTC: (u32, u32) = (1, 95);
const BPFFS: &str = "/sys/fs/bpf";

/// Everything: to build, to test, to demonstrate.
pub fn run() -> Result<()> {
    to_build()?;
    packages::install(&packages::to_test())?;
    packages::NEXTEST.cargo()?;
    mount_bpffs()?;
    println!("ready: `cargo xtask demo` shows it, `cargo xtask test` tests it");
    Ok(())
}

/// What `cargo build` needs, and no more.
pub fn to_build() -> Result<()> {
    let root = run::root();
    if packages::has_apt() {
        packages::install(&packages::to_build())?;
    }
    let way = choose()?;
    let llvm = llvm_major(way)?;
    let linker = find_linker(&root, way, llvm)?;
    let toolchain = Toolchain { way, linker, llvm };
    // Rewriting the record would rebuild what depends on it.
    if Toolchain::recorded(&root).as_ref() != Ok(&toolchain) {
        toolchain
            .write_record(&root)
            .context("cannot write target/tools/bpf-toolchain")?;
    }
    let version = run::output(way.command("rustc").arg("--version")).unwrap_or_default();
    println!(
        "BPF toolchain: {way} ({}), {}",
        version.trim(),
        toolchain.linker.display()
    );
    Ok(())
}

/// Mounts the BPF file system where everybody looks for it, unless it is there.
pub fn mount_bpffs() -> Result<()> {
    let mounts = fs::read_to_string("/proc/mounts").context("cannot read /proc/mounts")?;
    if mounts
        .lines()
        .any(|line| line.split(' ').nth(1) == Some(BPFFS) && line.split(' ').nth(2) == Some("bpf"))
    {
        return Ok(());
    }
    need_root("mounting the BPF file system")?;
    println!("mounting   the BPF file system at {BPFFS}");
    run::run(Command::new("mount").args(["-t", "bpf", "bpf", BPFFS]))
}

pub fn need_root(what: &str) -> Result<()> {
    ensure!(
        rustix::process::geteuid().is_root(),
        "{what} needs root: run this as root"
    );
    Ok(())
}

/// The forced way, or the distribution's compiler where it can be had, or rustup's nightly.
fn choose() -> Result<Way> {
    match Way::forced().map_err(|e| anyhow!(e))? {
        Some(Way::System) => system().map(|()| Way::System),
        Some(Way::Rustup) => rustup().map(|()| Way::Rustup),
        None => match system() {
            Ok(()) => Ok(Way::System),
            Err(no_system) => match rustup() {
                Ok(()) => Ok(Way::Rustup),
                Err(no_rustup) => {
                    bail!("no BPF toolchain can be had. system: {no_system:#}. rustup: {no_rustup:#}")
                }
            },
        },
    }
}

fn system() -> Result<()> {
    ensure!(
        packages::has_apt(),
        "only Debian and its relatives package a core library for BPF"
    );
    if system_works() {
        return install_clippy();
    }
    let set = match package_set() {
        Some(set) => set,
        None => {
            need_root("fetching package lists")?;
            packages::refresh()?;
            package_set().with_context(|| {
                let (major, minor) = OLDEST_RUSTC;
                format!(
                    "apt offers no rustc {major}.{minor} or newer with a core library for BPF (Debian 12 has one in its \
                     security suite); the other way is {TOOLCHAIN_VARIABLE}=rustup"
                )
            })?
        }
    };
    packages::install(&set)?;
    ensure!(
        system_works(),
        "/usr/bin/rustc is installed but has no core library for BPF"
    );
    install_clippy()
}

/// Present, new enough, and with a core library for the target.
fn system_works() -> bool {
    let compiler = Path::new("/usr/bin/rustc").exists() && Path::new("/usr/bin/cargo").exists();
    if !compiler {
        return false;
    }
    let version = run::output(Way::System.command("rustc").arg("--version")).unwrap_or_default();
    let new_enough = version
        .split(' ')
        .nth(1)
        .and_then(major_minor)
        .is_some_and(|found| found >= OLDEST_RUSTC);
    let mut rustc = Way::System.command("rustc");
    rustc.args(["--print", "target-libdir", "--target", crate::bpf_build::TARGET]);
    new_enough && run::output(&mut rustc).is_some_and(|directory| Path::new(directory.trim()).is_dir())
}

fn package_set() -> Option<Vec<Package>> {
    let sets = [
        ["rustc-web", "cargo-web", "libstd-rust-web-dev-bpf"],
        ["rustc", "cargo", "libstd-rust-dev-bpf"],
    ];
    let set = sets.into_iter().find(|[rustc, _, core]| {
        let version = packages::candidate(rustc);
        packages::candidate(core).is_some()
            && version
                .as_deref()
                .and_then(major_minor)
                .is_some_and(|found| found >= OLDEST_RUSTC)
    })?;
    let [rustc, cargo, core] = set;
    Some(vec![
        package(rustc, "compiles the XDP program"),
        package(cargo, "builds the XDP program"),
        package(core, "Rust's core library for BPF"),
    ])
}

/// The lints of the BPF target want the clippy of that very compiler.
fn install_clippy() -> Result<()> {
    if Path::new("/usr/bin/cargo-clippy").exists() {
        return Ok(());
    }
    let owner =
        run::output(Command::new("dpkg-query").args(["--search", "/usr/bin/rustc"])).unwrap_or_default();
    let name = if owner.starts_with("rustc-web") {
        "rust-web-clippy"
    } else {
        "rust-clippy"
    };
    packages::install(&[package(name, "lints the XDP program")])
}

fn rustup() -> Result<()> {
    ensure!(
        run::output(Command::new("rustup").arg("--version")).is_some(),
        "rustup is not installed: get it, or use {TOOLCHAIN_VARIABLE}=system on Debian 12 or newer"
    );
    let has_source = || {
        run::output(Way::Rustup.command("rustc").args(["--print", "sysroot"])).is_some_and(|root| {
            Path::new(root.trim())
                .join("lib/rustlib/src/rust/library/core")
                .is_dir()
        })
    };
    if has_source() {
        return Ok(());
    }
    println!("installing {NIGHTLY} with rust-src, which compile the XDP program and its core library");
    let mut rustup = Command::new("rustup");
    rustup.args([
        "toolchain",
        "install",
        NIGHTLY,
        "--profile",
        "minimal",
        "--component",
        "rust-src,clippy",
    ]);
    run::run(&mut rustup).with_context(|| {
        format!(
            "rustup cannot install {NIGHTLY} with rust-src: is its server reachable? The other way is \
             {TOOLCHAIN_VARIABLE}=system on Debian 12 or newer"
        )
    })?;
    ensure!(
        has_source(),
        "rustup says {NIGHTLY} is installed, but its rust-src is not there"
    );
    Ok(())
}

fn llvm_major(way: Way) -> Result<u32> {
    let version = run::output(way.command("rustc").arg("-vV")).context("the BPF compiler does not run")?;
    let llvm = version
        .lines()
        .find_map(|line| line.strip_prefix("LLVM version: "));
    let major = llvm
        .and_then(|version| version.split('.').next())
        .and_then(|major| major.parse().ok());
    major.with_context(|| format!("{way}'s rustc does not say its LLVM version"))
}

/// The linker in `target/tools`, or one on PATH, or a new one: whichever reads what this rustc writes.
fn find_linker(root: &Path, way: Way, llvm: u32) -> Result<PathBuf> {
    let home = root.join(format!("target/tools/llvm-{llvm}"));
    let own = home.join("bin/bpf-linker");
    let on_path = std::env::split_paths(&std::env::var_os("PATH").unwrap_or_default())
        .map(|directory| directory.join("bpf-linker"))
        .find(|path| path.is_file());
    for candidate in [Some(own.clone()), on_path].into_iter().flatten() {
        if candidate.is_file() && links(root, way, &candidate) {
            return Ok(candidate);
        }
    }
    build_linker(&home, llvm)?;
    ensure!(
        links(root, way, &own),
        "{} was built but does not link what {way}'s rustc compiles",
        own.display()
    );
    Ok(own)
}

fn build_linker(home: &Path, llvm: u32) -> Result<()> {
    ensure!(
        (21..=23).contains(&llvm),
        "bpf-linker 0.13 knows LLVM 21 to 23, but this rustc has LLVM {llvm}"
    );
    let library = format!("llvm-{llvm}-dev");
    packages::install(&[package(library.as_str(), "bpf-linker links against it")])
        .with_context(|| format!("no linker for LLVM {llvm} without {library}"))?;
    println!("installing bpf-linker, which links the XDP program (cargo install, a minute or two)");
    let mut cargo = run::cargo("install");
    cargo
        .args([
            "--quiet",
            "bpf-linker",
            "--version",
            "^0.13",
            "--locked",
            "--no-default-features",
        ])
        .args(["--features", &format!("llvm-{llvm}"), "--root"])
        .arg(home)
        .env("LLVM_PREFIX", format!("/usr/lib/llvm-{llvm}"))
        // Nearly all its work is LLVM's: optimising its own code would only take longer than it ever saves.
        .envs([
            ("CARGO_PROFILE_RELEASE_OPT_LEVEL", "1"),
            ("CARGO_PROFILE_RELEASE_DEBUG", "false"),
        ])
        .envs([
            ("CARGO_PROFILE_RELEASE_LTO", "off"),
            ("CARGO_PROFILE_RELEASE_CODEGEN_UNITS", "16"),
        ]);
    run::run(&mut cargo).context("bpf-linker could not be built: is there a network?")
}

/// Whether `linker` turns this compiler's bitcode into a BPF object.
fn links(root: &Path, way: Way, linker: &Path) -> bool {
    let directory = root.join("target/tools/probe");
    let (source, bitcode, object) = (
        directory.join("probe.rs"),
        directory.join("probe.bc"),
        directory.join("probe.o"),
    );
    let text = "#![no_std]\n#[unsafe(no_mangle)]\npub extern \"C\" fn probe() -> u32 { 0 }\n";
    if fs::create_dir_all(&directory)
        .and_then(|()| fs::write(&source, text))
        .is_err()
    {
        return false;
    }
    let mut rustc = way.command("rustc");
    rustc.args([
        "--edition=2024",
        "--crate-type=lib",
        "--emit=llvm-bc",
        "-Cpanic=abort",
        "-o",
    ]);
    let mut link = Command::new(linker);
    link.args(["--target=bpfel", "--export=probe", "-o"])
        .arg(&object)
        .arg(&bitcode);
    run::output(rustc.arg(&bitcode).arg(&source)).is_some() && run::output(&mut link).is_some()
}

fn major_minor(version: &str) -> Option<(u32, u32)> {
    let mut parts = version.split(['.', '+', '-', '~']);
    Some((parts.next()?.parse().ok()?, parts.next()?.parse().ok()?))
}
