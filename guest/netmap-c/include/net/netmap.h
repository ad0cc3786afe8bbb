/*
 * SPDX-License-Identifier: Apache-2.0 OR MIT
 *
 * netmap's structures in memory, as programs for it know them (API version 14). The order of the
 * fields and the numbers are netmap's public interface; tests/c/layout.c compares them with what
 * the library assumes.
 */
#ifndef VMLAN_NET_NETMAP_H
#define VMLAN_NET_NETMAP_H

#include <net/if.h> /* IFNAMSIZ */
#include <stdint.h>
#include <sys/ioctl.h>
#include <sys/time.h>
#include <sys/types.h>

#ifdef __cplusplus
extern "C" {
#endif

#define NETMAP_API 14
#define NETMAP_MIN_API 14
#define NETMAP_MAX_API 15

#define NM_CACHE_ALIGN 128

/* A slot: which buffer, and how much of it is a frame. */
struct netmap_slot {
	uint32_t buf_idx; /* may be exchanged with that of any slot of the process; then say so... */
	uint16_t len;
	uint16_t flags; /* ...by NS_BUF_CHANGED */
	uint64_t ptr;	/* not used: NS_INDIRECT is refused */
};

#define NS_BUF_CHANGED 0x0001 /* the program has put another buffer in */
#define NS_REPORT 0x0002      /* accepted: every sync reports */
#define NS_FORWARD 0x0004     /* a received slot that is given back goes on: see NR_FORWARD */
#define NS_NO_LEARN 0x0008    /* no VALE switch: without effect */
#define NS_INDIRECT 0x0010    /* refused: the ring is reset */
#define NS_MOREFRAG 0x0020    /* the frame goes on in the next slot */
#define NS_TXMON 0x0040
#define NETMAP_MAX_FRAGS 64

/*
 * A ring. Going round, the program owns the slots from head up to, but not including, tail. It
 * moves head past those that it has filled or read, and cur to where it wants to be woken.
 */
struct netmap_ring {
	const int64_t buf_ofs;	/* from the ring to buffer 0, in bytes */
	const uint32_t num_slots;
	const uint32_t nr_buf_size; /* bytes of a buffer */
	const uint16_t ringid;
	const uint16_t dir; /* 0: transmit, 1: receive */
	uint32_t head;
	uint32_t cur;
	uint32_t tail; /* the library's: what a program writes here is put right */
	uint32_t flags;
	struct timeval ts; /* of the last sync */
	const uint64_t offset_mask;
	const uint64_t buf_align;
	uint8_t sem[128] __attribute__((__aligned__(NM_CACHE_ALIGN)));
	struct netmap_slot slot[];
};

#define NR_TIMESTAMP 0x0002
/* Of a receive ring: slots marked NS_FORWARD go from the NIC to the host's stack, or back */
#define NR_FORWARD 0x0004

/*
 * What a descriptor has. Its rings lie ring_ofs[n] bytes from it: transmit rings of the NIC, of the
 * host, receive rings of the NIC, of the host. 0 for those that it is not bound to.
 */
struct netmap_if {
	char ni_name[IFNAMSIZ];
	const uint32_t ni_version;
	const uint32_t ni_flags;
#define NI_PRIV_MEM 0x1
	const uint32_t ni_tx_rings;
	const uint32_t ni_rx_rings;
	uint32_t ni_bufs_head; /* extra buffers: each begins with the index of the next; 0 ends */
	const uint32_t ni_host_tx_rings; /* 1, of a pipe 0 */
	const uint32_t ni_host_rx_rings;
	uint32_t ni_spare1[3];
	const ssize_t ring_ofs[];
};

/* Requests. */
#define NETMAP_REQ_IFNAMSIZ 64

struct nmreq_header {
	uint16_t nr_version;
	uint16_t nr_reqtype;
	uint32_t nr_reserved;
	char nr_name[NETMAP_REQ_IFNAMSIZ];
	uint64_t nr_options;
	uint64_t nr_body;
};

enum {
	NETMAP_REQ_REGISTER = 1,
	NETMAP_REQ_PORT_INFO_GET,
	NETMAP_REQ_VALE_ATTACH,
	NETMAP_REQ_VALE_DETACH,
	NETMAP_REQ_VALE_LIST,
	NETMAP_REQ_PORT_HDR_SET,
	NETMAP_REQ_PORT_HDR_GET,
};

enum {
	NR_REG_DEFAULT = 0,
	NR_REG_ALL_NIC = 1,
	NR_REG_SW = 2,
	NR_REG_NIC_SW = 3,
	NR_REG_ONE_NIC = 4,
	NR_REG_PIPE_MASTER = 5,
	NR_REG_PIPE_SLAVE = 6,
	NR_REG_NULL = 7,
	NR_REG_ONE_SW = 8,
};

struct nmreq_register {
	uint64_t nr_offset;
	uint64_t nr_memsize;
	uint32_t nr_tx_slots;
	uint32_t nr_rx_slots;
	uint16_t nr_tx_rings;
	uint16_t nr_rx_rings;
	uint16_t nr_host_tx_rings;
	uint16_t nr_host_rx_rings;
	uint16_t nr_mem_id;
	uint16_t nr_ringid;
	uint32_t nr_mode;
	uint32_t nr_extra_bufs;
	uint64_t nr_flags;
#define NR_MONITOR_TX 0x100
#define NR_MONITOR_RX 0x200
#define NR_ZCOPY_MON 0x400
#define NR_EXCLUSIVE 0x800
#define NR_RX_RINGS_ONLY 0x2000
#define NR_TX_RINGS_ONLY 0x4000
#define NR_ACCEPT_VNET_HDR 0x8000
#define NR_DO_RX_POLL 0x10000
#define NR_NO_TX_POLL 0x20000
};

struct nmreq_port_hdr {
	uint32_t nr_hdr_len;
	uint32_t nr_flags;
};

/* The older request, which nm_open takes. */
struct nmreq {
	char nr_name[IFNAMSIZ];
	uint32_t nr_version;
	uint32_t nr_offset;
	uint32_t nr_memsize;
	uint32_t nr_tx_slots;
	uint32_t nr_rx_slots;
	uint16_t nr_tx_rings;
	uint16_t nr_rx_rings;
	uint16_t nr_ringid;
	uint16_t nr_cmd;
	uint16_t nr_arg1;
	uint16_t nr_arg2;
	uint32_t nr_arg3; /* extra buffers */
	uint32_t nr_flags;
#define NR_REG_MASK 0xf
	uint32_t spare2[1];
};

#define NETMAP_HW_RING 0x4000
#define NETMAP_SW_RING 0x2000
#define NETMAP_RING_MASK 0x0fff
#define NETMAP_NO_TX_POLL 0x1000
#define NETMAP_DO_RX_POLL 0x8000

#define NIOCGINFO _IOWR('i', 145, struct nmreq)
#define NIOCREGIF _IOWR('i', 146, struct nmreq)
#define NIOCTXSYNC _IO('i', 148)
#define NIOCRXSYNC _IO('i', 149)
#define NIOCCTRL _IOWR('i', 151, struct nmreq_header)

#ifdef __cplusplus
}
#endif
#endif
