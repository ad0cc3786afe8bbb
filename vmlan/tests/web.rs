//! `vmlan web`, as a browser has it.

mod common;

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::process::{Child, Command, Stdio};

use common::{Switch, vmlan};

/// The page's server; ended with this.
struct Page {
    child: Child,
    place: String,
}

impl Page {
    fn start(switch: &Switch, more: &[&str]) -> Self {
        let mut child = Command::new(env!("CARGO_BIN_EXE_vmlan"))
            .args(["web", "--listen", "127.0.0.1:0", "--api", &switch.api()])
            .args(more)
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        let place = line.strip_prefix("http://").and_then(|rest| rest.split_once('/'));
        Self { child, place: place.unwrap_or_else(|| panic!("no address: {line}")).0.to_owned() }
    }

    fn ask(&self, first: &str, line: &str) -> String {
        let mut stream = TcpStream::connect(&self.place).unwrap();
        let host = &self.place;
        write!(stream, "{first} HTTP/1.1\r\nhost: {host}\r\nconnection: close\r\n{line}\r\n")
            .unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        answer
    }
}

impl Drop for Page {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

const ONE: [&str; 1] = ["vm1=vhost-user:@/1.sock"];

#[test]
fn a_browser_gets_the_page_and_reads_counters() {
    let switch = Switch::start(&ONE);
    let page = Page::start(&switch, &[]);
    let html = page.ask("GET /", "");
    assert!(html.starts_with("HTTP/1.1 200") && html.contains("Topology"), "{html}");
    let stats = page.ask("GET /v1/stats", "");
    assert!(stats.starts_with("HTTP/1.1 200") && stats.contains("\"vm1\""), "{stats}");
    let refused = page.ask("DELETE /v1/ports/vm1", "");
    assert!(refused.starts_with("HTTP/1.1 403"), "{refused}");
    assert_eq!(switch.json(&["port", "list"])["ports"].as_array().map(Vec::len), Some(1));
}

#[test]
fn who_knows_the_token_changes_things() {
    let switch = Switch::start(&ONE);
    let token = switch.path("token");
    std::fs::write(&token, "0123456789abcdef\n").unwrap();
    let page = Page::start(&switch, &["--token", token.to_str().unwrap()]);
    let line = "authorization: Bearer 0123456789abcdef\r\n";
    let removed = page.ask("DELETE /v1/ports/vm1", line);
    assert!(removed.starts_with("HTTP/1.1 204"), "{removed}");
    assert_eq!(switch.json(&["port", "list"])["ports"].as_array().map(Vec::len), Some(0));
}

#[test]
fn what_cannot_be_served_is_said() {
    let switch = Switch::start(&ONE);
    switch.fails(&["web", "--listen", "0.0.0.0:0"], 2, &["others than this host", "--token"]);
    switch.fails(&["web", "--token", "/nonexistent"], 1, &["/nonexistent", "give a file"]);
    let out = vmlan(&["web", "--listen", "8780"]);
    assert_eq!(out.status.code(), Some(2), "{}", String::from_utf8_lossy(&out.stderr));
}
