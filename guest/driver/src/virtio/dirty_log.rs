//! Dirty logging: what a VMM does while it migrates a guest (vhost-user, "Migration").

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;

use super::start::rings;
use super::{VirtioError, VirtioNet};
use vmlan_transport::memory::HIGH_GPA;
use vmlan_transport::sys;
use vmlan_transport::vhost_user::F_PROTOCOL_FEATURES;
use vmlan_transport::vhost_user::feature;

const PAGE: u64 = 4096;

/// A log in shared memory: one bit for each guest-physical page the back end wrote, page 0 in the
/// lowest bit of byte 0.
#[derive(Debug)]
pub struct DirtyLog {
    file: File,
    bytes: u64,
}

impl DirtyLog {
    /// Was the page of this guest-physical address written since logging began?
    ///
    /// # Errors
    /// `UnexpectedEof` for an address beyond the RAM; whatever reading the log reports.
    pub fn is_dirty(&self, guest_phys: u64) -> io::Result<bool> {
        let page = guest_phys / PAGE;
        let mut byte = [0];
        self.file.read_exact_at(&mut byte, page / 8)?;
        Ok(byte[0] >> (page % 8) & 1 == 1)
    }

    /// How many pages were written.
    pub fn dirty_pages(&self) -> io::Result<u64> {
        let mut log = vec![0; usize::try_from(self.bytes).map_err(io::Error::other)?];
        self.file.read_exact_at(&mut log, 0)?;
        Ok(log.iter().map(|byte| u64::from(byte.count_ones())).sum())
    }
}

impl VirtioNet {
    /// Makes the running back end log its writes to guest memory, rings included: SET_LOG_BASE,
    /// SET_FEATURES with LOG_ALL, and SET_VRING_ADDR with the log flag for each ring.
    pub fn start_dirty_log(&mut self) -> Result<DirtyLog, VirtioError> {
        let last = HIGH_GPA + (self.ram.size() - self.ram.buffers()) as u64;
        let bytes = last.div_ceil(PAGE).div_ceil(8).next_multiple_of(PAGE);
        let file = sys::sealed_memfd(bytes)
            .map_err(|source| VirtioError::System { what: "make the dirty log", source })?;
        let features = self.features | feature::LOG_ALL;
        let front = self.front.as_mut().ok_or(VirtioError::NotConnected)?;
        front.set_log_base(bytes, &file)?;
        front.set_features(features | F_PROTOCOL_FEATURES)?;
        for (index, queue) in rings(&self.pairs) {
            front.set_vring_addr(index, super::start::addresses(&self.ram, queue, true))?;
        }
        // Without REPLY_ACK this alone shows that all of it is in force.
        front.features()?;
        Ok(DirtyLog { file, bytes })
    }

    /// Ends logging: SET_FEATURES without LOG_ALL, ring addresses without the log flag.
    pub fn stop_dirty_log(&mut self) -> Result<(), VirtioError> {
        let front = self.front.as_mut().ok_or(VirtioError::NotConnected)?;
        front.set_features(self.features | F_PROTOCOL_FEATURES)?;
        for (index, queue) in rings(&self.pairs) {
            front.set_vring_addr(index, super::start::addresses(&self.ram, queue, false))?;
        }
        front.features()?;
        Ok(())
    }
}
