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
	uint32_t tx_slots; /* in, for a pipe: how many are wanted, or 0 */
	uint32_t rx_slots;
	struct netmap_if *nifp;
	void *mem; /* one region for all ports of the process */
	uint64_t memsize;
	uint64_t nifp_offset;
	uint32_t extra_bufs; /* in: how many are wanted; out: how many it got */
	uint16_t mem_id;     /* in: 0 or 1, out: 1 */
	uint16_t host_rings; /* of each direction */
	/* Those that it is bound to; of none the first lies behind the last. */
	uint16_t first_tx_ring, last_tx_ring;
	uint16_t first_rx_ring, last_rx_ring;
};

/* What a name means, whose first `len` bytes are for vmlan_netmap_open. */
struct vmlan_netmap_name {
	uint64_t flags; /* NR_EXCLUSIVE, NR_RX_RINGS_ONLY, ... */
	uint32_t len;
	uint32_t mode;
	uint16_t ring;
	uint16_t mem_id; /* 0: it says nothing */
	/* Of a pipe: the bytes of its base; NR_REG_PIPE_*, if its identifier is a number; that. */
	uint32_t pipe_base;
	uint32_t pipe_mode;
	uint16_t pipe;
};

/*
 * What has passed through the rings of a descriptor since the first one for them was opened. Host
 * rings count for themselves.
 */
struct vmlan_netmap_counters {
	uint64_t tx_frames;
	uint64_t rx_frames;
	uint64_t tx_copies; /* from a buffer to memory of the device or the kernel */
	uint64_t rx_copies; /* from there to a buffer */
	uint64_t swapped;   /* slots that came with NS_BUF_CHANGED: moved without a copy */
	uint64_t resets;    /* of rings, because of slots, lengths or indexes that cannot be */
};

/*
 * Takes a name apart, without its "netmap:": BASE, BASE^ and BASE^N (host rings), BASE* (all),
 * BASE{ID and BASE}ID (ends of a pipe), and after one of these /FLAGS and @1 (the memory).
 * EINVAL: it is none.
 */
int vmlan_netmap_parse(const char *name, struct vmlan_netmap_name *parsed);
/*
 * Opens a port by its address ("vhost-user:...", "vfio-user:...", "pci:..."), or an end of a pipe
 * ("BASE{ID", "BASE}ID"), or shares the one that the process has there. `mode` is one of NR_REG_*;
 * `ring` a number for NR_REG_ONE_NIC and NR_REG_ONE_SW, and for NR_REG_PIPE_* that of the pipe;
 * `flags` are NR_EXCLUSIVE, NR_RX_RINGS_ONLY, NR_TX_RINGS_ONLY, NR_NO_TX_POLL.
 *
 * The first one with host rings makes a TAP device, "nm0" and so on, or the one that is named by
 * the address's key "host="; ni_name says which.
 *
 * EINVAL: wrong name, mode, ring or memory; ENXIO: nobody is there, or it refuses; EBUSY:
 * somebody has these rings, or the TAP device, for itself; EPERM: no right to make a TAP device;
 * ENOMEM, EMFILE.
 */
int vmlan_netmap_open(const char *name, uint32_t mode, uint16_t ring, uint64_t flags,
		      struct vmlan_netmap_port *port);
/* EBADF: no such port. The last one closes the NIC or the pipe. */
int vmlan_netmap_close(int fd);
/*
 * NIOCTXSYNC and NIOCRXSYNC of a port; EBUSY for NIOCREGIF, EOPNOTSUPP for its other requests. Else
 * ioctl(2).
 */
int vmlan_netmap_ioctl(int fd, unsigned long request, void *arg);
/* poll(2), in which descriptors of ports are synced as netmap does. */
int vmlan_netmap_poll(struct pollfd *fds, nfds_t count, int timeout);
/* EBADF: no such port. */
int vmlan_netmap_counters(int fd, struct vmlan_netmap_counters *counters);

#ifdef __cplusplus
}
#endif
#endif
