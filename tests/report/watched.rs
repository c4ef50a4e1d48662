//! A report that is served while runs go on.

use super::{CONFIG, run_dir};
use crate::program::program;
use std::{
    io::{BufRead, BufReader, Read, Write},
    net::TcpStream,
    process::{Child, Stdio},
    time::Duration,
};

/// A program that ends with the test, also if that fails.
struct Served(Child);

impl Drop for Served {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Request a page that is served on this machine. Returns the answer, head and body.
fn ask(port: u16, path: &str, host: &str) -> String {
    let mut stream = TcpStream::connect(("127.0.0.1", port)).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
    // With HTTP 1.0 a page comes in one piece.
    write!(stream, "GET {path} HTTP/1.0\r\nHost: {host}\r\n\r\n").unwrap();
    let mut said = String::new();
    stream.read_to_string(&mut said).unwrap();
    said
}

#[test]
fn a_watched_report_keeps_up_with_the_runs() {
    let dir = tempfile::tempdir().unwrap();
    let mut command = program("report");
    command.arg(dir.path()).arg("--watch").stdout(Stdio::piped());
    let mut watch = Served(command.spawn().unwrap());
    let mut line = String::new();
    BufReader::new(watch.0.stdout.as_mut().unwrap()).read_line(&mut line).unwrap();
    let address = line.split('/').nth(2).unwrap();
    let port: u16 = address.split(':').nth(1).unwrap().parse().unwrap();
    // Nothing has begun yet: the page says so, and looks again.
    let early = ask(port, "/", address);
    assert!(
        early.starts_with("HTTP/1.0 200") && early.contains("no config.toml in it") && early.contains("<script>"),
        "{early}"
    );
    let stamp = || ask(port, "/stamp", address).split("\r\n\r\n").nth(1).unwrap().to_string();
    let before = stamp();
    assert_eq!(before, stamp(), "nothing has changed");
    run_dir(dir.path(), CONFIG, &["lstm", "gpt"]);
    let now = stamp();
    assert_ne!(before, now);
    let page = ask(port, "/", address);
    assert!(page.contains("trained on length 32</h2>"), "{page}");
    assert!(page.contains(&format!("now !== '{now}'")), "another stamp than {now}");
    // A client that announces more bytes than it sends, and a client that never reads, hold up no other.
    let mut stalled = TcpStream::connect(("127.0.0.1", port)).unwrap();
    write!(stalled, "POST / HTTP/1.1\r\nHost: {address}\r\nContent-Length: 100000000\r\n\r\n").unwrap();
    let mut deaf = TcpStream::connect(("127.0.0.1", port)).unwrap();
    write!(deaf, "GET / HTTP/1.1\r\nHost: {address}\r\n\r\n").unwrap();
    assert_eq!(now, stamp());
    // Pages of other sites are refused, whatever name they give this machine.
    let said = ask(port, "/", "evil.example:80");
    assert!(said.starts_with("HTTP/1.0 403"), "{said}");
    let said = ask(port, "/../etc/passwd", address);
    assert!(said.starts_with("HTTP/1.0 404"), "{said}");
}
