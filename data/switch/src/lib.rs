//! The switch: pull, look up, push; forwarding table and counters.
