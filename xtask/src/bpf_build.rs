//! Compiles the BPF programs; shared by `lb-user/build.rs` and xtask, so it needs nothing but std.

use std::{
    env, fmt, fs,
    path::{Path, PathBuf},
    process::Command,
};

pub const TARGET: &str = "bpfel-unknown-none";
/// The objects that ship: the datapath, and what health checks through the VIP take; and the one with the programs of
/// `cargo xtask bench`.
pub const PRODUCT: &str = "lb-xdp";
pub const CHECK: &str = "lb-check";
#[allow(
    dead_code,
    reason = "the build script of lb-user includes this file and builds no benchmark"
)]
pub const BENCH: &str = "lb-bench";
pub const TOOLCHAIN_VARIABLE: &str = "EVENKEEL_BPF_TOOLCHAIN";
/// Pinned, because bpf-linker must be built against the very LLVM of this compiler, and distributions package LLVM
/// later than nightly moves to it. This one has LLVM 22.
pub const NIGHTLY: &str = "nightly-2026-05-20";
const SETUP_FIRST: &str = "the BPF toolchain is not set up: run `cargo xtask setup` first";

/// Which compiler makes the BPF object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    /// The distribution's rustc with its prebuilt core for BPF.
    System,
    /// A nightly by rustup, building core itself.
    Rustup,
}

impl Way {
    pub fn parse(text: &str) -> Result<Self, String> {
        match text {
            "system" => Ok(Self::System),
            "rustup" => Ok(Self::Rustup),
            other => Err(format!(
                "{TOOLCHAIN_VARIABLE} is `{other}`: it may be `system` or `rustup`"
            )),
        }
    }

    /// What the environment forces, if it forces anything.
    pub fn forced() -> Result<Option<Self>, String> {
        match env::var(TOOLCHAIN_VARIABLE) {
            Ok(text) if !text.is_empty() => Self::parse(&text).map(Some),
            _ => Ok(None),
        }
    }

    /// The toolchain's `rustc` or `cargo`, free of what an outer cargo has put into the environment.
    pub fn command(self, tool: &str) -> Command {
        let mut command = match self {
            Self::System => {
                let mut command = Command::new(Path::new("/usr/bin").join(tool));
                command.env("PATH", path_with_first("/usr/bin"));
                command
            }
            Self::Rustup => {
                let mut command = Command::new("rustup");
                command.args(["run", NIGHTLY, tool]);
                command
            }
        };
        forget_outer_cargo(&mut command);
        if self == Self::System {
            // The distribution's compiler is a stable one; aya-ebpf needs `asm_experimental_arch`.
            command.env("RUSTC", "/usr/bin/rustc").env("RUSTC_BOOTSTRAP", "1");
        }
        command
    }
}

impl fmt::Display for Way {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::System => "system",
            Self::Rustup => "rustup",
        })
    }
}

/// What setup chose: the compiler and the linker that matches its LLVM.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Toolchain {
    pub way: Way,
    pub linker: PathBuf,
    /// Major version of the LLVM in both.
    pub llvm: u32,
}

impl Toolchain {
    /// Where setup writes its choice.
    pub fn record(root: &Path) -> PathBuf {
        root.join("target/tools/bpf-toolchain")
    }

    /// Reads setup's choice; an error says to run setup.
    pub fn recorded(root: &Path) -> Result<Self, String> {
        let text = fs::read_to_string(Self::record(root)).map_err(|_| SETUP_FIRST.to_owned())?;
        let lines: Vec<_> = text.lines().collect();
        let [way, linker, llvm] = lines[..] else {
            return Err(SETUP_FIRST.to_owned());
        };
        let llvm = llvm.parse().map_err(|_| SETUP_FIRST.to_owned())?;
        let found = Self {
            way: Way::parse(way)?,
            linker: PathBuf::from(linker),
            llvm,
        };
        if !found.linker.is_file() {
            return Err(SETUP_FIRST.to_owned());
        }
        match Way::forced()? {
            Some(forced) if forced != found.way => Err(format!(
                "{TOOLCHAIN_VARIABLE}={forced}, but setup chose `{}`: run `cargo xtask setup` again",
                found.way
            )),
            _ => Ok(found),
        }
    }

    pub fn write_record(&self, root: &Path) -> std::io::Result<()> {
        fs::create_dir_all(root.join("target/tools"))?;
        fs::write(
            Self::record(root),
            format!("{}\n{}\n{}\n", self.way, self.linker.display(), self.llvm),
        )
    }

    /// Builds one of lb-ebpf's objects (release, checked by nobody yet) and says where it is.
    pub fn build(&self, root: &Path, object: &str) -> Result<PathBuf, String> {
        let target = root.join("target/bpf");
        let mut cargo = self.cargo(root, "build", &target, object);
        run(cargo.env("CARGO_ENCODED_RUSTFLAGS", self.rustflags(object).join("\x1f")))?;
        Ok(target.join(TARGET).join("release").join(object))
    }

    /// Clippy over one of lb-ebpf's programs as the BPF target sees it, warnings being errors.
    pub fn clippy(&self, root: &Path, object: &str) -> Result<(), String> {
        // Its own directory: clippy's metadata would otherwise push the build's out.
        let mut cargo = self.cargo(root, "clippy", &root.join("target/bpf-clippy"), object);
        run(cargo
            .env("CARGO_ENCODED_RUSTFLAGS", self.rustflags(object).join("\x1f"))
            .args(["--", "-D", "warnings"]))
    }

    fn cargo(&self, root: &Path, subcommand: &str, target: &Path, object: &str) -> Command {
        let mut cargo = self.way.command("cargo");
        cargo
            .current_dir(root)
            .args([
                subcommand,
                "--quiet",
                "--locked",
                "--release",
                "--package",
                "lb-ebpf",
                "--bin",
                object,
            ])
            .args(["--target", TARGET, "--target-dir"])
            .arg(target)
            .envs([
                ("CARGO_PROFILE_RELEASE_OPT_LEVEL", "3"),
                ("CARGO_PROFILE_RELEASE_DEBUG", "2"),
                ("CARGO_PROFILE_RELEASE_LTO", "fat"),
                ("CARGO_PROFILE_RELEASE_PANIC", "abort"),
                ("CARGO_PROFILE_RELEASE_CODEGEN_UNITS", "1"),
            ]);
        if self.way == Way::Rustup {
            cargo.args(["-Z", "build-std=core"]);
        }
        cargo
    }

    fn rustflags(&self, object: &str) -> Vec<String> {
        let mut flags = vec![
            format!("-Clinker={}", self.linker.display()),
            "-Clink-arg=--btf".into(),
            "-Cdebuginfo=2".into(),
            // 32-bit ALU and jumps, known to kernels since 5.1.
            "-Ctarget-cpu=v3".into(),
        ];
        // Programs of checks read packets by copies on the stack, where the kernel wants loads aligned.
        if self.llvm >= 22 && object != CHECK {
            // One instruction for an unaligned load from a packet. Said to the linker, which makes the code: as a
            // target feature of rustc it is unstable and warns.
            flags.push("-Clink-arg=--cpu-features=+allows-misaligned-mem-access".into());
        }
        flags
    }
}

fn run(command: &mut Command) -> Result<(), String> {
    match command.status() {
        Ok(status) if status.success() => Ok(()),
        Ok(status) => Err(format!(
            "compiling a BPF program failed ({status}); the compiler's words are above"
        )),
        Err(error) => Err(format!(
            "cannot start {}: {error}; {SETUP_FIRST}",
            command.get_program().display()
        )),
    }
}

fn path_with_first(first: &str) -> std::ffi::OsString {
    let rest = env::var_os("PATH").unwrap_or_default();
    let paths = std::iter::once(PathBuf::from(first)).chain(env::split_paths(&rest));
    env::join_paths(paths).unwrap_or(rest)
}

/// Flags, wrappers and library paths of the outer cargo are for its compiler; how to reach a registry is for both.
fn forget_outer_cargo(command: &mut Command) {
    const KEPT: [&str; 8] = [
        "CARGO_HOME",
        "CARGO_HTTP_",
        "CARGO_NET_",
        "CARGO_REGISTR",
        "CARGO_SOURCE_",
        "CARGO_TERM_",
        "RUSTUP_HOME",
        "RUSTUP_DIST_SERVER",
    ];
    for (name, _) in env::vars_os() {
        let text = name.to_string_lossy();
        let ours = text.starts_with("CARGO") || text.starts_with("RUST") || text == "MAKEFLAGS";
        let from_cargo = ours || text == "LD_LIBRARY_PATH";
        if from_cargo && !KEPT.iter().any(|kept| text.starts_with(kept)) {
            command.env_remove(&name);
        }
    }
}
