//! Bodies of answers: a text, one that ends with the port it tells of, or events.

use std::convert::Infallible;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::mpsc::Sender;
use std::task::{Context, Poll};

use super::events::EventStream;
use hyper::body::{Body, Bytes, Frame, SizeHint};
use tokio::sync::oneshot;
use vmlan_engine::action::{Action, Holder};

/// The body of an answer.
#[derive(Debug, Default)]
pub(super) struct AnswerBody {
    text: Option<Bytes>,
    hold: Option<Hold>,
    events: Option<EventStream>,
}

impl AnswerBody {
    /// `text`, and then nothing for as long as `hold` lasts.
    pub(super) fn held(text: String, hold: Hold) -> Self {
        Self { text: Some(text.into()), hold: Some(hold), events: None }
    }

    /// Events, for as long as they are read.
    pub(super) fn events(events: EventStream) -> Self {
        Self { events: Some(events), ..Self::default() }
    }

    /// True if it goes on for longer than a request.
    pub(super) fn is_held(&self) -> bool {
        self.hold.is_some() || self.events.is_some()
    }
}

impl From<String> for AnswerBody {
    fn from(text: String) -> Self {
        Self { text: Some(text.into()), ..Self::default() }
    }
}

impl Body for AnswerBody {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        let this = self.get_mut();
        if let Some(text) = this.text.take() {
            return Poll::Ready(Some(Ok(Frame::data(text))));
        }
        if let Some(events) = &mut this.events {
            return events.poll(context).map(|text| text.map(|text| Ok(Frame::data(text))));
        }
        match &mut this.hold {
            None => Poll::Ready(None),
            // It is never sent anything: its other end goes with the port.
            Some(hold) => Pin::new(&mut hold.end).poll(context).map(|_| None),
        }
    }

    fn is_end_stream(&self) -> bool {
        self.text.is_none() && !self.is_held()
    }

    fn size_hint(&self) -> SizeHint {
        match self.is_held() {
            false => SizeHint::with_exact(self.text.as_ref().map_or(0, |t| t.len() as u64)),
            true => SizeHint::default(),
        }
    }
}

/// What keeps a port open. Its end, which is that of the connection, ends the port.
#[derive(Debug)]
pub(super) struct Hold {
    end: oneshot::Receiver<Infallible>,
    control: Sender<Action>,
}

impl Hold {
    /// The connection's side, and the port's.
    pub(super) fn new(control: &Sender<Action>) -> (Self, Holder) {
        let (holder, end) = oneshot::channel();
        (Self { end, control: control.clone() }, Arc::new(holder))
    }
}

impl Drop for Hold {
    fn drop(&mut self) {
        self.end.close();
        // The control thread is gone only when everything is being closed.
        let _ = self.control.send(Action::HolderGone);
    }
}
