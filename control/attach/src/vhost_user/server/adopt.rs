//! What one switch leaves to the next, and how the next goes on with it.

use std::mem::ManuallyDrop;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::time::Instant;

use vmlan_frame::error_chain;

use super::super::session::Session;
use super::super::wire::{Frames, Message, Request};
use super::{Served, Server};
use crate::connection::Connection;
use crate::death::point;
use crate::held::keep::FoundClient;
use crate::held::record::{Client, Setup};
use crate::journal::Journal;
use crate::thread::TRIAL;

/// How a front end comes through.
const HOW: &str = "with its virtqueues where they stood";

impl Server {
    /// The next switch goes on with the front end.
    pub(super) fn is_leaving(&self) -> bool {
        self.keeping.is_some() && self.standing.is_leaving()
    }

    /// Leaves all to the next switch. No worker is in the port any more.
    pub(super) fn leave(mut self) {
        if let Some(served) = &mut self.served {
            // We do not die of it.
            served.deaths = served.deaths.saturating_sub(1);
        }
        if let Err(why) = self.put() {
            self.warn(&format!("is not handed over: {why}"));
        }
        // Neither shut down nor reset: the process ends.
        std::mem::forget(self.served.take());
    }

    /// Has the port held as it is now. Where that cannot be, nothing of it is: what was held before
    /// is not true any more.
    pub(super) fn keep(&self) {
        let Some(keeping) = &self.keeping else { return };
        let done = self.put();
        if done.is_err() {
            let _ = keeping.forget();
        }
        self.standing.set_held(done);
    }

    fn put(&self) -> Result<(), String> {
        let Some(keeping) = &self.keeping else { return Ok(()) };
        let (line, served) = (self.keeper.line(), self.served.as_ref());
        let setup = served.map(|s| s.session.setup().ok_or("it has lost descriptors"));
        let setup = setup.transpose()?.unwrap_or_default();
        let mut record = keeping.record(&self.keeper, line.as_ref())?;
        if let Some(served) = served {
            let counts = (served.controls, served.adopted, served.deaths);
            record.client = Some(Client::of(&served.connection, counts)?);
        }
        let again = setup.iter().map(|s| Setup {
            number: s.number,
            body: s.body.clone(),
            fd: s.fd.as_ref().map(|fd| fd.as_fd()),
        });
        record.setup = again.collect();
        keeping.put(&record)
    }

    /// Descriptors of all that is held, if a message may take some of it away: until the holder
    /// knows, so that it is not the last that has them.
    pub(super) fn hold_on(&self, message: &Message) -> Vec<OwnedFd> {
        let changes = Request::from_number(message.header.number).is_some_and(Request::changes);
        let served = self.served.as_ref().filter(|_| changes && self.keeping.is_some());
        let setup = served.and_then(|served| served.session.setup()).unwrap_or_default();
        let fds = setup.iter().filter_map(|s| s.fd.as_ref());
        fds.filter_map(|fd| fd.as_fd().try_clone_to_owned().ok()).collect()
    }

    /// Has the holder know what a message has done, before it is answered. `done`: it was not
    /// refused.
    pub(super) fn keep_next(&mut self, number: u32, done: bool) {
        let changes = Request::from_number(number).is_some_and(Request::changes);
        let Some(served) = self.served.as_mut().filter(|_| changes && self.keeping.is_some())
        else {
            return;
        };
        if done {
            let taken = served.connection.journal().map_or(0, Journal::controls);
            served.controls = taken.wrapping_add(1);
        }
        self.keep();
    }

    /// Goes on with the front end of a switch that has ended or died.
    pub(super) fn adopt(&mut self, found: FoundClient) {
        let FoundClient { sock, client, setup, .. } = found;
        let deadly = client.is_deadly();
        let Client { socket, journal, controls, adopted, deaths, .. } = client;
        // `sock` has it too.
        drop(socket);
        let journal = Journal::adopt(journal);
        let connection = Connection::new(sock, journal.as_ref().ok().cloned());
        // Who dies shuts nothing down (`crate::death`).
        let mut connection = ManuallyDrop::new(connection);
        let session = match journal {
            Err(e) => Err(e.to_string()),
            Ok(_) if deadly => Err("switches have died of it, one after the other".to_owned()),
            Ok(_) => self.resume(&mut connection, controls, setup),
        };
        let session = match session {
            Ok(session) => session,
            Err(why) => {
                self.warn(&format!("hangs up on the VM of the switch before: {why}"));
                // The holder must not be the last that has its socket.
                self.keep();
                drop(ManuallyDrop::into_inner(connection));
                return;
            }
        };
        let (adopted, deaths) = (adopted.saturating_add(1), deaths.saturating_add(1));
        let connection = ManuallyDrop::into_inner(connection);
        self.served = Some(Served { connection, session, controls, adopted, deaths });
        point();
        self.keep();
        point();
        self.standing.set_adopted(adopted, HOW);
        self.proven = Some(Instant::now() + TRIAL);
        log::info!("{}: goes on with the VM of the switch before", self.name);
        self.note();
        (self.changed)();
    }

    /// Finishes what was begun, and sets up what the front end has set up.
    fn resume(
        &self,
        connection: &mut Connection<Frames>,
        controls: u64,
        setup: Vec<Setup<OwnedFd>>,
    ) -> Result<Session, String> {
        connection.recover(&self.waker).map_err(|e| error_chain(&e))?;
        point();
        let journal = connection.journal().ok_or("it has no journal")?;
        let done_before = controls == journal.controls().wrapping_add(1);
        let port = Arc::clone(&self.port);
        let session = Session::adopt(port, self.queues, self.files, setup, done_before);
        session.map_err(|e| error_chain(&e))
    }

    /// The front end that we went on with has not killed us.
    pub(super) fn end_trial(&mut self, now: Instant) {
        if self.proven.is_some_and(|at| at <= now) {
            self.proven = None;
            self.served.iter_mut().for_each(|served| served.deaths = 0);
            self.keep();
        }
    }
}
