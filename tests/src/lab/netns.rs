//! A network namespace that lives as long as its guard.

use std::{
    ffi::OsStr,
    fs::{self, File},
    io::Write,
    os::{fd::AsFd, unix::process::CommandExt},
    process::{Command, Stdio},
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering},
    },
    thread::{self, JoinHandle},
};

use anyhow::{Context, Result, ensure};
use rustix::{
    process::{Signal, set_parent_process_death_signal},
    thread::{LinkNameSpaceType, move_into_link_name_space},
};

use super::sweep;

/// A named network namespace; deleted when the last clone is dropped.
#[derive(Clone)]
pub struct Netns(Arc<Guard>);

struct Guard {
    name: String,
    file: File,
}

impl Netns {
    /// A fresh namespace with loopback up; its name carries this process's id.
    pub fn new(label: &str) -> Result<Self> {
        sweep::once();
        let name = format!("{}-{label}", unique());
        run(Command::new("ip").args(["netns", "add", &name]))?;
        let path = format!("/run/netns/{name}");
        let file = File::open(&path).with_context(|| format!("opening {path}"))?;
        let netns = Self(Arc::new(Guard { name, file }));
        netns.ip("link set lo up")?;
        Ok(netns)
    }

    pub fn name(&self) -> &str {
        &self.0.name
    }

    /// Runs in a thread of its own that has entered the namespace. Sockets made there stay there.
    pub fn run<T: Send>(&self, work: impl FnOnce() -> T + Send) -> T {
        thread::scope(|scope| {
            let thread = scope.spawn(|| {
                self.enter();
                work()
            });
            match thread.join() {
                Ok(value) => value,
                Err(panic) => std::panic::resume_unwind(panic),
            }
        })
    }

    /// Like [`run`](Self::run), but goes on beside the caller.
    pub fn spawn<T: Send + 'static>(
        &self,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> Result<JoinHandle<T>> {
        let file = self.0.file.try_clone()?;
        Ok(thread::spawn(move || {
            enter(&file);
            work()
        }))
    }

    /// A command that runs in the namespace and dies with the calling thread. Unlike `ip netns exec` this leaves
    /// `/sys`, and with it bpffs, in sight.
    pub fn command(&self, program: impl AsRef<OsStr>) -> Result<Command> {
        let file = self.0.file.try_clone()?;
        let mut command = Command::new(program);
        let prepare = move || {
            set_parent_process_death_signal(Some(Signal::KILL))?;
            move_into_link_name_space(file.as_fd(), Some(LinkNameSpaceType::Network))?;
            Ok(())
        };
        // SAFETY: the closure makes two system calls and neither allocates nor locks.
        unsafe { command.pre_exec(prepare) };
        Ok(command)
    }

    /// Runs `ip` in the namespace, one command a line.
    pub fn ip(&self, batch: &str) -> Result<()> {
        let mut child = self
            .command("ip")?
            .args(["-batch", "-"])
            .stdin(Stdio::piped())
            .stderr(Stdio::piped())
            .stdout(Stdio::null())
            .spawn()
            .context("starting ip (package iproute2)")?;
        let mut stdin = child.stdin.take().context("ip has no standard input")?;
        stdin.write_all(batch.as_bytes())?;
        stdin.write_all(b"\n")?;
        drop(stdin);
        let output = child.wait_with_output()?;
        ensure!(
            output.status.success(),
            "ip in {}: {}\n{batch}",
            self.0.name,
            String::from_utf8_lossy(&output.stderr)
        );
        Ok(())
    }

    /// Writes `/proc/sys/net/<key>` of the namespace, several at once.
    pub fn sysctl(&self, values: &[(&str, &str)]) -> Result<()> {
        self.run(|| {
            for (key, value) in values {
                let path = format!("/proc/sys/net/{key}");
                fs::write(&path, value).with_context(|| format!("writing {value} to {path}"))?;
            }
            Ok(())
        })
    }

    /// Switches offloads with `ethtool -K`.
    pub fn offloads(&self, interface: &str, switches: &[&str]) -> Result<()> {
        let output = self
            .command("ethtool")?
            .arg("-K")
            .arg(interface)
            .args(switches)
            .output()?;
        ensure!(
            output.status.success(),
            "ethtool -K {interface} in {}: {}",
            self.0.name,
            String::from_utf8_lossy(&output.stderr)
        );
        Ok(())
    }

    /// Has one CPU handle all that an interface receives of a flow (receive packet steering), as the queues of a
    /// network card do. `ip netns exec` shows the namespace's own `/sys`.
    pub fn one_cpu_a_flow(&self, interface: &str) -> Result<()> {
        const STEER: &str =
            "for queue in /sys/class/net/$1/queues/rx-*; do echo $0 > $queue/rps_cpus || exit 1; done";
        let cpus = thread::available_parallelism()?.get().min(32);
        let mask = format!("{:x}", u32::MAX >> (32 - cpus));
        run(Command::new("ip").args(["netns", "exec", self.name(), "sh", "-c", STEER, &mask, interface]))
            .context("steering needs a kernel with CONFIG_RPS")
    }

    /// The index of an interface of the namespace.
    pub fn interface(&self, name: &str) -> Result<u32> {
        let name = name.to_owned();
        self.run(move || {
            let c_name = std::ffi::CString::new(name.clone())?;
            // SAFETY: the string is NUL-terminated and lives across the call.
            let index = unsafe { libc::if_nametoindex(c_name.as_ptr()) };
            ensure!(index != 0, "no interface {name}");
            Ok(index)
        })
    }

    fn enter(&self) {
        enter(&self.0.file);
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        let _ = run(Command::new("ip").args(["netns", "del", &self.name]));
    }
}

fn enter(file: &File) {
    move_into_link_name_space(file.as_fd(), Some(LinkNameSpaceType::Network))
        .expect("entering a namespace needs root (CAP_SYS_ADMIN)");
}

/// A name prefix that nothing else uses: this process and a count.
pub fn unique() -> String {
    static COUNT: AtomicU32 = AtomicU32::new(0);
    format!(
        "ek-{}-{}",
        std::process::id(),
        COUNT.fetch_add(1, Ordering::Relaxed)
    )
}

fn run(command: &mut Command) -> Result<()> {
    let output = command.output().with_context(|| format!("running {command:?}"))?;
    ensure!(
        output.status.success(),
        "{command:?}: {}",
        String::from_utf8_lossy(&output.stderr)
    );
    Ok(())
}
