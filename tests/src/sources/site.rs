//! Debian's nginx on loopback with one page that names backends.

use std::{
    fs,
    net::{SocketAddr, TcpStream},
    path::{Path, PathBuf},
    process::{Command, Stdio},
    time::Duration,
};

use anyhow::{Context, Result, ensure};
use tempfile::TempDir;

use super::port;
use crate::lab::{netns::unique, process::Process, within};

/// `/list.json`, compressed for those who accept that; `/secret.json`, the same for those with the token `let-me-in`;
/// `/away`, a redirect to another host; `/over`, one to the list.
pub struct Site {
    // Stopped before its directory goes.
    process: Option<Process>,
    directory: TempDir,
    address: SocketAddr,
    /// The same pages over TLS.
    secure: SocketAddr,
}

impl Site {
    pub fn start(list: &str) -> Result<Self> {
        port::on_free_port(|address| {
            let directory = tempfile::Builder::new()
                .prefix(&format!("{}-site-", unique()))
                .tempdir()?;
            let mut site = Self {
                process: None,
                directory,
                address,
                secure: port::free()?,
            };
            certify(site.directory.path())?;
            site.set(list)?;
            site.restart()?;
            Ok(site)
        })
    }

    pub fn url(&self, page: &str) -> String {
        format!("http://{}/{page}", self.address)
    }

    pub fn secure_url(&self, page: &str) -> String {
        format!("https://{}/{page}", self.secure)
    }

    /// The certificate of who certified the site.
    pub fn authority(&self) -> PathBuf {
        self.at("authority.pem")
    }

    /// Replaces the page.
    pub fn set(&self, list: &str) -> Result<()> {
        let (new, page) = (self.at("new"), self.at("list.json"));
        fs::write(&new, list)?;
        Ok(fs::rename(new, page)?)
    }

    /// There is no page any more.
    pub fn remove(&self) -> Result<()> {
        Ok(fs::remove_file(self.at("list.json"))?)
    }

    /// One line a request: status, and how well the answer was compressed (`-` when not).
    pub fn log(&self) -> Result<String> {
        Ok(fs::read_to_string(self.at("log"))?)
    }

    /// SIGKILL.
    pub fn kill(&mut self) -> Result<()> {
        match self.process.take() {
            Some(mut process) => process.kill(),
            None => Ok(()),
        }
    }

    pub fn restart(&mut self) -> Result<()> {
        self.kill()?;
        let root = self.directory.path();
        fs::write(
            root.join("nginx.conf"),
            configuration(root, self.address, self.secure),
        )?;
        let child = Command::new("nginx")
            .arg("-p")
            .arg(root)
            .arg("-c")
            .arg(root.join("nginx.conf"))
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .context("starting nginx (package nginx-light)")?;
        let process = self.process.insert(Process::new(child));
        within(Duration::from_secs(10), "nginx listens", || {
            ensure!(process.is_running(), "nginx has ended");
            Ok(TcpStream::connect(self.address).map(drop)?)
        })
    }

    fn at(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }
}

/// Makes an authority and a certificate of its for 127.0.0.1.
fn certify(root: &Path) -> Result<()> {
    let openssl = |arguments: &[&str]| -> Result<()> {
        let output = Command::new("openssl")
            .args([
                "req",
                "-x509",
                "-newkey",
                "ec",
                "-pkeyopt",
                "ec_paramgen_curve:P-256",
            ])
            .args(["-nodes", "-days", "2"])
            .args(arguments)
            .current_dir(root)
            .output()
            .context("starting openssl (package openssl)")?;
        ensure!(
            output.status.success(),
            "openssl {arguments:?}: {}",
            String::from_utf8_lossy(&output.stderr)
        );
        Ok(())
    };
    openssl(&[
        "-subj",
        "/CN=authority",
        "-keyout",
        "authority.key",
        "-out",
        "authority.pem",
    ])?;
    openssl(&[
        "-subj",
        "/CN=site",
        "-addext",
        "subjectAltName=IP:127.0.0.1",
        "-addext",
        "basicConstraints=critical,CA:FALSE",
        "-CA",
        "authority.pem",
        "-CAkey",
        "authority.key",
        "-keyout",
        "site.key",
        "-out",
        "site.pem",
    ])
}

fn configuration(root: &Path, address: SocketAddr, secure: SocketAddr) -> String {
    let (root, port) = (root.display(), address.port());
    format!(
        "daemon off; master_process off; user root; pid {root}/pid; error_log {root}/errors;\n\
         events {{ worker_connections 64; }}\n\
         http {{ default_type application/json; log_format short '$status $gzip_ratio'; access_log {root}/log short;\n\
           client_body_temp_path {root}/a; proxy_temp_path {root}/b; fastcgi_temp_path {root}/c;\n\
           uwsgi_temp_path {root}/d; scgi_temp_path {root}/e;\n\
           gzip on; gzip_min_length 1; gzip_types application/json;\n\
           server {{ listen {address}; listen {secure} ssl; root {root};\n\
             ssl_certificate {root}/site.pem; ssl_certificate_key {root}/site.key;\n\
             location = /away {{ return 302 http://localhost:{port}/list.json; }}\n\
             location = /over {{ return 302 http://{address}/list.json; }}\n\
             location = /secret.json {{\n\
               if ($http_authorization != \"Bearer let-me-in\") {{ return 401; }}\n\
               try_files /list.json =404; }} }} }}\n"
    )
}
