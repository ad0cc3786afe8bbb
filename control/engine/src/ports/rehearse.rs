//! What can be known of a port before the one that runs is closed for it.

use std::os::unix::fs::MetadataExt as _;
use std::path::Path;

use vmlan_attach::{Place, could_listen};
use vmlan_frame::error_chain;

use super::{Ports, forbidden};
use vmlan_config::address::{NamedAddress, Spec};
use vmlan_config::refusal::{Cause, Refusal};

impl Ports {
    /// Says why `port` could not be opened in the place of one that runs.
    ///
    /// Closing that one costs a VM on a vfio-user port its NIC: not for a mistake.
    pub(super) fn rehearse(&self, port: &NamedAddress) -> Result<(), Refusal> {
        let NamedAddress { name, address } = port;
        #[cfg(any(test, feature = "fuzz"))]
        if super::given::has(address.place()) {
            return Ok(());
        }
        let (mode, group) = match address.spec() {
            Spec::VhostUser(spec) => (spec.mode, spec.group.as_deref()),
            Spec::VfioUser(spec) => (spec.mode, spec.group.as_deref()),
            _ => return Ok(()),
        };
        let Some(path) = address.makes() else { return Ok(()) };
        // Its directory may have two names.
        let file = |path: &Path| path.metadata().ok().map(|m| (m.dev(), m.ino()));
        let same = |p: &Path| p == path || file(p).is_some_and(|p| file(path) == Some(p));
        let own = self.entries.iter().filter_map(|e| e.address.makes()).any(same);
        could_listen(Place { path, mode, group }, own).map_err(|e| {
            let text = forbidden(address).unwrap_or_else(|| error_chain(&e));
            Refusal::new(Cause::Failed, format!("port {name}: {text}"))
        })
    }
}
