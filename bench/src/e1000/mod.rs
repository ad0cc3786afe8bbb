//! The e1000 in a real guest beside QEMU's own model. Native guests are measured by `vmlan bench raw`.

pub mod guest;
