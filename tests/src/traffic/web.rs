//! Debian's nginx as the web server of a backend, and curl as the client.

use std::{
    fs,
    net::SocketAddr,
    path::Path,
    process::{Command, Stdio},
    time::Duration,
};

use anyhow::{Context, Result, ensure};
use tempfile::TempDir;

use crate::lab::{Backend, Lab, netns::unique, process::Process, within};

/// nginx in a backend's namespace with a page that holds the backend's name and one of a megabyte.
pub struct WebServer {
    // Stopped before its directory goes.
    _process: Process,
    _directory: TempDir,
}

pub const LARGE: usize = 1 << 20;

impl WebServer {
    pub fn start(backend: &Backend, port: u16) -> Result<Self> {
        let directory = tempfile::Builder::new()
            .prefix(&format!("{}-web-", unique()))
            .tempdir()?;
        let root = directory.path();
        fs::write(root.join("name"), &backend.name)?;
        fs::write(root.join("large"), vec![b'e'; LARGE])?;
        // The workers run as another user and must reach the pages.
        fs::set_permissions(root, std::os::unix::fs::PermissionsExt::from_mode(0o755))?;
        fs::write(root.join("nginx.conf"), configuration(root, port))?;
        let child = backend
            .netns
            .command("nginx")?
            .arg("-p")
            .arg(root)
            .arg("-c")
            .arg(root.join("nginx.conf"))
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .context("starting nginx (package nginx-light)")?;
        let server = Self {
            _process: Process::new(child),
            _directory: directory,
        };
        let own = SocketAddr::new(backend.v4, port);
        within(Duration::from_secs(5), "nginx answers", || {
            backend
                .netns
                .run(|| Ok(std::net::TcpStream::connect(own).map(drop)?))
        })?;
        Ok(server)
    }
}

fn configuration(root: &Path, port: u16) -> String {
    let root = root.display();
    format!(
        "daemon off; master_process off; pid {root}/pid; error_log {root}/errors;\n\
         events {{ worker_connections 256; }}\n\
         http {{ access_log off; default_type text/plain;\n\
           client_body_temp_path {root}/a; proxy_temp_path {root}/b; fastcgi_temp_path {root}/c;\n\
           uwsgi_temp_path {root}/d; scgi_temp_path {root}/e;\n\
           server {{ listen {port}; listen [::]:{port}; root {root}; }} }}\n"
    )
}

/// Fetches a page with curl in the client's namespace.
pub fn curl(lab: &Lab, to: SocketAddr, page: &str) -> Result<Vec<u8>> {
    let mut command: Command = lab.client.command("curl")?;
    let output = command
        .args([
            "--silent",
            "--show-error",
            "--fail",
            "--max-time",
            "5",
            "--noproxy",
            "*",
        ])
        .arg(format!("http://{to}/{page}"))
        .output()
        .context("starting curl (package curl)")?;
    ensure!(
        output.status.success(),
        "curl http://{to}/{page}: {}",
        String::from_utf8_lossy(&output.stderr)
    );
    Ok(output.stdout)
}
