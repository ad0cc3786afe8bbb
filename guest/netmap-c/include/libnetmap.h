/*
 * SPDX-License-Identifier: Apache-2.0 OR MIT
 *
 * netmap's newer calls. A port is named "netmap:ADDRESS", or "netmap:ADDRESS^" and so on.
 */
#ifndef VMLAN_LIBNETMAP_H
#define VMLAN_LIBNETMAP_H

#include <net/netmap_user.h>

#ifdef __cplusplus
extern "C" {
#endif

/* One region, for all ports of a process: programs compare pointers to it. */
struct nmem_d {
	void *mem;
	uint64_t size;
};

struct nmport_d {
	struct nmreq_header hdr;
	struct nmreq_register reg;
	struct nmem_d *mem;
	int register_done;
	int mmap_done;
	int fd;
	struct netmap_if *nifp;
	uint16_t first_tx_ring, last_tx_ring;
	uint16_t first_rx_ring, last_rx_ring;
	uint16_t cur_tx_ring, cur_rx_ring;
	char *address; /* what nr_name of hdr may be too short for */
	struct nmem_d own_mem;
};

/* The same object in every file of a program. */
__attribute__((weak)) struct nmem_d vmlan_netmap_mem_;

static inline struct nmport_d *
nmport_new(void)
{
	struct nmport_d *d = (struct nmport_d *)calloc(1, sizeof(*d));

	if (d == NULL) {
		errno = ENOMEM;
		return NULL;
	}
	d->fd = -1;
	d->hdr.nr_version = NETMAP_API;
	d->hdr.nr_reqtype = NETMAP_REQ_REGISTER;
	d->hdr.nr_body = (uint64_t)(uintptr_t)&d->reg;
	d->reg.nr_mode = NR_REG_ALL_NIC;
	return d;
}

static inline int
nmport_parse(struct nmport_d *d, const char *spec)
{
	struct vmlan_netmap_name parsed;
	char *copy;

	spec = vmlan_netmap_rest_(spec);
	if (vmlan_netmap_parse(spec, &parsed) < 0)
		return -1;
	copy = strdup(spec);
	if (copy == NULL) {
		errno = ENOMEM;
		return -1;
	}
	copy[parsed.len] = 0;
	free(d->address);
	d->address = copy;
	vmlan_netmap_name_(d->hdr.nr_name, sizeof(d->hdr.nr_name), copy, parsed.len);
	d->reg.nr_mode = parsed.mode;
	d->reg.nr_ringid = parsed.ring;
	d->reg.nr_flags = parsed.flags;
	if (parsed.mem_id)
		d->reg.nr_mem_id = parsed.mem_id;
	return 0;
}

static inline void
nmport_undo_parse(struct nmport_d *d)
{
	free(d->address);
	d->address = NULL;
}

static inline void
nmport_delete(struct nmport_d *d)
{
	nmport_undo_parse(d);
	free(d);
}

static inline struct nmport_d *
nmport_prepare(const char *spec)
{
	struct nmport_d *d = nmport_new();

	if (d != NULL && nmport_parse(d, spec) < 0) {
		nmport_delete(d);
		d = NULL;
	}
	return d;
}

static inline void
nmport_undo_prepare(struct nmport_d *d)
{
	nmport_delete(d);
}

static inline int
nmport_register(struct nmport_d *d)
{
	struct vmlan_netmap_port port;

	/* Pipes are asked for by name. */
	if (d->register_done || d->address == NULL || d->reg.nr_mode == NR_REG_PIPE_MASTER ||
	    d->reg.nr_mode == NR_REG_PIPE_SLAVE) {
		errno = EINVAL;
		return -1;
	}
	memset(&port, 0, sizeof(port));
	port.extra_bufs = d->reg.nr_extra_bufs;
	port.mem_id = d->reg.nr_mem_id;
	port.tx_slots = d->reg.nr_tx_slots;
	port.rx_slots = d->reg.nr_rx_slots;
	if (vmlan_netmap_open(d->address, d->reg.nr_mode, d->reg.nr_ringid & NETMAP_RING_MASK,
		d->reg.nr_flags | ((d->reg.nr_flags & NETMAP_NO_TX_POLL) ? NR_NO_TX_POLL : 0),
		&port) < 0)
		return -1;
	d->register_done = 1;
	d->fd = port.fd;
	d->nifp = port.nifp;
	d->reg.nr_offset = port.nifp_offset;
	d->reg.nr_memsize = port.memsize;
	d->reg.nr_tx_rings = port.tx_rings;
	d->reg.nr_rx_rings = port.rx_rings;
	d->reg.nr_host_tx_rings = d->reg.nr_host_rx_rings = port.host_rings;
	d->reg.nr_tx_slots = port.tx_slots;
	d->reg.nr_rx_slots = port.rx_slots;
	d->reg.nr_mem_id = port.mem_id;
	d->reg.nr_extra_bufs = port.extra_bufs;
	d->first_tx_ring = d->cur_tx_ring = port.first_tx_ring;
	d->last_tx_ring = port.last_tx_ring;
	d->first_rx_ring = d->cur_rx_ring = port.first_rx_ring;
	d->last_rx_ring = port.last_rx_ring;
	d->own_mem.mem = port.mem;
	d->own_mem.size = port.memsize;
	return 0;
}

static inline void
nmport_undo_register(struct nmport_d *d)
{
	if (d->register_done)
		vmlan_netmap_close(d->fd);
	d->register_done = 0;
	d->fd = -1;
	d->nifp = NULL;
}

static inline int
nmport_mmap(struct nmport_d *d)
{
	if (!d->register_done || d->mmap_done) {
		errno = EINVAL;
		return -1;
	}
	vmlan_netmap_mem_ = d->own_mem;
	d->mem = &vmlan_netmap_mem_;
	d->mmap_done = 1;
	return 0;
}

static inline void
nmport_undo_mmap(struct nmport_d *d)
{
	d->mem = NULL;
	d->mmap_done = 0;
}

static inline int
nmport_open_desc(struct nmport_d *d)
{
	if (nmport_register(d) < 0)
		return -1;
	if (nmport_mmap(d) < 0) {
		nmport_undo_register(d);
		return -1;
	}
	return 0;
}

static inline void
nmport_undo_open_desc(struct nmport_d *d)
{
	nmport_undo_mmap(d);
	nmport_undo_register(d);
}

static inline void
nmport_close(struct nmport_d *d)
{
	if (d == NULL)
		return;
	nmport_undo_open_desc(d);
	nmport_undo_prepare(d);
}

static inline struct nmport_d *
nmport_open(const char *spec)
{
	struct nmport_d *d = nmport_prepare(spec);

	if (d != NULL && nmport_open_desc(d) < 0) {
		int why = errno;

		nmport_undo_prepare(d);
		errno = why;
		d = NULL;
	}
	return d;
}

/* Prepared, not open. */
static inline struct nmport_d *
nmport_clone(struct nmport_d *d)
{
	struct nmport_d *clone = nmport_prepare(d->address);

	if (clone == NULL)
		return NULL;
	clone->hdr = d->hdr;
	clone->hdr.nr_body = (uint64_t)(uintptr_t)&clone->reg;
	clone->reg = d->reg;
	return clone;
}

/* 0, or -1 for no room in any ring. */
static inline int
nmport_inject(struct nmport_d *d, const void *buf, size_t size)
{
	struct nm_desc as;
	int done;

	memset(&as, 0, sizeof(as));
	as.nifp = d->nifp;
	as.first_tx_ring = d->first_tx_ring;
	as.last_tx_ring = d->last_tx_ring;
	as.cur_tx_ring = d->cur_tx_ring;
	done = nm_inject(&as, buf, size);
	d->cur_tx_ring = as.cur_tx_ring;
	return done == (int)size ? 0 : -1;
}

#ifdef __cplusplus
}
#endif
#endif
