//! Two guests of `vmlan pkt-gen`, measured for a while.

use std::time::Duration;

use super::{Lab, MAC_A, MAC_B, Reading, Window};
use crate::exit::Failure;

/// Time for caches, clocks and the forwarding table to settle.
const WARM_UP: Duration = Duration::from_millis(500);

/// What the guests do.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Task<'a> {
    /// Bytes of a frame, without FCS.
    pub(crate) bytes: u32,
    /// There and back instead of one way.
    pub(crate) ping: bool,
    /// More words for the sender.
    pub(crate) sender: &'a [&'a str],
}

/// What was seen.
#[derive(Debug)]
pub(crate) struct Seen {
    /// By the switch.
    pub(crate) window: Window,
    /// What the sender says of its whole run.
    pub(crate) sender: serde_json::Value,
}

impl Lab {
    /// Runs `task` between the ports `a` and `b` and measures for `time`; `news` as for [`Lab::watch`].
    pub(crate) fn measure(
        &mut self,
        task: Task<'_>,
        time: Duration,
        news: &mut dyn FnMut(f64, Duration),
    ) -> Result<Seen, Failure> {
        let bytes = task.bytes.to_string();
        let (sends, answers) = if task.ping { ("ping", "pong") } else { ("tx", "rx") };
        let mut b = self.ready_guest("b", &["pkt-gen", "--json", "-f", answers, "-s", MAC_B])?;
        let words = ["pkt-gen", "--json", "-f", sends, "-s", MAC_A, "-d", MAC_B, "-l", &bytes];
        let mut a = self.ready_guest("a", &[&words[..], task.sender].concat())?;
        self.watch(WARM_UP, &mut [&mut a, &mut b], news)?;
        let before = Reading::take(self, &[&a, &b])?;
        self.watch(time, &mut [&mut a, &mut b], news)?;
        let after = Reading::take(self, &[&a, &b])?;
        let said = a.finish()?;
        b.finish()?;
        let window = Window::between(&before, &after);
        if window.frames_per_s == 0.0 {
            return Err(Failure::Failed("no frame passed".into()));
        }
        let sender = serde_json::from_str(&said)
            .map_err(|e| Failure::Failed(format!("the sender's summary makes no sense: {e}")))?;
        Ok(Seen { window, sender })
    }
}
