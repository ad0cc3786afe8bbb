//! NIC models as pure state machines: virtio-net, e1000, rtl8139, r8169.
