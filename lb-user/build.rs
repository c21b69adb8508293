//! Builds the BPF objects and hands their places to the crate, which embeds them.

#[path = "../xtask/src/bpf_build.rs"]
#[allow(dead_code)]
mod bpf_build;
#[path = "../xtask/src/bpf_object.rs"]
#[allow(dead_code)]
mod bpf_object;

use std::{
    env, fs,
    path::{Path, PathBuf},
    process::ExitCode,
};

fn main() -> ExitCode {
    match embed() {
        Ok(()) => ExitCode::SUCCESS,
        Err(message) => {
            println!("cargo::error={message}");
            ExitCode::FAILURE
        }
    }
}

fn embed() -> Result<(), String> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"))
        .parent()
        .ok_or("lb-user has no workspace around it")?;
    let watched = [
        "lb-ebpf/src",
        "lb-ebpf/Cargo.toml",
        "lb-common/src",
        "lb-common/Cargo.toml",
        "Cargo.lock",
    ];
    for path in watched {
        println!("cargo::rerun-if-changed={}", root.join(path).display());
    }
    println!(
        "cargo::rerun-if-changed={}",
        bpf_build::Toolchain::record(root).display()
    );
    println!("cargo::rerun-if-env-changed={}", bpf_build::TOOLCHAIN_VARIABLE);

    let toolchain = bpf_build::Toolchain::recorded(root)?;
    let out = PathBuf::from(env::var_os("OUT_DIR").ok_or("cargo sets no OUT_DIR")?);
    for (name, variable) in [
        (bpf_build::PRODUCT, "EVENKEEL_XDP_OBJECT"),
        (bpf_build::CHECK, "EVENKEEL_CHECK_OBJECT"),
    ] {
        let object = toolchain.build(root, name)?;
        let data = fs::read(&object).map_err(|error| format!("cannot read {}: {error}", object.display()))?;
        bpf_object::inspect(&data).map_err(|error| format!("{name}: {error}"))?;
        let place = out.join(name);
        fs::write(&place, data).map_err(|error| format!("cannot write {}: {error}", place.display()))?;
        println!("cargo::rustc-env={variable}={}", place.display());
    }
    Ok(())
}
