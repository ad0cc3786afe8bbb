//! A port's keeper, as the port sees it.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, Instant};

use rustix::io::Errno;
use rustix::net::{SendFlags, Shutdown};

use crate::asked::Asked;
use crate::descriptor::Descriptor;
use crate::line::{self, Fds};
use crate::packet::{Head, MAX_TAKE, REPLY, Request, SLOTS, decode_lines};
use crate::{spawner, wait};

/// How long a keeper may take to answer. It is parked then, or starved. QEMU waits 5 s for a reply,
/// and its emulated NIC does not survive a lost connection: a busy machine gets most of that time.
const PATIENCE: Duration = Duration::from_secs(4);

/// Time between two attempts to replace a keeper.
const RETRY: Duration = Duration::from_secs(1);

/// Keepers that hang, of one port. While there are so many, nothing that needs one is done: a peer
/// must not fill the process table.
const MAX_HANGING: usize = 4;

/// Why a keeper did not do what it was asked.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs, reason = "the messages say it")]
pub enum KeeperError {
    /// It hangs, because of what the peer sent. The peer must be disconnected.
    #[error("a descriptor that the peer sent does not answer when it is looked at or closed")]
    Parked,
    /// It died over this request: what it had taken is lost.
    #[error("the port's keeper was killed in the middle of a message")]
    Killed,
    /// It made this system call, which no keeper makes, and was ended. The peer that it served may
    /// have taken it over.
    #[error(
        "the port's keeper made the system call {}, which none needs, and was ended: its peer may \
         have taken it over",
        vmlan_sandbox::name_of(*.0)
    )]
    Forbidden(i32),
    #[error("the port has no keeper")]
    Gone(#[source] io::Error),
    /// [`Keeper::close`] was called.
    #[error("the port is being removed")]
    Closing,
    #[error(transparent)]
    Io(#[from] Errno),
}

/// What [`Kept::take`] took.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Taken {
    /// Bytes; 0 is the end of the stream.
    pub bytes: usize,
    /// Descriptors were closed unseen: more than [`MAX_FDS`](crate::MAX_FDS), or than a process
    /// may have.
    pub truncated: bool,
}

/// A process that holds what strangers can reach of one port: see the crate's documentation.
///
/// The port's thread uses it. Anybody may [`Keeper::close`] it, even while that thread hangs.
#[derive(Clone, Debug)]
pub struct Keeper(Arc<Shared>);

/// What is dropped is dropped in this order: the line last, at whose end the keeper closes.
#[derive(Debug)]
struct Shared {
    listener: Option<OwnedFd>,
    closing: AtomicBool,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    /// Our end of the keeper's line; `None`: it was killed.
    line: Option<Arc<OwnedFd>>,
    /// Replies that nobody has waited for yet, to [`Request::LetGo`].
    owed: usize,
    /// Since when.
    since: Option<Instant>,
    /// It did not answer in time. Nothing more is asked of it: it would do it when it wakes up.
    hangs: bool,
    /// Lines of its predecessors that hang still.
    hanging: Vec<Arc<OwnedFd>>,
    /// No attempt to replace it before.
    again: Option<Instant>,
    /// What [`Keeper::look`] is to tell.
    trouble: Option<KeeperError>,
    /// The connections it holds. Each is owned by a [`Kept`].
    slots: [Weak<OwnedFd>; SLOTS],
}

/// A connection that its keeper has too. Dropping it closes ours, then has the keeper close its
/// own.
#[derive(Debug)]
pub struct Kept {
    /// Closed before the keeper is told.
    sock: Arc<OwnedFd>,
    place: Place,
}

/// A keeper's slot, which is emptied on drop.
#[derive(Debug)]
struct Place {
    keeper: Keeper,
    slot: u8,
}

impl Keeper {
    /// Starts a keeper. `listener` is bound, and must not listen yet: call `listen` with
    /// [`Keeper::listener`] then.
    ///
    /// # Errors
    /// No process could be forked.
    pub fn new(listener: Option<OwnedFd>) -> io::Result<Self> {
        let state = Mutex::default();
        let keeper = Self(Arc::new(Shared { listener, closing: AtomicBool::new(false), state }));
        let begun = keeper.state().replace(&keeper.0);
        match begun {
            Ok(()) => Ok(keeper),
            Err(KeeperError::Gone(e)) => Err(e),
            Err(e) => Err(io::Error::other(e)),
        }
    }

    /// A keeper that has served a switch which has died: `line` is that one's end of its line, and
    /// `listener` listens, if it has one. Of its connections `sock` is kept on, in the slot that it
    /// has. It was `asked`. A keeper that has ended, or hangs, is replaced.
    ///
    /// # Errors
    /// There is none to be had.
    pub fn adopt(
        line: OwnedFd,
        listener: Option<OwnedFd>,
        sock: Option<(u8, OwnedFd)>,
        asked: Asked,
    ) -> Result<(Self, Option<Kept>), KeeperError> {
        let keeper = Self(Arc::new(Shared {
            listener,
            closing: AtomicBool::new(false),
            state: Mutex::default(),
        }));
        let mut state = keeper.state();
        state.line = Some(Arc::new(line));
        let sock = sock.map(|(slot, sock)| (slot, state.put(slot, sock)));
        if let Err(e) = state.catch_up(&keeper.0, asked) {
            state.failed(&e);
            // Where this fails the socket is not shut down: the next switch may do better.
            state.replace(&keeper.0)?;
        }
        for slot in (0..).take(SLOTS) {
            if sock.as_ref().is_none_or(|(used, _)| *used != slot) {
                state.let_go(slot);
            }
        }
        drop(state);
        let kept = sock.map(|(slot, sock)| keeper.kept(slot, sock));
        Ok((keeper, kept))
    }

    /// Our end of its line, for who is to adopt it.
    pub fn line(&self) -> Option<Arc<OwnedFd>> {
        self.state().line.clone()
    }

    /// The listener, to poll.
    pub fn listener(&self) -> Option<BorrowedFd<'_>> {
        self.0.listener.as_ref().map(AsFd::as_fd)
    }

    /// The next connection. It does not block.
    ///
    /// # Errors
    /// [`KeeperError`]: `Io` with what `accept` said. The caller looks after it
    /// ([`Keeper::look`]) and tries again later.
    pub fn accept(&self) -> Result<Kept, KeeperError> {
        let mut state = self.state();
        let slot = state.free_slot()?;
        // A connection that could not be passed on would be lost. In the backlog it waits.
        if let Some(line) = &state.line {
            drop(rustix::io::fcntl_dupfd_cloexec(line, 0)?);
        }
        let mut fds = Fds::new();
        state.ask(&self.0, Request::Accept(slot), &mut [0; REPLY], &mut fds)?;
        let Some(sock) = fds.drain().next() else {
            state.let_go(slot);
            return Err(Errno::MFILE.into());
        };
        Ok(self.keep(&mut state, slot, sock))
    }

    /// Keeps a socket that is not connected yet: nothing can be queued in it.
    ///
    /// # Errors
    /// [`KeeperError`]: the caller tries again later.
    pub fn hold(&self, sock: OwnedFd) -> Result<Kept, KeeperError> {
        // The keeper does this too, but nobody waits for that.
        rustix::net::sockopt::set_socket_oobinline(&sock, true)?;
        let mut state = self.state();
        let slot = state.free_slot()?;
        state.settle(&self.0)?;
        state.send(Request::Hold(slot), Some(sock.as_fd()))?;
        Ok(self.keep(&mut state, slot, sock))
    }

    fn keep(&self, state: &mut State, slot: u8, sock: OwnedFd) -> Kept {
        self.kept(slot, state.put(slot, sock))
    }

    fn kept(&self, slot: u8, sock: Arc<OwnedFd>) -> Kept {
        Kept { sock, place: Place { keeper: self.clone(), slot } }
    }

    /// Readable when [`Keeper::look`] wants to be called.
    pub fn watch(&self) -> Option<Arc<OwnedFd>> {
        let state = self.state();
        state.line.clone().filter(|_| !state.hangs)
    }

    /// When [`Keeper::look`] wants to be called at the latest.
    pub fn due(&self, now: Instant) -> Option<Duration> {
        let state = self.state();
        let due = match (state.is_usable(), state.since) {
            _ if state.trouble.is_some() => Some(now),
            (false, _) => Some(state.again.unwrap_or(now)),
            (true, since) => since.map(|since| since + PATIENCE),
        };
        due.map(|due| due.saturating_duration_since(now))
    }

    /// True if [`Keeper::look`] wants to be called now.
    pub fn is_due(&self) -> bool {
        self.due(Instant::now()) == Some(Duration::ZERO)
    }

    /// Looks whether the keeper is well, and replaces it if it is not.
    ///
    /// # Errors
    /// What has befallen it since the last look, for the log. After [`KeeperError::Parked`] the
    /// port had better pause before it accepts anybody.
    pub fn look(&self) -> Result<(), KeeperError> {
        let mut state = self.state();
        state.look(&self.0);
        state.trouble.take().map_or(Ok(()), Err)
    }

    /// Nobody can connect any more, and whoever waits for the keeper gives up.
    pub fn close(&self) {
        self.0.closing.store(true, Ordering::Release);
        if let Some(listener) = &self.0.listener {
            let _ = rustix::net::shutdown(listener, Shutdown::Both);
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    fn is_usable(&self) -> bool {
        self.line.is_some() && !self.hangs
    }

    /// From now on `sock` is what the keeper has in this slot.
    fn put(&mut self, slot: u8, sock: OwnedFd) -> Arc<OwnedFd> {
        let sock = Arc::new(sock);
        if let Some(place) = self.slots.get_mut(usize::from(slot)) {
            *place = Arc::downgrade(&sock);
        }
        sock
    }

    fn free_slot(&self) -> Result<u8, KeeperError> {
        let free = self.slots.iter().position(|slot| slot.strong_count() == 0);
        free.and_then(|slot| u8::try_from(slot).ok()).ok_or(Errno::MFILE.into())
    }

    fn send(&self, request: Request, fd: Option<BorrowedFd<'_>>) -> Result<(), Errno> {
        let line = self.line.as_ref().ok_or(Errno::PIPE)?;
        line::send(line.as_fd(), &request.encode(), fd.as_slice(), SendFlags::DONTWAIT)
    }

    /// Asks, and waits for the answer. A keeper that was killed before is replaced first.
    fn ask<'p>(
        &mut self,
        shared: &Shared,
        request: Request,
        packet: &'p mut [u8; REPLY],
        fds: &mut Fds,
    ) -> Result<(Head, &'p [u8]), KeeperError> {
        self.settle(shared)?;
        if self.send(request, None).is_err() {
            self.failed(&KeeperError::Killed);
            self.replace(shared)?;
            self.send(request, None)?;
        }
        let received = self.receive(shared, Instant::now() + PATIENCE, packet, fds);
        if let Err(e) = &received {
            self.failed(e);
        }
        let (head, rest) =
            Head::decode(packet.get(..received?).unwrap_or_default()).ok_or(Errno::PROTO)?;
        head.outcome()?;
        Ok((head, rest))
    }

    /// One reply.
    fn receive(
        &self,
        shared: &Shared,
        deadline: Instant,
        packet: &mut [u8],
        fds: &mut Fds,
    ) -> Result<usize, KeeperError> {
        let line = self.line.as_ref().ok_or(KeeperError::Killed)?;
        let closing = || shared.closing.load(Ordering::Acquire);
        match wait::readable(line.as_fd(), deadline, closing) {
            Err(e) if e.kind() == io::ErrorKind::Interrupted => return Err(KeeperError::Closing),
            Err(_) => return Err(KeeperError::Parked),
            Ok(()) => {}
        }
        match line::recv_now(line.as_fd(), packet, fds) {
            Ok(got) if got.bytes > 0 => is_reply(packet).map(|()| got.bytes),
            _ => Err(KeeperError::Killed),
        }
    }

    /// It is not to be asked any more.
    fn failed(&mut self, error: &KeeperError) {
        match error {
            KeeperError::Killed | KeeperError::Forbidden(_) => self.line = None,
            _ => self.hangs = true,
        }
    }

    /// Sees to it that the keeper has done all it was asked, or that there is another. Waits for
    /// it as long as it has patience left.
    fn settle(&mut self, shared: &Shared) -> Result<(), KeeperError> {
        while self.is_usable() && self.owed > 0 {
            let deadline = self.since.unwrap_or_else(Instant::now) + PATIENCE;
            match self.receive(shared, deadline, &mut [0; REPLY], &mut Fds::new()) {
                Ok(_) => self.paid(),
                Err(KeeperError::Closing) => return Err(KeeperError::Closing),
                Err(e) => {
                    self.failed(&e);
                    self.trouble = Some(e);
                }
            }
        }
        if self.is_usable() { Ok(()) } else { self.replace(shared) }
    }

    /// Reads what a keeper has answered to the switch before: what it was asked is done then.
    fn catch_up(&self, shared: &Shared, asked: Asked) -> Result<(), KeeperError> {
        let deadline = asked.deadline(Instant::now());
        let mut packet = [0; REPLY];
        while !asked.is_answer(&packet) {
            self.receive(shared, deadline, &mut packet, &mut Fds::new())?;
        }
        Ok(())
    }

    fn paid(&mut self) {
        self.owed = self.owed.saturating_sub(1);
        if self.owed == 0 {
            self.since = None;
        }
    }

    fn look(&mut self, shared: &Shared) {
        let now = Instant::now();
        while let Some(line) = self.line.clone().filter(|_| !self.hangs) {
            let mut packet = [0; REPLY];
            match line::recv_now(line.as_fd(), &mut packet, &mut Fds::new()) {
                Ok(got) if got.bytes > 0 => match is_reply(&packet) {
                    Ok(()) => self.paid(),
                    Err(e) => {
                        self.failed(&e);
                        self.trouble = Some(e);
                    }
                },
                Err(Errno::AGAIN) => break,
                _ => self.failed(&KeeperError::Killed),
            }
        }
        if self.since.is_some_and(|since| now >= since + PATIENCE) {
            self.hangs = true;
            self.trouble = Some(KeeperError::Parked);
        }
        if !self.is_usable()
            && let Err(e) = self.replace(shared)
        {
            self.trouble = Some(e);
        }
    }

    /// Closes what the keeper has in `slot`; ours must be closed. Not waited for.
    fn let_go(&mut self, slot: u8) {
        if let Some(place) = self.slots.get_mut(usize::from(slot)) {
            *place = Weak::new();
        }
        if self.is_usable() && self.send(Request::LetGo(slot), None).is_ok() {
            self.owed += 1;
            self.since.get_or_insert_with(Instant::now);
        }
    }

    /// A new keeper in place of the present one, which keeps what it has until the new one has it
    /// too: at no time is ours the last descriptor.
    fn replace(&mut self, shared: &Shared) -> Result<(), KeeperError> {
        let now = Instant::now();
        if self.again.is_some_and(|again| now < again) {
            return Err(KeeperError::Gone(io::ErrorKind::WouldBlock.into()));
        }
        self.again = Some(now + RETRY);
        self.hanging.retain(|line| !wait::is_at_end(line.as_fd()));
        if self.hangs && self.hanging.len() >= MAX_HANGING {
            let why = io::Error::other(format!("{MAX_HANGING} of them hang"));
            return Err(KeeperError::Gone(why));
        }
        let line = spawner::spawn().map_err(KeeperError::Gone)?;
        let give = |request: Request, fd: BorrowedFd<'_>| {
            line::send(line.as_fd(), &request.encode(), &[fd], SendFlags::DONTWAIT)
        };
        if let Some(listener) = &shared.listener {
            give(Request::Listen, listener.as_fd())?;
        }
        for (slot, sock) in (0..).zip(&self.slots) {
            if let Some(sock) = sock.upgrade() {
                give(Request::Hold(slot), sock.as_fd())?;
            }
        }
        if let Some(old) = self.line.replace(Arc::new(line)) {
            // The end of the line, for whenever it wakes up. Its own end tells us when it has gone.
            let _ = rustix::net::shutdown(&old, Shutdown::Write);
            self.hanging.push(old);
        }
        (self.owed, self.since, self.hangs, self.again) = (0, None, false, None);
        Ok(())
    }
}

/// A keeper that was ended says so, if it can.
fn is_reply(packet: &[u8]) -> Result<(), KeeperError> {
    Head::is_forbidden(packet).map_or(Ok(()), |call| Err(KeeperError::Forbidden(call)))
}

impl Kept {
    /// Receives into `buf`, and appends the descriptors that came along to `fds`. For bytes of
    /// which a peek without a control buffer has said (`MSG_CTRUNC`) that descriptors are among
    /// them. It does not wait for bytes.
    ///
    /// # Errors
    /// [`KeeperError`]: `Io` with what `recvmsg` said. Otherwise the connection must be dropped.
    pub fn take(&self, buf: &mut [u8], fds: &mut Vec<Descriptor>) -> Result<Taken, KeeperError> {
        self.receive(Request::Take, buf, fds)
    }

    /// As [`Kept::take`], but bytes and descriptors stay where they are: those that are passed on
    /// are duplicates. Where `SO_PEEK_OFF` is set the next peek goes on behind them.
    ///
    /// # Errors
    /// As [`Kept::take`].
    pub fn peek(&self, buf: &mut [u8], fds: &mut Vec<Descriptor>) -> Result<Taken, KeeperError> {
        self.receive(Request::Peek, buf, fds)
    }

    /// The slot that its keeper has it in, for [`Keeper::adopt`].
    pub fn slot(&self) -> u8 {
        self.place.slot
    }

    fn receive(
        &self,
        request: impl FnOnce(u8, u32) -> Request,
        buf: &mut [u8],
        fds: &mut Vec<Descriptor>,
    ) -> Result<Taken, KeeperError> {
        let Place { keeper, slot } = &self.place;
        let mut packet = [0; REPLY];
        let mut passed = Fds::new();
        let len = u32::try_from(buf.len().min(MAX_TAKE)).map_err(|_| Errno::TOOBIG)?;
        let request = request(*slot, len);
        let (head, rest) = keeper.state().ask(&keeper.0, request, &mut packet, &mut passed)?;
        let bytes = usize::try_from(head.bytes).map_err(|_| Errno::PROTO)?;
        let (data, lines) = rest.split_at_checked(bytes).ok_or(Errno::PROTO)?;
        buf.get_mut(..bytes).ok_or(Errno::PROTO)?.copy_from_slice(data);
        let list = decode_lines(lines, head.count, passed.drain()).ok_or(Errno::PROTO)?;
        let lost = list.len() < usize::from(head.count);
        fds.extend(list);
        Ok(Taken { bytes, truncated: head.truncated || lost })
    }
}

impl AsFd for Kept {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.sock.as_fd()
    }
}

impl Drop for Kept {
    fn drop(&mut self) {
        // The peer is not to wait for our keeper.
        let _ = rustix::net::shutdown(&self.sock, Shutdown::Both);
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.keeper.state().let_go(self.slot);
    }
}
