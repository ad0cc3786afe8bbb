//! What one switch leaves to the next, and how the next goes on with it.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use vmlan_frame::{Port, error_chain};

use super::super::session::{Chip, Found, Session};
use super::super::wire::{Frames, Replies};
use super::flap::{Cable, Flap, Seen};
use super::{Served, Server};
use crate::connection::Connection;
use crate::held::keep::FoundClient;
use crate::held::record::{Client, Interrupt};
use crate::journal::{COPIED, Journal};
use crate::sys::SharedPages;
use crate::thread::TRIAL;
use crate::timer::monotonic;
use vmlan_nic::chip::held::{HELD, Remains};

/// A request of this age is answered as one that was given up. QEMU waits for 5 s.
const LATE: Duration = Duration::from_millis(4500);

impl Server {
    /// The next switch goes on with the client.
    pub(super) fn is_leaving(&self) -> bool {
        self.keeping.is_some() && self.shared.standing.is_leaving()
    }

    /// Has all that there is held for the next switch. No worker is in the port any more.
    pub(super) fn leave(mut self) {
        let mut chip = self.served.as_ref().map(|served| served.session.end()).unwrap_or_default();
        if let (Some(served), true) = (&mut self.served, self.flap.is_some()) {
            // Its driver does not know yet that it was reset: the next switch goes on with that.
            chip.clear();
            // We do not die of it.
            served.deaths = served.deaths.saturating_sub(1);
        }
        if let Err(why) = self.put(chip) {
            self.warn(&format!("is not handed over: {why}"));
        }
        // Neither shut down nor reset: the process ends.
        std::mem::forget(self.served.take());
    }

    /// Has the port held as it is now. Where that cannot be, nothing of it is: what was held before
    /// is not true any more.
    pub(super) fn keep(&self) {
        let Some(keeping) = &self.keeping else { return };
        let done = self.put(Vec::new());
        if done.is_err() {
            let _ = keeping.forget();
        }
        self.shared.standing.set_held(done);
    }

    /// Has the port held as it is, with a chip that is quiet in this state, or none.
    fn put(&self, chip: Vec<u8>) -> Result<(), String> {
        let Some(keeping) = &self.keeping else { return Ok(()) };
        let (line, served) = (self.keeper.line(), self.served.as_ref());
        let interrupts: Vec<_> = served.map(|s| s.session.interrupts()).unwrap_or_default();
        let mut record = keeping.record(&self.keeper, line.as_ref())?;
        let events = interrupts.iter().map(|i| Interrupt {
            index: i.index,
            vector: i.vector,
            unmask: i.unmask,
            event: i.event.as_fd(),
        });
        (record.interrupts, record.chip) = (events.collect(), chip);
        if let Some(served) = served {
            record.state = served.state.as_ref().map(AsFd::as_fd);
            let counts = (served.controls, served.adopted, served.deaths);
            record.client = Some(Client::of(&served.connection, counts)?);
            if !served.session.put_into(&mut record) {
                return Err("its VM has too many memory files".to_owned());
            }
        }
        keeping.put(&record)
    }

    /// Has the holder know what a control message has done, before it is answered.
    pub(super) fn keep_next(&mut self) {
        if let Some(served) = &mut self.served {
            let taken = served.connection.journal().map_or(0, Journal::controls);
            served.controls = taken.wrapping_add(1);
        }
        self.keep();
    }

    /// Goes on with the client of a switch that has died, with its chip as that was left, or reset.
    pub(super) fn adopt(&mut self, found: FoundClient) {
        let FoundClient { sock, client, regions, interrupts, chip, state, .. } = found;
        let (deadly, has_killed) = (client.is_deadly(), client.has_killed());
        // What is in the old one is true once, and only if its requests were counted.
        let remains = state.filter(|_| chip.is_empty()).map(take_remains);
        let remains = remains.transpose().unwrap_or_else(|e| {
            self.warn(&format!("cannot read what its chip has left: {e}"));
            None
        });
        let Client { socket, journal, area, version, controls, adopted, deaths, .. } = client;
        // `sock` has it too.
        drop(socket);
        let journal = Journal::adopt(journal);
        let mut connection = Connection::new(sock, journal.as_ref().ok().cloned());
        let found = Found {
            version,
            done_before: false,
            late: 0,
            config: [0; COPIED],
            memo: 0,
            regions,
            interrupts,
            chip,
            remains: remains.filter(|_| !has_killed).unwrap_or_default(),
            done: 0,
        };
        let session = match journal {
            Err(e) => Err(e.to_string()),
            Ok(_) if deadly => Err("switches have died of it, one after the other".to_owned()),
            Ok(_) => self.resume(&mut connection, area, controls, found),
        };
        let (session, state) = match session {
            Ok(session) => session,
            Err(why) => {
                self.warn(&format!("its VM's NIC is lost with the switch that has died: {why}"));
                // The holder must not be the last that has its socket.
                self.keep();
                drop(connection);
                return;
            }
        };
        let chip = session.chip();
        let deaths = if chip == Chip::Saved { 0 } else { deaths.saturating_add(1) };
        let adopted = adopted.saturating_add(1);
        let replies = Replies::default();
        *self.shared.memory() = session.memory();
        self.served =
            Some(Served { connection, session, state, replies, controls, adopted, deaths });
        // A state that was gone on with is not true any more.
        self.keep();
        self.served.iter().for_each(|served| served.session.begin());
        self.shared.standing.set_adopted(adopted, chip.how());
        self.log_adopted(chip);
        let now = Instant::now();
        if chip != Chip::Saved {
            self.proven = Some(now + TRIAL);
        }
        if chip == Chip::Reset {
            self.set_flap(Some(Flap::begin(now)));
        } else {
            self.port().nic().set_link(self.link);
            // From here on the next one finds all there is.
            self.port().nic().note();
        }
        (self.changed)();
    }

    /// Plugs the cable in, or pulls it out, and has the driver look if it has not yet.
    fn set_flap(&mut self, flap: Option<Flap>) {
        let out = flap.as_ref().is_some_and(Flap::is_out);
        self.flap = flap;
        let nic = self.port().nic();
        nic.set_link(!out && self.link);
        if !nic.is_set_up() {
            self.served.iter().for_each(|served| served.session.tell_lost());
        }
    }

    /// Does what the flap has to do now, if there is one.
    pub(super) fn go_on_with_flap(&mut self, now: Instant) {
        let Some(flap) = &self.flap else { return };
        let doorbells = self.port().counters().input.notifications.get();
        let seen = Seen { set_up: self.port().nic().is_set_up(), doorbells };
        match flap.next(now, seen) {
            Some(Cable::Stays) => self.set_flap(None),
            Some(Cable::Is(flap)) => self.set_flap(Some(flap)),
            None => {}
        }
    }

    fn log_adopted(&mut self, chip: Chip) {
        if chip != Chip::Reset {
            let how =
                if chip == Chip::Found { ", which was killed: its chip is as it was" } else { "" };
            log::info!("{}: goes on with the VM of the switch before{how}", self.name);
            return;
        }
        self.warn(
            &"goes on with the VM of the switch that has died; its chip is reset, and its cable \
              pulled until its driver sets it up",
        );
    }

    /// Finishes what was begun, and has the NIC and the interrupts that the client knows.
    fn resume(
        &self,
        connection: &mut Connection<Frames>,
        area: Option<OwnedFd>,
        controls: u64,
        mut found: Found,
    ) -> Result<(Session, Option<OwnedFd>), String> {
        found.done = connection.recover(&self.waker).map_err(|e| error_chain(&e))?;
        let journal = connection.journal().ok_or("it has no journal")?;
        found.done_before = controls == journal.controls().wrapping_add(1);
        found.config = journal.copied();
        found.memo = journal.memo();
        if journal.is_once() {
            // Half of it, perhaps.
            found.remains.clear();
            journal.set_once(false);
        }
        let silence = Duration::from_nanos(monotonic().saturating_sub(journal.last_alive()));
        if silence >= LATE {
            found.late = connection.waiting().map_err(|e| error_chain(&e))?;
        }
        let state = self.renew_state().map_err(|e| format!("memory for its chip: {e}"))?;
        let port = Arc::clone(&self.shared.port);
        let session = Session::adopt(port, || self.areas.adopt(area), self.files, found);
        Ok((session.map_err(|e| error_chain(&e))?, state))
    }
}

/// What a chip has left in `state`, which nobody is to go on with a second time: by then the rings
/// are others.
fn take_remains(state: OwnedFd) -> io::Result<Vec<u8>> {
    let pages = SharedPages::of(&state, HELD)?;
    let memory = pages.window(0, HELD).ok_or(io::ErrorKind::InvalidData)?;
    let mut remains = vec![0; HELD];
    memory.slice(0, HELD).read(&mut remains);
    let (at, void) = Remains::VOID;
    memory.set_u32(at, void, Ordering::Release);
    Ok(remains)
}
