/* SPDX-License-Identifier: GPL-2.0 OR MIT */
/*
 * The driver of vmlan's emulated NICs: what its files share.
 *
 * main.c		the device, interrupts, NAPI, resets
 * tx.c, rx.c		the rings, and when the device is told of them
 * techniques.c		module parameters and private flags
 * ethtool.c, selftest.c	ethtool
 * e1000.c, r8169.c	82540EM, RTL8169: registers and descriptors
 *
 * What is in tx.* is protected by the transmit queue's lock; what is in rx.* belongs to NAPI. Both
 * are also changed under RTNL with NAPI disabled.
 */
#ifndef VMLAN_NIC_H
#define VMLAN_NIC_H

#include <linux/bitops.h>
#include <linux/dma-mapping.h>
#include <linux/etherdevice.h>
#include <linux/ethtool.h>
#include <linux/hrtimer.h>
#include <linux/if_vlan.h>
#include <linux/interrupt.h>
#include <linux/netdevice.h>
#include <linux/pci.h>
#include <linux/u64_stats_sync.h>
#include <linux/workqueue.h>

#include "csb.h"

#define VN_NAME			"vmlan_nic"

/* A receive buffer as the device sees it; longer frames take several. */
#define VN_RX_BUFFER		2048
#define VN_RX_HEADROOM		(NET_SKB_PAD + NET_IP_ALIGN)
#define VN_RX_TRUESIZE		(SKB_DATA_ALIGN(VN_RX_HEADROOM + VN_RX_BUFFER) + \
				 SKB_DATA_ALIGN(sizeof(struct skb_shared_info)))
/* Most bytes of a transmit descriptor, and most descriptors of a frame of 64 KiB. */
#define VN_TX_PIECE		8192
#define VN_TX_MOST		(MAX_SKB_FRAGS + 65536 / VN_TX_PIECE + 3)
#define VN_RING_LEAST		64
#define VN_RING_MOST		4096

/* How the NIC is driven. The order is that of vn_flag_names. */
enum vn_flag {
	VN_CSB,
	VN_MODERATED,
	VN_SEND_COMBINING,
	VN_LAZY_COMPLETION,
	VN_POLLING,
	VN_XMIT_MORE,
	VN_FLAGS,
};

enum vn_state {
	/* Rings and device run. */
	VN_UP,
	/* The device broke its rules, and is to be reset. */
	VN_BROKEN,
	/* It was reset too often, or is gone: until the interface is taken down and up. */
	VN_DEAD,
	/* The device offers a CSB that did not answer. */
	VN_CSB_SILENT,
};

struct vn_tx_buffer {
	struct sk_buff *skb;
	dma_addr_t dma;
	/* Bytes to unmap; 0: a further piece of the mapping before. */
	u32 mapped;
	bool paged;
	/* Of a frame's first descriptor: its last. */
	u16 last;
};

struct vn_tx {
	void *ring;
	dma_addr_t dma;
	struct vn_tx_buffer *buffers;
	u16 size;
	/* The next descriptor to fill; the oldest that is under way. */
	u16 tail;
	u16 clean;
	/* Frames described since the device was last told. */
	u16 untold;
	/* Send combining: the device was told, and nothing was reported since. */
	bool in_flight;
	/* It holds frames back, until then. */
	bool defers;
	ktime_t deadline;
	/*
	 * Descriptors given back so far; how many there will be when the last kick of the CSB is
	 * served, if there was one.
	 */
	u32 reaped;
	u32 kick;
	bool kicked;
	/* A completion interrupt was asked for. */
	bool wanted;
	/* Frames of this jiffy and of the last whole one: the rate. */
	unsigned long jiffy;
	u32 recent;
	bool busy;
	/* What the chip remembers of its last checksum context. */
	u64 context;

	u64 packets, bytes, dropped;
	struct u64_stats_sync sync;
	u64 doorbells, doorbells_saved, deferred, overdue, stops, wishes;
};

struct vn_rx_buffer {
	void *data;
	dma_addr_t dma;
};

struct vn_rx {
	void *ring;
	dma_addr_t dma;
	struct vn_rx_buffer *buffers;
	u16 size;
	/* The next descriptor to look at; the first without a buffer; as the device was told. */
	u16 next;
	u16 tail;
	u16 told;
	/* A frame whose end has not come; whether it is thrown away. */
	struct sk_buff *skb;
	bool skip;

	u64 packets, bytes, multicast, errors, dropped;
	struct u64_stats_sync sync;
	u64 doorbells, doorbells_saved, wishes, polls, alloc_failed;
};

/* A received descriptor. */
struct vn_received {
	u16 len;
	bool end;
	bool bad;
	bool sums_right;
	/* At a frame's end: the length is all of the frame's, with its check sequence. */
	bool whole;
	bool tagged;
	u16 tag;
};

/* What a frame's transmit descriptors have in common. */
struct vn_describe {
	u64 first;
	u64 rest;
	u64 last;
};

struct vn_nic {
	struct net_device *dev;
	struct pci_dev *pdev;
	void __iomem *registers;
	const struct vn_chip *chip;
	struct napi_struct napi;
	unsigned long state;
	/* Bits of enum vn_flag. */
	unsigned long flags;
	bool msi;
	/* The one that is held; 0: none. */
	int irq;
	/* An interrupt masked all causes (INTx), or has to be acknowledged (MSI). */
	bool called;
	struct csb csb;
	struct vn_tx tx;
	struct vn_rx rx;
	/* Wakes NAPI: what is deferred is due, sent frames are looked for, the next poll. */
	struct hrtimer timer;
	/* Enabled causes, of a chip that knows them as one word. */
	spinlock_t mask_lock;
	u16 enabled;
	u32 moderation_us;
	u16 ring_size;
	struct delayed_work watch;
	/* tx.reaped at the last look, and for how many looks frames are under way without more. */
	u32 watched;
	u16 stuck;
	struct work_struct reset;
	unsigned long last_reset;
	unsigned int resets;
	u64 interrupts;
	unsigned long vlans[BITS_TO_LONGS(VLAN_N_VID)];
	u32 shadow_groups[128];
	u32 shadow_vlans[128];
	/* Places for unicast addresses that may be valid. */
	u16 addresses;
	/* Self-test: the causes that an interrupt had. */
	u32 heard;
};

struct vn_chip {
	const char *name;
	int bar;
	netdev_features_t features;
	unsigned int mtu;
	unsigned int ring_most;
	/* The largest segments that it cuts. */
	unsigned int mss_most;
	/* Bits of the interrupt registers. */
	u32 sent, received, link, with_csb;
	/* Self-test: a bit at a time. */
	u32 testable;
	/* Time between interrupts: its unit in ns, and how many of them at most. */
	u16 moderation_ns, moderation_most;

	/* Stops everything and resets; no interrupt is enabled then. */
	int (*reset)(struct vn_nic *nic);
	int (*read_mac)(struct vn_nic *nic, u8 *mac);
	/* Everything but the tails, the filters and the interrupts. */
	void (*start)(struct vn_nic *nic);
	void (*stop)(struct vn_nic *nic);
	void (*loop)(struct vn_nic *nic);
	void (*set_mac)(struct vn_nic *nic);
	void (*set_filter)(struct vn_nic *nic);
	void (*set_features)(struct vn_nic *nic, netdev_features_t features);
	/* In units; 0: none. */
	void (*set_moderation)(struct vn_nic *nic, u32 units);
	void (*place_csb)(struct vn_nic *nic, u64 address);
	/* All ones from a device that is gone. */
	u32 (*status)(struct vn_nic *nic);
	bool (*has_link)(u32 status);
	int (*speed)(u32 status);

	/* Doorbells. */
	void (*ring_tx)(struct vn_nic *nic);
	void (*ring_rx)(struct vn_nic *nic);

	/* Reads the causes, and acknowledges them. */
	u32 (*causes)(struct vn_nic *nic);
	void (*mask)(struct vn_nic *nic);
	void (*enable)(struct vn_nic *nic, u32 causes);
	void (*disable)(struct vn_nic *nic, u32 causes);
	void (*raise)(struct vn_nic *nic, u32 causes);

	/* How the frame is to be described; may fill a descriptor of its own before it. */
	int (*tx_begin)(struct vn_nic *nic, struct sk_buff *skb, struct vn_describe *how);
	void (*tx_fill)(struct vn_nic *nic, u16 at, dma_addr_t dma, u32 len, u64 how);
	bool (*tx_done)(struct vn_nic *nic, u16 at);
	void (*rx_fill)(struct vn_nic *nic, u16 at, dma_addr_t dma);
	bool (*rx_take)(struct vn_nic *nic, u16 at, struct vn_received *received);

	bool (*test_registers)(struct vn_nic *nic);
	bool (*test_eeprom)(struct vn_nic *nic);
};

extern const struct vn_chip vn_e1000, vn_r8169;
extern const struct ethtool_ops vn_ethtool_ops;
extern const char vn_flag_names[VN_FLAGS][ETH_GSTRING_LEN];
extern unsigned int vn_ring, vn_itr_us, vn_sc_frames, vn_sc_us, vn_sc_rate, vn_reap_us, vn_poll_us,
		    vn_copybreak;
extern bool vn_msi;

static inline u32 vn_read(struct vn_nic *nic, u32 at)
{
	return readl(nic->registers + at);
}

static inline void vn_write(struct vn_nic *nic, u32 at, u32 value)
{
	writel(value, nic->registers + at);
}

static inline bool vn_has(const struct vn_nic *nic, enum vn_flag flag)
{
	return nic->flags & BIT(flag);
}

static inline u16 vn_after(u16 at, u16 size)
{
	return at + 1 == size ? 0 : at + 1;
}

static inline u16 vn_distance(u16 from, u16 to, u16 size)
{
	return to >= from ? to - from : to + size - from;
}

/* One descriptor stays free: head = tail means empty. */
static inline u16 vn_tx_free(const struct vn_tx *tx)
{
	return tx->size - 1 - vn_distance(tx->clean, tx->tail, tx->size);
}

static inline u16 vn_rx_posted(const struct vn_rx *rx)
{
	return vn_distance(rx->next, rx->tail, rx->size);
}

static inline struct netdev_queue *vn_queue(struct vn_nic *nic)
{
	return netdev_get_tx_queue(nic->dev, 0);
}

/* Sent frames do not interrupt by themselves. */
static inline bool vn_is_lazy(const struct vn_nic *nic)
{
	return nic->csb.on || vn_has(nic, VN_LAZY_COMPLETION) || vn_has(nic, VN_POLLING);
}

/* main.c */
void vn_broken(struct vn_nic *nic, const char *what);
void vn_timer_within(struct vn_nic *nic, u32 us);
void vn_enable(struct vn_nic *nic);
int vn_up(struct vn_nic *nic);
void vn_down(struct vn_nic *nic);
int vn_open(struct net_device *dev);
int vn_close(struct net_device *dev);

/* techniques.c */
unsigned long vn_flags_at_load(void);
int vn_check_parameters(void);
u32 vn_moderation(const struct vn_nic *nic);
int vn_set_flags(struct vn_nic *nic, unsigned long flags);

/* tx.c */
int vn_tx_init(struct vn_nic *nic);
void vn_tx_free_ring(struct vn_nic *nic);
netdev_tx_t vn_xmit(struct sk_buff *skb, struct net_device *dev);
void vn_tx_tell(struct vn_nic *nic);
void vn_tx_poll(struct vn_nic *nic, int budget);
netdev_features_t vn_features_check(struct sk_buff *skb, struct net_device *dev,
				    netdev_features_t features);

/* rx.c */
int vn_rx_init(struct vn_nic *nic);
void vn_rx_free_ring(struct vn_nic *nic);
int vn_rx_poll(struct vn_nic *nic, int budget);
bool vn_rx_ready(struct vn_nic *nic);
void vn_rx_tell(struct vn_nic *nic);
void vn_rx_refill(struct vn_nic *nic);

/* selftest.c */
#define VN_TESTS 5
extern const char vn_test_names[VN_TESTS][ETH_GSTRING_LEN];
void vn_self_test(struct net_device *dev, struct ethtool_test *test, u64 *verdicts);

#endif
