//! What happens, as server-sent events (the HTML standard, section 9.2).

use std::fmt;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use hyper::body::Bytes;
use tokio::sync::broadcast::error::RecvError;
use vmlan_engine::events::{Event, Listener};

/// Waits for the next event; whom it was told, and what.
type Next = Pin<Box<dyn Future<Output = (Listener, Result<Arc<Event>, RecvError>)> + Send>>;

/// Events for one client. It is asked for the next one when the last was written: a client that
/// does not read makes its place in the queue fall behind, and is told so.
pub(super) struct EventStream {
    hello: Option<Bytes>,
    next: Next,
}

impl EventStream {
    pub(super) fn new(listener: Listener, hello: &Event) -> Self {
        Self { hello: Some(text(hello)), next: next(listener) }
    }

    /// The next event; `None` if there will be none.
    pub(super) fn poll(&mut self, context: &mut Context<'_>) -> Poll<Option<Bytes>> {
        if let Some(hello) = self.hello.take() {
            return Poll::Ready(Some(hello));
        }
        self.next.as_mut().poll(context).map(|(listener, told)| {
            self.next = next(listener);
            match told {
                Ok(event) => Some(text(&event)),
                Err(RecvError::Lagged(missed)) => Some(text(&Event::missed(missed))),
                Err(RecvError::Closed) => None,
            }
        })
    }
}

fn next(mut listener: Listener) -> Next {
    Box::pin(async move {
        let told = listener.recv().await;
        (listener, told)
    })
}

/// `event:` and `data:`, and `id:` if it has a number. JSON has no line breaks.
fn text(event: &Event) -> Bytes {
    let json = serde_json::to_string(event).unwrap_or_default();
    let id = match event.number {
        0 => String::new(),
        n => format!("id: {n}\n"),
    };
    Bytes::from(format!("{id}event: {}\ndata: {json}\n\n", event.event))
}

impl fmt::Debug for EventStream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("EventStream").finish_non_exhaustive()
    }
}
