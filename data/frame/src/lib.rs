//! Ethernet frames with their offload state, batches of them, and the Port trait.
