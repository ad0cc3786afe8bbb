//! Two guests, or one and whoever it talks to, measured for a while.

use std::time::{Duration, Instant};

use serde_json::Value;

use super::{Lab, Look, MAC_A, MAC_B, Process, Window};
use crate::failure::Failure;

/// `vmlan pkt-gen` at both ends.
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
pub(crate) struct Measured {
    /// By the switch.
    pub(crate) window: Window,
    /// What each guest says of its whole run, in the order of [`Lab::measure`].
    pub(crate) said: Vec<Value>,
}

/// Frames delivered a second, and the time left.
pub(crate) type News<'a> = &'a mut dyn FnMut(f64, Duration);

impl Lab {
    /// Runs `task` between the ports `a` and `b`, and measures for `time`. The sender speaks first.
    pub(crate) fn pkt_gen(
        &mut self,
        task: Task<'_>,
        time: Duration,
        news: News<'_>,
    ) -> Result<Measured, Failure> {
        let bytes = task.bytes.to_string();
        let (sends, answers) = if task.ping { ("ping", "pong") } else { ("tx", "rx") };
        // Guests that have nothing to do sleep at once: three processes share this machine's cores,
        // often only two, and one that waits by spinning takes its core from whoever it waits for.
        let common = ["pkt-gen", "--json", "--spin", "0"];
        let words = ["-f", sends, "-s", MAC_A, "-d", MAC_B, "-l", &bytes];
        let b = self.ready_guest("b", &[&common[..], &["-f", answers, "-s", MAC_B]].concat())?;
        let a = self.ready_guest("a", &[&common[..], &words, task.sender].concat())?;
        let seen = self.measure(vec![a, b], time, news, &mut || ())?;
        if seen.window.frames_per_s == 0.0 {
            return Err(Failure::Failed("no frame passed".into()));
        }
        Ok(seen)
    }

    /// Measures guests that are busy for `time`, after a moment in which they warm up; then ends
    /// them, in this order. `mark` is called when the time begins and when it ends.
    pub(crate) fn measure(
        &mut self,
        mut guests: Vec<Process>,
        time: Duration,
        news: News<'_>,
        mark: &mut dyn FnMut(),
    ) -> Result<Measured, Failure> {
        self.watch(self.setup.warm_up, &mut guests, news)?;
        mark();
        let pids: Vec<_> = guests.iter().map(Process::pid).collect();
        let before = Look::take(self, &pids)?;
        self.watch(time, &mut guests, news)?;
        let after = Look::take(self, &pids)?;
        mark();
        let window = Window::between(&before, &after);
        let said = guests.into_iter().map(|guest| {
            serde_json::from_str(&guest.finish()?)
                .map_err(|e| Failure::Failed(format!("a guest's summary cannot be read: {e}")))
        });
        Ok(Measured { window, said: said.collect::<Result<_, _>>()? })
    }

    /// Lets `time` pass as long as everybody lives.
    fn watch(
        &mut self,
        time: Duration,
        guests: &mut [Process],
        news: News<'_>,
    ) -> Result<(), Failure> {
        const STEP: Duration = Duration::from_millis(250);
        let end = Instant::now() + time;
        let delivered = |lab: &Self| -> Result<u64, Failure> {
            Ok(lab.stats()?.iter().map(|p| p.out.frames).sum())
        };
        let (mut frames, mut asked) = (delivered(self)?, Instant::now());
        while let Some(left) = end.checked_duration_since(Instant::now()).filter(|l| !l.is_zero()) {
            self.pause(left.min(STEP))?;
            guests.iter_mut().try_for_each(Process::alive)?;
            let now = delivered(self)?;
            let seconds = asked.elapsed().as_secs_f64().max(1e-6);
            news(vmlan_config::human_text::to_f64(now.saturating_sub(frames)) / seconds, left);
            (frames, asked) = (now, Instant::now());
        }
        Ok(())
    }
}
