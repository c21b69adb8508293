//! Debian's nginx on loopback, with and without TLS.

use std::{
    fs,
    net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream},
    path::{Path, PathBuf},
    process::{Command, Stdio},
    time::Duration,
};

use anyhow::{Context, Result, bail, ensure};
use tempfile::TempDir;

use crate::lab::{process::Process, within};

/// Name in its certificate.
pub const NAME: &str = "health.test";
/// Name that gets a certificate which was good in January 2020.
pub const EXPIRED: &str = "expired.test";
/// Times that ports are chosen anew because somebody else got them first.
const ATTEMPTS: usize = 5;

/// Serves `/` ("all is ok"), `/broken` (503), `/moved` (301) and `/host` (what `Host` said).
pub struct Nginx {
    // Stopped before its directory goes.
    process: Option<Process>,
    directory: TempDir,
    pub plain: SocketAddr,
    pub tls: SocketAddr,
}

impl Nginx {
    pub fn start() -> Result<Self> {
        let directory = tempfile::Builder::new().prefix("ek-health-").tempdir()?;
        certificates(directory.path())?;
        let mut server = Self {
            process: None,
            directory,
            plain: free_port()?,
            tls: free_port()?,
        };
        for _ in 1..ATTEMPTS {
            if server.again().is_ok() {
                return Ok(server);
            }
            (server.plain, server.tls) = (free_port()?, free_port()?);
        }
        server.again()?;
        Ok(server)
    }

    /// At addresses of the calling thread's namespace that are free.
    pub fn start_at(plain: SocketAddr, tls: SocketAddr) -> Result<Self> {
        let directory = tempfile::Builder::new().prefix("ek-health-").tempdir()?;
        certificates(directory.path())?;
        let mut server = Self {
            process: None,
            directory,
            plain,
            tls,
        };
        server.again()?;
        Ok(server)
    }

    /// Starts it where it was.
    pub fn again(&mut self) -> Result<()> {
        let root = self.directory.path();
        fs::write(root.join("nginx.conf"), configuration(root, self.plain, self.tls))?;
        let child = Command::new("/usr/sbin/nginx")
            .arg("-p")
            .arg(root)
            .arg("-c")
            .arg(root.join("nginx.conf"))
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .context("starting nginx (package nginx-light)")?;
        let mut process = Process::new(child);
        let (plain, tls) = (self.plain, self.tls);
        within(Duration::from_secs(20), "nginx answers", || {
            // One that ended will not answer; that is told below.
            if process.is_running() {
                TcpStream::connect(plain)?;
                TcpStream::connect(tls)?;
            }
            Ok(())
        })?;
        if !process.is_running() {
            let errors = fs::read_to_string(root.join("errors"));
            bail!("nginx ended: {}", errors.unwrap_or_default());
        }
        self.process = Some(process);
        Ok(())
    }

    /// SIGKILL.
    pub fn kill(&mut self) -> Result<()> {
        self.process.take().context("nginx is not running")?.kill()
    }

    /// The authority that signed its certificates.
    pub fn ca(&self) -> PathBuf {
        self.directory.path().join("ca.pem")
    }

    /// An authority that did not.
    pub fn other_ca(&self) -> PathBuf {
        self.directory.path().join("other.pem")
    }
}

fn free_port() -> Result<SocketAddr> {
    Ok(TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?.local_addr()?)
}

/// What `openssl ca` needs to know.
const AUTHORITY: &str = "[ca]\ndefault_ca = this\n\
    [this]\ndatabase = index\nnew_certs_dir = .\nrand_serial = yes\ndefault_md = sha256\n\
    policy = names\ncopy_extensions = copy\nunique_subject = no\n\
    [names]\ncommonName = supplied\n";

fn certificates(root: &Path) -> Result<()> {
    authority(root, "ca")?;
    authority(root, "other")?;
    fs::write(root.join("ca.conf"), AUTHORITY)?;
    fs::write(root.join("index"), "")?;
    request(root, "server", NAME)?;
    issue(root, "server", &["-days", "30"])?;
    request(root, "expired", EXPIRED)?;
    let past = ["-startdate", "20200101000000Z", "-enddate", "20200201000000Z"];
    issue(root, "expired", &past)
}

/// Options for a new key.
const KEY: [&str; 5] = [
    "-newkey",
    "ec",
    "-pkeyopt",
    "ec_paramgen_curve:prime256v1",
    "-nodes",
];

fn authority(root: &Path, name: &str) -> Result<()> {
    let subject = format!("/CN={name}");
    let (key, out) = (format!("{name}.key"), format!("{name}.pem"));
    let mut arguments = vec!["req", "-x509", "-days", "30", "-subj", &subject];
    arguments.extend(KEY);
    arguments.extend(["-keyout", &key, "-out", &out]);
    openssl(root, &arguments)
}

fn request(root: &Path, file: &str, name: &str) -> Result<()> {
    let (subject, names) = (format!("/CN={name}"), format!("subjectAltName=DNS:{name}"));
    let (key, out) = (format!("{file}.key"), format!("{file}.csr"));
    let mut arguments = vec!["req", "-new", "-subj", &subject, "-addext", &names];
    arguments.extend(["-addext", "basicConstraints=critical,CA:FALSE"]);
    arguments.extend(KEY);
    arguments.extend(["-keyout", &key, "-out", &out]);
    openssl(root, &arguments)
}

fn issue(root: &Path, file: &str, validity: &[&str]) -> Result<()> {
    let (request, out) = (format!("{file}.csr"), format!("{file}.pem"));
    let mut arguments = vec!["ca", "-batch", "-notext", "-config", "ca.conf"];
    arguments.extend(["-cert", "ca.pem", "-keyfile", "ca.key"]);
    arguments.extend(["-in", &request, "-out", &out]);
    arguments.extend(validity);
    openssl(root, &arguments)
}

fn openssl(root: &Path, arguments: &[&str]) -> Result<()> {
    let output = Command::new("openssl").args(arguments).current_dir(root).output();
    let output = output.context("starting openssl (package openssl)")?;
    let said = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "openssl {arguments:?}: {said}");
    Ok(())
}

fn configuration(root: &Path, plain: SocketAddr, tls: SocketAddr) -> String {
    let root = root.display();
    format!(
        "daemon off; master_process off; pid {root}/pid; error_log {root}/errors;\n\
         events {{ worker_connections 256; }}\n\
         http {{ access_log off; default_type text/plain;\n\
           client_body_temp_path {root}/a; proxy_temp_path {root}/b; fastcgi_temp_path {root}/c;\n\
           uwsgi_temp_path {root}/d; scgi_temp_path {root}/e;\n\
           server {{ listen {plain}; listen {tls} ssl default_server;\n\
             ssl_certificate {root}/server.pem; ssl_certificate_key {root}/server.key;\n\
             location = / {{ return 200 \"all is ok\"; }}\n\
             location = /broken {{ return 503; }}\n\
             location = /moved {{ return 301 /; }}\n\
             location = /host {{ return 200 \"host=$http_host agent=$http_user_agent\"; }} }}\n\
           server {{ listen {tls} ssl; server_name {EXPIRED};\n\
             ssl_certificate {root}/expired.pem; ssl_certificate_key {root}/expired.key;\n\
             location / {{ return 200 \"all is ok\"; }} }} }}\n"
    )
}
