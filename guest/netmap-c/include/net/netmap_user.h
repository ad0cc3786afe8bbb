/*
 * SPDX-License-Identifier: Apache-2.0 OR MIT
 *
 * netmap's macros and calls for programs. ioctl and poll are taken to the library, which passes on
 * what is not about its ports.
 */
#ifndef VMLAN_NET_NETMAP_USER_H
#define VMLAN_NET_NETMAP_USER_H

#include <errno.h>
#include <net/netmap.h>
#include <poll.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <vmlan_netmap.h>

#ifdef __cplusplus
extern "C" {
#endif

static inline int
vmlan_netmap_ioctl_(int fd, unsigned long request, ...)
{
	va_list list;
	void *arg;

	va_start(list, request);
	arg = va_arg(list, void *);
	va_end(list);
	return vmlan_netmap_ioctl(fd, request, arg);
}
#define ioctl(fd, ...) vmlan_netmap_ioctl_(fd, __VA_ARGS__, (void *)0)
#define poll(fds, count, timeout) vmlan_netmap_poll(fds, count, timeout)

#ifndef likely
#define likely(x) __builtin_expect(!!(x), 1)
#define unlikely(x) __builtin_expect(!!(x), 0)
#endif

/* Messages: always, at most `lps` a second, never. */
#ifndef D
#define D(format, ...)                                                                       \
	do {                                                                                 \
		struct timeval d_now_;                                                       \
		gettimeofday(&d_now_, NULL);                                                 \
		fprintf(stderr, "%03d.%06d %s [%d] " format "\n",                            \
		    (int)(d_now_.tv_sec % 1000), (int)d_now_.tv_usec, __func__, __LINE__,    \
		    ##__VA_ARGS__);                                                          \
	} while (0)
#define RD(lps, format, ...)                                                                 \
	do {                                                                                 \
		static time_t rd_second_;                                                    \
		static int rd_count_;                                                        \
		struct timeval rd_now_;                                                      \
		gettimeofday(&rd_now_, NULL);                                                \
		if (rd_now_.tv_sec != rd_second_) {                                          \
			rd_second_ = rd_now_.tv_sec;                                         \
			rd_count_ = 0;                                                       \
		}                                                                            \
		if (rd_count_++ < (lps))                                                     \
			D(format, ##__VA_ARGS__);                                            \
	} while (0)
#endif
#ifndef ND
#define ND(...) \
	do {    \
	} while (0)
#endif

#define _NETMAP_OFFSET(type, ptr, offset) ((type)(void *)((char *)(ptr) + (offset)))
#define NETMAP_IF(base, offset) _NETMAP_OFFSET(struct netmap_if *, base, offset)
#define NETMAP_TXRING(nifp, index) \
	_NETMAP_OFFSET(struct netmap_ring *, nifp, (nifp)->ring_ofs[index])
#define NETMAP_RXRING(nifp, index)                     \
	_NETMAP_OFFSET(struct netmap_ring *, nifp,     \
	    (nifp)->ring_ofs[(index) + (nifp)->ni_tx_rings + (nifp)->ni_host_tx_rings])
#define NETMAP_BUF(ring, index) \
	((char *)(ring) + (ring)->buf_ofs + ((size_t)(index) * (ring)->nr_buf_size))
#define NETMAP_BUF_IDX(ring, buf) \
	(((char *)(buf) - ((char *)(ring) + (ring)->buf_ofs)) / (ring)->nr_buf_size)
#define NETMAP_BUF_OFFSET(ring, slot) NETMAP_BUF(ring, (slot)->buf_idx)
#define NETMAP_ROFFSET(ring, slot) ((slot)->ptr & (ring)->offset_mask)

static inline uint32_t
nm_ring_next(struct netmap_ring *ring, uint32_t i)
{
	return unlikely(i + 1 == ring->num_slots) ? 0 : i + 1;
}

/* Slots from cur to tail. */
static inline uint32_t
nm_ring_space(struct netmap_ring *ring)
{
	int count = (int)(ring->tail - ring->cur);

	return (uint32_t)(count < 0 ? count + (int)ring->num_slots : count);
}

static inline int
nm_ring_empty(struct netmap_ring *ring)
{
	return ring->head == ring->tail;
}

/* Has the device frames of this ring, or will it get some? */
static inline int
nm_tx_pending(struct netmap_ring *ring)
{
	return nm_ring_next(ring, ring->tail) != ring->head;
}

static inline void
nm_pkt_copy(const void *from, void *to, int len)
{
	memcpy(to, from, (size_t)len);
}

struct nm_pkthdr {
	struct timeval ts;
	uint32_t caplen;
	uint32_t len;
	uint64_t flags;
#define NM_MORE_PKTS 1
	struct nm_desc *d;
	struct netmap_slot *slot;
	uint8_t *buf;
};

struct nm_stat {
	uint32_t ps_recv;
	uint32_t ps_drop;
	uint32_t ps_ifdrop;
};

#define NM_ERRBUF_SIZE 512

struct nm_desc {
	struct nm_desc *self;
	int fd;
	void *mem;
	uint64_t memsize;
	int done_mmap;
	struct netmap_if *nifp;
	uint16_t first_tx_ring, last_tx_ring, cur_tx_ring;
	uint16_t first_rx_ring, last_rx_ring, cur_rx_ring;
	struct nmreq req;
	struct nm_pkthdr hdr;
	struct netmap_ring *some_ring;
	void *buf_start;
	void *buf_end;
	int snaplen;
	int promisc;
	int to_ms;
	char *errbuf;
	uint32_t if_flags;
	uint32_t if_reqcap;
	uint32_t if_curcap;
	struct nm_stat st;
	char msg[NM_ERRBUF_SIZE];
};

#define P2NMD(p) ((struct nm_desc *)(p))
#define IS_NETMAP_DESC(d) ((d) && P2NMD(d)->self == P2NMD(d))
#define NETMAP_FD(d) (P2NMD(d)->fd)

enum {
	NM_OPEN_NO_MMAP = 0x040000,
	NM_OPEN_IFNAME = 0x080000,
	NM_OPEN_ARG1 = 0x100000,
	NM_OPEN_ARG2 = 0x200000,
	NM_OPEN_ARG3 = 0x400000,
	NM_OPEN_RING_CFG = 0x800000,
};

typedef void (*nm_cb_t)(u_char *, const struct nm_pkthdr *, const u_char *d);

/* The name in "netmap:NAME": the whole rest. */
static inline const char *
vmlan_netmap_rest_(const char *name)
{
	return strncmp(name, "netmap:", 7) == 0 ? name + 7 : name;
}

/* As much of a name as there is room for. */
static inline void
vmlan_netmap_name_(char *to, size_t room, const char *from, size_t len)
{
	if (len >= room)
		len = room - 1;
	memcpy(to, from, len);
	to[len] = 0;
}

static inline int
nm_close(struct nm_desc *d)
{
	if (d == NULL || d->self != d)
		return EINVAL;
	if (d->fd >= 0)
		vmlan_netmap_close(d->fd);
	memset(d, 0, sizeof(*d));
	free(d);
	return 0;
}

/*
 * Opens a port. The name says which rings, as in netmap: NAME^, NAME*, NAME{N, NAME}N; if it does
 * not, the bits of NR_REG_MASK in `flags`, or in nr_flags of `req` with nr_ringid. Of `flags` also
 * NETMAP_NO_TX_POLL and NETMAP_DO_RX_POLL count; of `req` nr_flags, nr_arg3 (extra buffers) and the
 * slots (of a pipe); of `arg` the same, by NM_OPEN_*. With NM_OPEN_IFNAME nr_ringid and nr_flags
 * are those of `arg`, which must be of the same port: its nr_name has no room for most addresses,
 * so `name` is opened. NULL and errno where it fails.
 */
static inline struct nm_desc *
nm_open(const char *name, const struct nmreq *req, uint64_t flags, const struct nm_desc *arg)
{
	struct vmlan_netmap_name parsed;
	struct vmlan_netmap_port port;
	struct nm_desc *d = NULL;
	char *base = NULL;
	uint32_t mode;
	int why;

	name = vmlan_netmap_rest_(name);
	if (vmlan_netmap_parse(name, &parsed) < 0)
		return NULL;
	/* Here pipes are known by numbers. */
	if (parsed.pipe_base && !parsed.pipe_mode) {
		errno = EINVAL;
		return NULL;
	}
	d = (struct nm_desc *)calloc(1, sizeof(*d));
	base = strdup(name);
	if (d == NULL || base == NULL) {
		errno = ENOMEM;
		goto fail;
	}
	d->self = d;
	d->fd = -1;
	if (req)
		d->req = *req;
	if (arg && (flags & NM_OPEN_ARG3))
		d->req.nr_arg3 = arg->req.nr_arg3;
	if (arg && (flags & NM_OPEN_RING_CFG)) {
		d->req.nr_tx_slots = arg->req.nr_tx_slots;
		d->req.nr_rx_slots = arg->req.nr_rx_slots;
	}
	mode = d->req.nr_flags & NR_REG_MASK;
	if (flags & NR_REG_MASK)
		mode = (uint32_t)(flags & NR_REG_MASK);
	if (parsed.pipe_base) {
		mode = parsed.pipe_mode;
		d->req.nr_ringid = parsed.pipe;
		parsed.len = parsed.pipe_base;
	} else if (parsed.mode != NR_REG_ALL_NIC) {
		mode = parsed.mode;
		d->req.nr_ringid = parsed.ring;
	}
	if (mode == 0)
		mode = NR_REG_ALL_NIC;
	base[parsed.len] = 0;
	d->req.nr_version = NETMAP_API;
	d->req.nr_flags = (d->req.nr_flags & ~NR_REG_MASK) | (uint32_t)parsed.flags | mode;
	vmlan_netmap_name_(d->req.nr_name, sizeof(d->req.nr_name), base, parsed.len);
	d->req.nr_ringid &= NETMAP_RING_MASK;
	if (arg && (flags & NM_OPEN_IFNAME)) {
		if (strncmp(d->req.nr_name, arg->req.nr_name, sizeof(d->req.nr_name)) != 0) {
			errno = EINVAL;
			goto fail;
		}
		d->req.nr_ringid = arg->req.nr_ringid;
		d->req.nr_flags = arg->req.nr_flags;
		mode = d->req.nr_flags & NR_REG_MASK;
		if (mode == 0)
			mode = NR_REG_ALL_NIC;
	}
	d->req.nr_ringid |= (uint16_t)(flags & (NETMAP_NO_TX_POLL | NETMAP_DO_RX_POLL));
	memset(&port, 0, sizeof(port));
	port.extra_bufs = d->req.nr_arg3;
	port.mem_id = parsed.mem_id;
	port.tx_slots = d->req.nr_tx_slots;
	port.rx_slots = d->req.nr_rx_slots;
	if (vmlan_netmap_open(base, mode, d->req.nr_ringid & NETMAP_RING_MASK,
		(d->req.nr_flags & ~(uint32_t)NR_REG_MASK) |
		    ((d->req.nr_ringid & NETMAP_NO_TX_POLL) ? NR_NO_TX_POLL : 0),
		&port) < 0)
		goto fail;
	free(base);
	d->fd = port.fd;
	d->mem = port.mem;
	d->memsize = port.memsize;
	d->nifp = port.nifp;
	d->done_mmap = 1;
	d->req.nr_tx_rings = port.tx_rings;
	d->req.nr_rx_rings = port.rx_rings;
	d->req.nr_tx_slots = port.tx_slots;
	d->req.nr_rx_slots = port.rx_slots;
	d->req.nr_arg2 = port.mem_id;
	d->req.nr_arg3 = port.extra_bufs;
	d->req.nr_offset = (uint32_t)port.nifp_offset;
	d->req.nr_memsize = (uint32_t)port.memsize;
	d->first_tx_ring = d->cur_tx_ring = port.first_tx_ring;
	d->last_tx_ring = port.last_tx_ring;
	d->first_rx_ring = d->cur_rx_ring = port.first_rx_ring;
	d->last_rx_ring = port.last_rx_ring;
	if (d->first_rx_ring <= d->last_rx_ring)
		d->some_ring = NETMAP_RXRING(d->nifp, d->first_rx_ring);
	else
		d->some_ring = NETMAP_TXRING(d->nifp, d->first_tx_ring);
	d->buf_start = NETMAP_BUF(d->some_ring, 0);
	d->buf_end = (char *)d->mem + d->memsize;
	return d;
fail:
	why = errno;
	free(base);
	free(d);
	errno = why;
	return NULL;
}

/* The region is one for all ports. */
static inline int
nm_mmap(struct nm_desc *d, const struct nm_desc *parent)
{
	(void)parent;
	return d && d->done_mmap ? 0 : -1;
}

/* Puts a frame into a transmit ring, fragments if it is long; its size, or 0 for no room. */
static inline int
nm_inject(struct nm_desc *d, const void *buf, size_t size)
{
	unsigned int c, rings = (unsigned int)(d->last_tx_ring - d->first_tx_ring) + 1;

	for (c = 0; c < rings; c++) {
		unsigned int id = d->cur_tx_ring + c;
		struct netmap_ring *ring;
		const char *from = (const char *)buf;
		size_t left = size, need;
		uint32_t i;

		if (id > d->last_tx_ring)
			id -= rings;
		ring = NETMAP_TXRING(d->nifp, id);
		need = (size + ring->nr_buf_size - 1) / ring->nr_buf_size;
		if (size == 0 || need > NETMAP_MAX_FRAGS)
			return 0;
		if (nm_ring_space(ring) < need)
			continue;
		for (i = ring->head; left > 0; i = nm_ring_next(ring, i)) {
			struct netmap_slot *slot = &ring->slot[i];
			size_t part = left < ring->nr_buf_size ? left : ring->nr_buf_size;

			memcpy(NETMAP_BUF(ring, slot->buf_idx), from, part);
			slot->len = (uint16_t)part;
			left -= part;
			from += part;
			slot->flags = left ? NS_MOREFRAG : 0;
		}
		ring->head = ring->cur = i;
		d->cur_tx_ring = (uint16_t)id;
		return (int)size;
	}
	return 0;
}

/* The next slot that was received, by ring in turn; its ring moves on. NULL: there is none. */
static inline u_char *
nm_nextpkt(struct nm_desc *d, struct nm_pkthdr *hdr)
{
	unsigned int id = d->cur_rx_ring;

	if (d->first_rx_ring > d->last_rx_ring)
		return NULL; /* it is for sending only */
	do {
		struct netmap_ring *ring = NETMAP_RXRING(d->nifp, id);

		if (!nm_ring_empty(ring)) {
			uint32_t i = ring->head;
			struct netmap_slot *slot = &ring->slot[i];

			hdr->ts = ring->ts;
			hdr->len = hdr->caplen = slot->len;
			hdr->flags = 0;
			hdr->d = d;
			hdr->slot = slot;
			hdr->buf = (uint8_t *)NETMAP_BUF(ring, slot->buf_idx);
			ring->head = ring->cur = nm_ring_next(ring, i);
			d->cur_rx_ring = (uint16_t)id;
			return hdr->buf;
		}
		id = id == d->last_rx_ring ? d->first_rx_ring : id + 1;
	} while (id != d->cur_rx_ring);
	return NULL;
}

/* Takes a packet, all slots of it, from a ring that has one. */
static inline void
vmlan_netmap_packet_(struct netmap_ring *ring, struct nm_pkthdr *hdr)
{
	uint32_t i = ring->head;
	struct netmap_slot *slot = &ring->slot[i];

	hdr->ts = ring->ts;
	hdr->slot = slot;
	hdr->buf = (uint8_t *)NETMAP_BUF(ring, slot->buf_idx);
	hdr->len = hdr->caplen = slot->len;
	for (i = nm_ring_next(ring, i); (slot->flags & NS_MOREFRAG) && i != ring->tail;
	     i = nm_ring_next(ring, i)) {
		slot = &ring->slot[i];
		if (hdr->caplen == hdr->len &&
		    hdr->buf + hdr->len == (uint8_t *)NETMAP_BUF(ring, slot->buf_idx))
			hdr->caplen += slot->len;
		hdr->len += slot->len;
	}
	ring->head = ring->cur = i;
}

/*
 * Shows up to `count` received packets (0, negative: all) to `call`; how many there were. `caplen`
 * is what lies in one piece from `buf` on, `len` all of the packet. All but the last one have
 * NM_MORE_PKTS.
 */
static inline int
nm_dispatch(struct nm_desc *d, int count, nm_cb_t call, u_char *arg)
{
	int c, got = 0, rings = d->last_rx_ring - d->first_rx_ring + 1;
	unsigned int id = d->cur_rx_ring;
	struct nm_pkthdr *hdr = &d->hdr;

	hdr->flags = NM_MORE_PKTS;
	hdr->d = d;
	hdr->buf = NULL;
	for (c = 0; c < rings && (count <= 0 || got < count); c++) {
		struct netmap_ring *ring = NETMAP_RXRING(d->nifp, id);

		for (; !nm_ring_empty(ring) && (count <= 0 || got < count); got++) {
			if (hdr->buf)
				call(arg, hdr, hdr->buf);
			d->cur_rx_ring = (uint16_t)id;
			d->st.ps_recv++;
			vmlan_netmap_packet_(ring, hdr);
		}
		id = id == d->last_rx_ring ? d->first_rx_ring : id + 1;
	}
	hdr->flags = 0;
	if (hdr->buf)
		call(arg, hdr, hdr->buf);
	return got;
}

#ifdef __cplusplus
}
#endif
#endif
