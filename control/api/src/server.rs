//! The API thread.

use std::convert::Infallible;
use std::io;
use std::os::unix::net::{UnixListener, UnixStream as Connection};
use std::pin::pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::Sender;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::net::UnixStream;
use tokio::sync::{Notify, OwnedSemaphorePermit, Semaphore};

use super::handlers::answer;
use super::socket::SocketFile;
use vmlan_engine::action::Action;

/// Connections served at once; more wait in the backlog. Those that hold a port or hear events are
/// not counted.
pub(super) const CONNECTIONS: usize = 64;

/// Time for a request's head to arrive; also how long an idle connection is kept.
const HEAD: Duration = Duration::from_secs(10);

/// A connection that has asked for nothing new for this long is ended, whatever it does, unless it
/// holds a port or hears events.
const LIFE: Duration = Duration::from_secs(60);

/// Turns of all connections after the end was asked for.
const ANSWERS: usize = 8;

/// The running API. Stops, and removes its socket, when dropped.
#[derive(Debug)]
pub struct Server {
    stop: Arc<Notify>,
    thread: Option<JoinHandle<()>>,
    _file: Option<SocketFile>,
}

impl Server {
    /// Serves `listener`, sending what is asked for to `control`. A client that is there already is
    /// `first`; its end is told as that of somebody who held a port.
    pub fn start(
        (listener, file): (UnixListener, Option<SocketFile>),
        first: Option<Connection>,
        control: Sender<Action>,
    ) -> io::Result<Self> {
        listener.set_nonblocking(true)?;
        let stop = Arc::new(Notify::new());
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let stopped = stop.clone();
        let thread = std::thread::Builder::new().name("api".into()).spawn(move || {
            vmlan_sandbox::enter(vmlan_sandbox::Thread::Api);
            if let Some(first) = first {
                runtime.spawn(serve_first(first, control.clone()));
            }
            runtime.spawn(serve(listener, control));
            runtime.block_on(async {
                stopped.notified().await;
                // Whoever has asked for the end is to be answered.
                for _ in 0..ANSWERS {
                    tokio::task::yield_now().await;
                }
            });
        })?;
        Ok(Self { stop, thread: Some(thread), _file: file })
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.stop.notify_one();
        if let Some(thread) = self.thread.take()
            && thread.join().is_err()
        {
            log::error!("the API thread panicked: this is a bug, please report it");
        }
    }
}

async fn serve(listener: UnixListener, control: Sender<Action>) {
    let listener = match tokio::net::UnixListener::from_std(listener) {
        Ok(listener) => listener,
        Err(e) => return log::error!("api: cannot watch the socket: {e}"),
    };
    let seats = Arc::new(Semaphore::new(CONNECTIONS));
    loop {
        // The semaphore is never closed, so a permit comes sooner or later.
        let Ok(seat) = seats.clone().acquire_owned().await else { return };
        match listener.accept().await {
            Ok((stream, _)) => {
                let control = control.clone();
                tokio::spawn(connection(stream, control, Some(seat)));
            }
            Err(e) => {
                // Usually no descriptor is left. This must not become a busy loop.
                log::warn!("api: cannot accept: {e}");
                tokio::time::sleep(Duration::from_millis(100)).await;
            }
        }
    }
}

async fn serve_first(stream: Connection, control: Sender<Action>) {
    let stream = stream.set_nonblocking(true).and_then(|()| UnixStream::from_std(stream));
    match stream {
        Ok(stream) => connection(stream, control.clone(), None).await,
        Err(e) => log::error!("api: cannot watch its first client: {e}"),
    }
    // The control thread is gone only when everything is being closed.
    let _ = control.send(Action::HolderGone);
}

/// Serves one client, which sits on `seat` unless it holds a port.
pub(super) async fn connection(
    stream: UnixStream,
    control: Sender<Action>,
    seat: Option<OwnedSemaphorePermit>,
) {
    let (asked, holds) = (AtomicBool::new(true), AtomicBool::new(false));
    let seat = Mutex::new(seat);
    let service = service_fn(|request| {
        asked.store(true, Ordering::Relaxed);
        let control = control.clone();
        let (holds, seat) = (&holds, &seat);
        async move {
            let answer = answer(request, control).await;
            if answer.body().is_held() {
                holds.store(true, Ordering::Relaxed);
                drop(seat.lock().unwrap_or_else(PoisonError::into_inner).take());
            }
            Ok::<_, Infallible>(answer)
        }
    });
    let served = http().serve_connection(TokioIo::new(stream), service);
    tend(served, || asked.swap(false, Ordering::Relaxed) || holds.load(Ordering::Relaxed)).await;
}

/// How requests are read, so that no client can take much.
pub(super) fn http() -> http1::Builder {
    let mut http = http1::Builder::new();
    http.timer(TokioTimer::new()).header_read_timeout(HEAD).max_buf_size(64 * 1024);
    http
}

/// Serves a connection until its client is done, or, looked at every [`LIFE`], is not `alive`.
pub(super) async fn tend(
    served: impl Future<Output = hyper::Result<()>>,
    alive: impl Fn() -> bool,
) {
    let mut served = pin!(served);
    while alive() {
        match tokio::time::timeout(LIFE, &mut served).await {
            Ok(Ok(())) => return,
            Ok(Err(e)) => return log::debug!("api: a connection ended: {e}"),
            Err(_) => {}
        }
    }
}
