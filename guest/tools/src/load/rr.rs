//! Request and response, one at a time.

use std::io::{self, Read as _, Write as _};
use std::net::{TcpStream as Tcp, UdpSocket};

use super::client::{Connection, is_pause, refused, udp};
use super::{LoadError, Run, Work};
use crate::pktgen::Latency;
use crate::workload::{Requests, Task, Unanswered};

/// Sleeps until a request is due; false: not yet.
fn due(requests: &mut Requests, run: &Run<'_>) -> bool {
    let now = run.now();
    let due = requests.is_due(now);
    if !due {
        std::thread::sleep(requests.pause(now).unwrap_or_default().min(run.nap));
    }
    due
}

/// Is the run to go on?
fn wait(requests: &mut Requests, run: &mut Run<'_>, loses: bool) -> Result<(), LoadError> {
    let now = run.now();
    match requests.unanswered(&mut run.tally, now, loses) {
        Unanswered::Wait | Unanswered::Lost => Ok(()),
        Unanswered::NoAnswer => Err(LoadError::NoAnswer(run.task.peer())),
    }
}

/// Over UDP.
pub(super) struct UdpRr {
    socket: UdpSocket,
    requests: Requests,
    answer: Vec<u8>,
}

impl UdpRr {
    pub(super) fn new(task: &Task) -> Result<Self, LoadError> {
        let answer = vec![0; task.size() as usize + 1];
        Ok(Self { socket: udp(task.peer())?, requests: Requests::new(task), answer })
    }
}

impl Work for UdpRr {
    fn pass(&mut self, run: &mut Run<'_>) -> Result<(), LoadError> {
        if !self.requests.is_under_way() {
            if !due(&mut self.requests, run) {
                return Ok(());
            }
            let sent = self.socket.send(self.requests.begin(run.now()));
            return match sent {
                Err(error) if !is_pause(&error) => refused(run, error),
                // One that finds no room is lost like one on the way.
                _ => Ok(()),
            };
        }
        match self.socket.recv(&mut self.answer) {
            // Answers to requests that were given up come late.
            Ok(len) if self.answer[..len] != *self.requests.last() => Ok(()),
            Ok(_) => {
                let now = run.now();
                self.requests.answered(&mut run.tally, now);
                Ok(())
            }
            Err(error) if is_pause(&error) => wait(&mut self.requests, run, true),
            Err(error) => refused(run, error).and_then(|()| wait(&mut self.requests, run, true)),
        }
    }

    fn warm(&mut self) {
        self.requests.warm();
    }

    fn latency(&self) -> Option<Latency> {
        self.requests.latency()
    }
}

/// Over a TCP connection.
pub(super) struct TcpRr {
    call: Connection,
    requests: Requests,
    answer: Vec<u8>,
    /// Bytes of the answer that came.
    came: usize,
}

impl TcpRr {
    pub(super) fn new(task: &Task) -> Self {
        let answer = vec![0; task.size() as usize];
        Self { call: Connection::new(), requests: Requests::new(task), answer, came: 0 }
    }
}

impl Work for TcpRr {
    fn pass(&mut self, run: &mut Run<'_>) -> Result<(), LoadError> {
        let settle = |socket: &Tcp| -> io::Result<()> { socket.set_nodelay(true) };
        let Some(socket) = self.call.up(run, settle)? else { return Ok(()) };
        let closed = || LoadError::Closed(run.task.peer());
        if !self.requests.is_under_way() {
            if !due(&mut self.requests, run) {
                return Ok(());
            }
            self.came = 0;
            // There is room: what was asked before is answered.
            return socket.write_all(self.requests.begin(run.now())).map_err(|_| closed());
        }
        match socket.read(&mut self.answer[self.came..]) {
            Ok(0) => Err(closed()),
            Ok(len) => {
                self.came += len;
                if self.came == self.answer.len() {
                    let now = run.now();
                    self.requests.answered(&mut run.tally, now);
                }
                Ok(())
            }
            Err(error) if is_pause(&error) => wait(&mut self.requests, run, false),
            Err(_) => Err(closed()),
        }
    }

    fn warm(&mut self) {
        self.requests.warm();
    }

    fn latency(&self) -> Option<Latency> {
        self.requests.latency()
    }

    fn close(&mut self) {
        self.call.close();
    }
}
