//! Ports that are not VMs: tap, stream, pcap.
