//! `vmlan top` on a terminal, as a person has it.

mod common;

use std::fs::File;
use std::io::{Read, Write};
use std::num::NonZero;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

use common::{Switch, vmlan};
use rustix::pty::{OpenptFlags, grantpt, ioctl_tiocgptpeer, openpt, unlockpt};
use rustix::termios::{LocalModes, Winsize, tcgetattr, tcsetwinsize};

/// A terminal with `vmlan top` on it.
struct Terminal {
    ours: File,
    theirs: File,
    written: Receiver<Vec<u8>>,
    screen: vt100::Parser,
    top: Child,
}

impl Terminal {
    fn start(switch: &Switch, rows: u16, columns: u16, more: &[&str]) -> Self {
        let ours = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY).unwrap();
        grantpt(&ours).unwrap();
        unlockpt(&ours).unwrap();
        let flags = OpenptFlags::RDWR | OpenptFlags::NOCTTY;
        let theirs = File::from(ioctl_tiocgptpeer(&ours, flags).unwrap());
        let size = Winsize { ws_row: rows, ws_col: columns, ws_xpixel: 0, ws_ypixel: 0 };
        tcsetwinsize(&theirs, size).unwrap();
        let end = || Stdio::from(theirs.try_clone().unwrap());
        let top = Command::new(env!("CARGO_BIN_EXE_vmlan"))
            .args(["top", "--api", &switch.api(), "--interval", "0.1"])
            .args(more)
            .env("TERM", "xterm-256color")
            .env_remove("NO_COLOR")
            .stdin(end())
            .stdout(end())
            .stderr(end())
            .spawn()
            .unwrap();
        let ours = File::from(ours);
        let (tell, written) = channel();
        let mut from = ours.try_clone().unwrap();
        std::thread::spawn(move || {
            let mut bytes = [0; 4096];
            while let Ok(n @ 1..) = from.read(&mut bytes) {
                if tell.send(bytes[..n].to_vec()).is_err() {
                    return;
                }
            }
        });
        let cells = |n| NonZero::new(n).unwrap();
        let screen = vt100::Parser::new(cells(rows), cells(columns), 0);
        Self { ours, theirs, written, screen, top }
    }

    /// Waits until the screen shows `words`.
    fn until(&mut self, words: &str) {
        let end = Instant::now() + Duration::from_secs(120);
        while !self.screen.screen().contents().contains(words) {
            let left = end.saturating_duration_since(Instant::now());
            match self.written.recv_timeout(left) {
                Ok(bytes) => self.screen.process(&bytes),
                Err(e) => panic!("no {words} ({e}):\n{}", self.screen.screen().contents()),
            }
        }
    }

    fn press(&mut self, keys: &str) {
        self.ours.write_all(keys.as_bytes()).unwrap();
    }

    /// The program has ended, and the terminal is as it was: lines, echo, its first screen.
    fn ends(mut self) {
        assert!(self.top.wait().unwrap().success());
        let modes = tcgetattr(&self.theirs).unwrap().local_modes;
        assert!(modes.contains(LocalModes::ICANON | LocalModes::ECHO), "{modes:?}");
        let end = Instant::now() + Duration::from_secs(120);
        while self.screen.screen().alternate_screen() {
            let left = end.saturating_duration_since(Instant::now());
            self.screen.process(&self.written.recv_timeout(left).unwrap());
        }
        assert!(!self.screen.screen().hide_cursor());
    }
}

const TWO: [&str; 2] = ["vm1=vhost-user:@/1.sock", "vm2=vhost-user:@/2.sock,from_rate=1Gbit"];

#[test]
fn a_person_sees_ports_looks_at_one_and_quits() {
    let switch = Switch::start(&TWO);
    let mut terminal = Terminal::start(&switch, 24, 80, &["--sort", "name"]);
    terminal.until("2 ports, 0 up, sorted by name");
    terminal.until("DROPS/s");
    // Down twice, and Enter.
    terminal.press("\x1b[B\x1b[B\r");
    terminal.until("from_rate=1Gbit");
    terminal.press("q");
    terminal.ends();
}

#[test]
fn the_terminal_is_restored_after_a_signal() {
    let switch = Switch::start(&TWO);
    let mut terminal = Terminal::start(&switch, 50, 200, &["--no-color"]);
    terminal.until("INTR/s");
    let pid = terminal.top.id().to_string();
    assert!(Command::new("kill").args(["-s", "TERM", &pid]).status().unwrap().success());
    terminal.ends();
}

#[test]
fn a_switch_that_goes_away_is_told_of() {
    let switch = Switch::start(&TWO);
    let mut terminal = Terminal::start(&switch, 24, 80, &[]);
    terminal.until("2 ports");
    switch.signal("TERM");
    terminal.until("no switch answers there");
    terminal.until("vm2");
    terminal.press("q");
    terminal.ends();
}

#[test]
fn without_a_terminal_it_says_what_to_use() {
    let switch = Switch::start(&TWO);
    switch.fails(&["top"], 2, &["not a terminal", "`vmlan --api", "stats --watch`"]);
    let out = vmlan(&["top", "--interval", "0"]);
    assert_eq!(out.status.code(), Some(2));
    let said = String::from_utf8_lossy(&out.stderr).into_owned();
    assert!(said.contains("seconds from 0.1 to 60"), "{said}");
}
