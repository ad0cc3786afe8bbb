//! The doors VMs come in by: vhost-user (vfio-user to come).
