//! Where a worker runs, and before whom.

use rustix::thread::{CpuSet, sched_setaffinity};

use super::signal;

/// What the kernel's scheduler is told of one worker.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Place {
    /// `None`: anywhere.
    pub(super) cpu: Option<usize>,
    /// Before all ordinary threads.
    pub(super) real_time: bool,
}

impl Place {
    /// From now on this holds for the calling thread. What is not permitted is told and left out.
    pub(super) fn take(self) {
        if let Some(cpu) = self.cpu.filter(|cpu| *cpu < CpuSet::MAX_CPU) {
            let mut set = CpuSet::new();
            set.set(cpu);
            if let Err(e) = sched_setaffinity(None, &set) {
                log::warn!("a worker cannot keep to CPU {cpu}: {e}");
            }
        }
        if self.real_time
            && let Err(e) = signal::run_before_others()
        {
            log::warn!(
                "low-latency: a worker waits its turn like others: {e}: it needs CAP_SYS_NICE, or \
                    a limit (ulimit -r, LimitRTPRIO=) of 1"
            );
        }
    }
}
