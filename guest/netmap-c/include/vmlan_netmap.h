/*
 * SPDX-License-Identifier: Apache-2.0 OR MIT
 *
 * What libvmlan_netmap exports. Programs for netmap need none of it by name: net/netmap_user.h and
 * libnetmap.h are made of it. Functions return -1 and set errno where they fail.
 */
#ifndef VMLAN_NETMAP_H
#define VMLAN_NETMAP_H

#include <poll.h>
#include <stddef.h>
#include <stdint.h>
#include <net/netmap.h>

#ifdef __cplusplus
extern "C" {
#endif

/* A port that is open: one descriptor, bound to some of a NIC's rings. */
struct vmlan_netmap_port {
	int fd;
	uint16_t tx_rings;
	uint16_t rx_rings;
	uint32_t tx_slots;
	uint32_t rx_slots;
	struct netmap_if *nifp;
	void *mem; /* one region for all ports of the process */
	uint64_t memsize;
	uint64_t nifp_offset;
	uint32_t extra_bufs; /* in: how many are wanted, out: how many there are */
};

/* What has passed through a port since it was opened. */
struct vmlan_netmap_counters {
	uint64_t tx_frames;
	uint64_t rx_frames;
	uint64_t tx_copies; /* from a buffer to the device's memory */
	uint64_t rx_copies; /* from the device's memory to a buffer */
	uint64_t swapped;   /* slots that came with NS_BUF_CHANGED: moved without a copy */
	uint64_t resets;    /* of rings, because of slots, lengths or indexes that cannot be */
};

/*
 * Opens a port by its address ("vhost-user:...", "vfio-user:...", "pci:..."), or shares the one
 * that the process has there. `mode` is one of NR_REG_ALL_NIC and NR_REG_ONE_NIC (with `ring`).
 * EINVAL: wrong address or mode; ENXIO: nobody is there, or it refuses; ENOMEM, EMFILE.
 */
int vmlan_netmap_open(const char *address, uint32_t mode, uint16_t ring, uint64_t flags,
		      struct vmlan_netmap_port *port);
/* EBADF: no such port. The last one closes the NIC. */
int vmlan_netmap_close(int fd);
/* NIOCTXSYNC and NIOCRXSYNC of a port; ENOTSUP for its other requests. Else ioctl(2). */
int vmlan_netmap_ioctl(int fd, unsigned long request, void *arg);
/* poll(2), in which descriptors of ports are synced as netmap does. */
int vmlan_netmap_poll(struct pollfd *fds, nfds_t count, int timeout);
/* EBADF: no such port. */
int vmlan_netmap_counters(int fd, struct vmlan_netmap_counters *counters);

#ifdef __cplusplus
}
#endif
#endif
