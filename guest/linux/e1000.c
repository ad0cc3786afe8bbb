// SPDX-License-Identifier: GPL-2.0 OR MIT
/*
 * Intel 82540EM, after the "PCI/PCI-X Family of Gigabit Ethernet Controllers Software Developer's
 * Manual" (SDM). Sections are the manual's.
 */

#include <linux/delay.h>
#include <linux/ip.h>
#include <linux/ipv6.h>
#include <linux/tcp.h>
#include <net/ip6_checksum.h>

#include "vmlan_nic.h"

/* Registers, chapter 13. */
#define CTRL		0x0000
#define STATUS		0x0008
#define EERD		0x0014
#define FCAL		0x0028
#define FCAH		0x002c
#define FCT		0x0030
#define VET		0x0038
#define ICR		0x00c0
#define ITR		0x00c4
#define ICS		0x00c8
#define IMS		0x00d0
#define IMC		0x00d8
#define RCTL		0x0100
#define FCTTV		0x0170
#define TCTL		0x0400
#define TIPG		0x0410
#define RDBAL		0x2800
#define RDBAH		0x2804
#define RDLEN		0x2808
#define RDH		0x2810
#define RDT		0x2818
#define RDTR		0x2820
#define RADV		0x282c
#define CSBAL		0x2830
#define CSBAH		0x2834
#define TDBAL		0x3800
#define TDBAH		0x3804
#define TDLEN		0x3808
#define TDH		0x3810
#define TDT		0x3818
#define TIDV		0x3820
#define TADV		0x382c
#define RXCSUM		0x5000
#define MTA		0x5200
#define RAL		0x5400
#define RAH		0x5404
#define VFTA		0x5600

#define CTRL_ASDE	BIT(5)
#define CTRL_SLU	BIT(6)
#define CTRL_RST	BIT(26)
#define CTRL_VME	BIT(30)
#define STATUS_LU	BIT(1)
#define STATUS_SPEED	GENMASK(7, 6)
#define EERD_START	BIT(0)
#define EERD_DONE	BIT(4)
#define RCTL_EN		BIT(1)
#define RCTL_UPE	BIT(3)
#define RCTL_MPE	BIT(4)
#define RCTL_LPE	BIT(5)
#define RCTL_LBM_MAC	BIT(6)
#define RCTL_BAM	BIT(15)
#define RCTL_VFE	BIT(18)
#define RCTL_SECRC	BIT(26)
#define TCTL_EN		BIT(1)
#define TCTL_PSP	BIT(3)
/* Collision threshold 15, distance 64; gaps for copper (14.5). */
#define TCTL_COLLISION	(0xf << 4 | 0x40 << 12)
#define TIPG_COPPER	(10 | 8 << 10 | 6 << 20)
#define RXCSUM_ON	(BIT(8) | BIT(9))
#define RAH_AV		BIT(31)
#define ADDRESSES	16

#define CAUSE_TXDW	BIT(0)
#define CAUSE_TXQE	BIT(1)
#define CAUSE_LSC	BIT(2)
#define CAUSE_RXDMT0	BIT(4)
#define CAUSE_RXO	BIT(6)
#define CAUSE_RXT0	BIT(7)

/* Transmit descriptors (3.3): bits of the second quadword. */
#define TX_DONE		BIT_ULL(32)
#define TX_EOP		BIT_ULL(24)
#define TX_IFCS		BIT_ULL(25)
#define TX_TSE		BIT_ULL(26)
#define TX_RS		BIT_ULL(27)
#define TX_DEXT		BIT_ULL(29)
#define TX_VLE		BIT_ULL(30)
#define TX_DATA		BIT_ULL(20)
#define TX_IXSM		BIT_ULL(40)
#define TX_TXSM		BIT_ULL(41)
/* The same in a context's. */
#define CONTEXT_TCP	BIT_ULL(24)
#define CONTEXT_IPV4	BIT_ULL(25)

/* Receive descriptors (3.2.3), likewise. */
#define RX_DONE		BIT_ULL(32)
#define RX_EOP		BIT_ULL(33)
#define RX_IXSM		BIT_ULL(34)
#define RX_VP		BIT_ULL(35)
#define RX_TCPCS	BIT_ULL(37)
#define RX_TCPE		BIT_ULL(45)
#define RX_IPE		BIT_ULL(46)
#define RX_BAD		(BIT_ULL(40) | BIT_ULL(41) | BIT_ULL(42) | BIT_ULL(44) | BIT_ULL(47))

struct e1000_desc {
	__le64 address;
	__le64 word;
};

static struct e1000_desc *e1000_desc(void *ring, u16 at)
{
	return (struct e1000_desc *)ring + at;
}

static void e1000_flush(struct vn_nic *nic)
{
	vn_read(nic, STATUS);
}

static int e1000_reset(struct vn_nic *nic)
{
	int tries;

	vn_write(nic, IMC, ~0);
	vn_write(nic, RCTL, 0);
	vn_write(nic, TCTL, 0);
	e1000_flush(nic);
	vn_write(nic, CTRL, vn_read(nic, CTRL) | CTRL_RST);
	for (tries = 0; tries < 100; tries++) {
		if (vn_read(nic, STATUS) == ~0U)
			return -ENODEV;
		if (!(vn_read(nic, CTRL) & CTRL_RST))
			break;
		usleep_range(1000, 2000);
	}
	if (tries == 100)
		return -EIO;
	vn_write(nic, IMC, ~0);
	vn_read(nic, ICR);
	memset(nic->shadow_groups, 0, sizeof(nic->shadow_groups));
	memset(nic->shadow_vlans, 0, sizeof(nic->shadow_vlans));
	nic->addresses = 0;
	return 0;
}

/* A word of the EEPROM (5.3.1); negative if it does not answer. */
static int e1000_eeprom(struct vn_nic *nic, u32 word)
{
	int tries;

	vn_write(nic, EERD, word << 8 | EERD_START);
	for (tries = 0; tries < 100; tries++) {
		u32 value = vn_read(nic, EERD);

		if (value == ~0U)
			return -ENODEV;
		if (value & EERD_DONE)
			return value >> 16;
		usleep_range(50, 100);
	}
	return -EIO;
}

/* Words 0 to 3Fh sum up to BABAh (5.6). */
static bool e1000_test_eeprom(struct vn_nic *nic)
{
	u16 sum = 0;
	int at;

	for (at = 0; at < 0x40; at++) {
		int word = e1000_eeprom(nic, at);

		if (word < 0)
			return false;
		sum += word;
	}
	return sum == 0xbaba;
}

static int e1000_read_mac(struct vn_nic *nic, u8 *mac)
{
	int at;

	if (!e1000_test_eeprom(nic))
		return -EIO;
	for (at = 0; at < 3; at++) {
		int word = e1000_eeprom(nic, at);

		if (word < 0)
			return word;
		mac[2 * at] = word;
		mac[2 * at + 1] = word >> 8;
	}
	return 0;
}

static void e1000_set_address(struct vn_nic *nic, int at, const u8 *mac)
{
	u32 high = mac ? RAH_AV | mac[5] << 8 | mac[4] : 0;
	u32 low = mac ? mac[0] | mac[1] << 8 | mac[2] << 16 | (u32)mac[3] << 24 : 0;

	vn_write(nic, RAL + 8 * at, low);
	vn_write(nic, RAH + 8 * at, high);
}

static void e1000_set_mac(struct vn_nic *nic)
{
	e1000_set_address(nic, 0, nic->dev->dev_addr);
}

static void e1000_write_table(struct vn_nic *nic, u32 at, u32 *shadow, const u32 *wanted)
{
	int word;

	for (word = 0; word < 128; word++) {
		if (shadow[word] != wanted[word])
			vn_write(nic, at + 4 * word, wanted[word]);
		shadow[word] = wanted[word];
	}
}

/* Unicast addresses have places of their own; of groups, 12 bits count (13.5.1). */
static void e1000_set_filter(struct vn_nic *nic)
{
	struct net_device *dev = nic->dev;
	u32 rctl = vn_read(nic, RCTL) & ~(RCTL_UPE | RCTL_MPE | RCTL_VFE);
	struct netdev_hw_addr *entry;
	u32 table[128] = {};
	int at, end = 1;

	netdev_for_each_mc_addr(entry, dev) {
		u16 bits = (entry->addr[4] | entry->addr[5] << 8) >> 4;

		table[bits >> 5 & 127] |= BIT(bits & 31);
	}
	e1000_write_table(nic, MTA, nic->shadow_groups, table);
	if (netdev_uc_count(dev) < ADDRESSES) {
		netdev_for_each_uc_addr(entry, dev)
			e1000_set_address(nic, end++, entry->addr);
	}
	for (at = end; at < nic->addresses; at++)
		e1000_set_address(nic, at, NULL);
	nic->addresses = end;
	if (dev->flags & IFF_PROMISC)
		rctl |= RCTL_UPE | RCTL_MPE;
	else if (dev->features & NETIF_F_HW_VLAN_CTAG_FILTER)
		rctl |= RCTL_VFE;
	if (netdev_uc_count(dev) >= ADDRESSES)
		rctl |= RCTL_UPE;
	if (dev->flags & IFF_ALLMULTI)
		rctl |= RCTL_MPE;
	memset(table, 0, sizeof(table));
	for_each_set_bit(at, nic->vlans, VLAN_N_VID)
		table[at >> 5] |= BIT(at & 31);
	e1000_write_table(nic, VFTA, nic->shadow_vlans, table);
	vn_write(nic, RCTL, rctl);
}

static void e1000_set_features(struct vn_nic *nic, netdev_features_t features)
{
	u32 ctrl = vn_read(nic, CTRL) & ~CTRL_VME;

	if (features & NETIF_F_HW_VLAN_CTAG_RX)
		ctrl |= CTRL_VME;
	vn_write(nic, CTRL, ctrl);
	vn_write(nic, RXCSUM, features & NETIF_F_RXCSUM ? RXCSUM_ON : 0);
}

static void e1000_set_moderation(struct vn_nic *nic, u32 units)
{
	vn_write(nic, ITR, units);
}

static void e1000_place_csb(struct vn_nic *nic, u64 address)
{
	vn_write(nic, CSBAH, upper_32_bits(address));
	vn_write(nic, CSBAL, lower_32_bits(address));
}

/* Link up without flow control; both rings, empty (14.3 to 14.5). */
static void e1000_start(struct vn_nic *nic)
{
	u32 rctl = RCTL_EN | RCTL_BAM | RCTL_SECRC;

	vn_write(nic, FCAL, 0);
	vn_write(nic, FCAH, 0);
	vn_write(nic, FCT, 0);
	vn_write(nic, FCTTV, 0);
	vn_write(nic, VET, ETH_P_8021Q);
	vn_write(nic, CTRL, vn_read(nic, CTRL) | CTRL_SLU | CTRL_ASDE);
	vn_write(nic, TDBAL, lower_32_bits(nic->tx.dma));
	vn_write(nic, TDBAH, upper_32_bits(nic->tx.dma));
	vn_write(nic, TDLEN, nic->tx.size * 16);
	vn_write(nic, TDH, 0);
	vn_write(nic, TDT, 0);
	vn_write(nic, TIDV, 0);
	vn_write(nic, TADV, 0);
	vn_write(nic, TIPG, TIPG_COPPER);
	vn_write(nic, TCTL, TCTL_EN | TCTL_PSP | TCTL_COLLISION);
	vn_write(nic, RDTR, 0);
	vn_write(nic, RADV, 0);
	vn_write(nic, RDBAL, lower_32_bits(nic->rx.dma));
	vn_write(nic, RDBAH, upper_32_bits(nic->rx.dma));
	vn_write(nic, RDLEN, nic->rx.size * 16);
	vn_write(nic, RDH, 0);
	vn_write(nic, RDT, 0);
	if (nic->dev->mtu > ETH_DATA_LEN)
		rctl |= RCTL_LPE;
	vn_write(nic, RCTL, rctl);
}

static void e1000_stop(struct vn_nic *nic)
{
	vn_write(nic, RCTL, 0);
	vn_write(nic, TCTL, 0);
	e1000_flush(nic);
}

static void e1000_loop(struct vn_nic *nic)
{
	vn_write(nic, RCTL, vn_read(nic, RCTL) | RCTL_LBM_MAC | RCTL_UPE);
}

static u32 e1000_status(struct vn_nic *nic)
{
	return vn_read(nic, STATUS);
}

static bool e1000_has_link(u32 status)
{
	return status & STATUS_LU;
}

static int e1000_speed(u32 status)
{
	static const int speeds[] = { SPEED_10, SPEED_100, SPEED_1000, SPEED_1000 };

	return speeds[(status & STATUS_SPEED) >> 6];
}

static void e1000_ring_tx(struct vn_nic *nic)
{
	vn_write(nic, TDT, nic->tx.tail);
}

static void e1000_ring_rx(struct vn_nic *nic)
{
	vn_write(nic, RDT, nic->rx.told);
}

static u32 e1000_causes(struct vn_nic *nic)
{
	return vn_read(nic, ICR);
}

static void e1000_mask(struct vn_nic *nic)
{
	vn_write(nic, IMC, ~0);
	e1000_flush(nic);
}

static void e1000_enable(struct vn_nic *nic, u32 causes)
{
	vn_write(nic, IMS, causes);
	/* By INTx, a cause that stands is to be delivered before the caller goes on. */
	if (!nic->msi)
		e1000_flush(nic);
}

static void e1000_disable(struct vn_nic *nic, u32 causes)
{
	vn_write(nic, IMC, causes);
}

static void e1000_raise(struct vn_nic *nic, u32 causes)
{
	vn_write(nic, ICS, causes);
}

static void e1000_put(void *ring, u16 at, u64 address, u64 word)
{
	struct e1000_desc *desc = e1000_desc(ring, at);

	WRITE_ONCE(desc->address, cpu_to_le64(address));
	WRITE_ONCE(desc->word, cpu_to_le64(word));
}

/* A context of checksums that is the chip's already is not said again (3.3.6). */
static int e1000_checksum(struct vn_nic *nic, struct sk_buff *skb)
{
	u64 start = skb_checksum_start_offset(skb);
	u64 context = start << 32 | (start + skb->csum_offset) << 40;

	if (nic->tx.context == context)
		return 0;
	nic->tx.context = context;
	e1000_put(nic->tx.ring, nic->tx.tail, context, TX_DEXT);
	return 1;
}

/* 3.4: the chip adds the lengths, and expects a pseudo header's sum without one. */
static int e1000_segmentation(struct vn_nic *nic, struct sk_buff *skb, struct vn_describe *how)
{
	u64 ip = skb_network_offset(skb), tcp = skb_transport_offset(skb);
	u64 header = skb_tcp_all_headers(skb), word = TX_DEXT | TX_TSE | CONTEXT_TCP;
	u64 first = tcp << 32 | (tcp + offsetof(struct tcphdr, check)) << 40;

	if (skb_cow_head(skb, 0))
		return -ENOMEM;
	if (vlan_get_protocol(skb) == htons(ETH_P_IP)) {
		struct iphdr *iph = ip_hdr(skb);

		iph->tot_len = 0;
		iph->check = 0;
		tcp_hdr(skb)->check = ~csum_tcpudp_magic(iph->saddr, iph->daddr, 0, IPPROTO_TCP, 0);
		first |= ip | (ip + offsetof(struct iphdr, check)) << 8 | (tcp - 1) << 16;
		word |= CONTEXT_IPV4;
		how->first |= TX_IXSM;
	} else {
		ipv6_hdr(skb)->payload_len = 0;
		tcp_v6_gso_csum_prep(skb);
		first |= ip | (tcp - 1) << 16;
	}
	word |= skb->len - header;
	word |= header << 40 | (u64)skb_shinfo(skb)->gso_size << 48;
	e1000_put(nic->tx.ring, nic->tx.tail, first, word);
	how->first |= TX_TXSM | TX_TSE;
	how->rest |= TX_TSE;
	return 1;
}

static int e1000_tx_begin(struct vn_nic *nic, struct sk_buff *skb, struct vn_describe *how)
{
	int extra = 0;

	how->first = TX_IFCS;
	how->last = TX_EOP | TX_RS;
	if (skb_is_gso(skb)) {
		extra = e1000_segmentation(nic, skb, how);
	} else if (skb->ip_summed == CHECKSUM_PARTIAL) {
		extra = e1000_checksum(nic, skb);
		how->first |= TX_TXSM;
	}
	if (extra < 0)
		return extra;
	if (skb_vlan_tag_present(skb)) {
		how->first |= TX_VLE;
		how->last |= (u64)skb_vlan_tag_get(skb) << 48 | TX_VLE;
	}
	/* One that asks for nothing has the older kind of descriptor: the device reads it faster. */
	if (how->first & (TX_IXSM | TX_TXSM))
		how->first |= TX_DEXT | TX_DATA;
	/* What all descriptors of a frame say alike (3.3.7.1). */
	how->rest |= how->first;
	return extra;
}

static void e1000_tx_fill(struct vn_nic *nic, u16 at, dma_addr_t dma, u32 len, u64 how)
{
	e1000_put(nic->tx.ring, at, dma, how | len);
}

static bool e1000_tx_done(struct vn_nic *nic, u16 at)
{
	u64 word = le64_to_cpu(READ_ONCE(e1000_desc(nic->tx.ring, at)->word));

	dma_rmb();
	return word & TX_DONE;
}

static void e1000_rx_fill(struct vn_nic *nic, u16 at, dma_addr_t dma)
{
	e1000_put(nic->rx.ring, at, dma, 0);
}

static bool e1000_rx_take(struct vn_nic *nic, u16 at, struct vn_received *got)
{
	u64 word = le64_to_cpu(READ_ONCE(e1000_desc(nic->rx.ring, at)->word));

	if (!(word & RX_DONE))
		return false;
	dma_rmb();
	got->len = word;
	got->end = word & RX_EOP;
	got->bad = word & RX_BAD;
	got->sums_right = !(word & (RX_IXSM | RX_TCPE | RX_IPE)) && word & RX_TCPCS;
	got->tagged = word & RX_VP;
	got->tag = word >> 48;
	return true;
}

static bool e1000_test_register(struct vn_nic *nic, u32 at, u32 mask)
{
	static const u32 patterns[] = { 0, ~0U, 0x5a5a5a5a, 0xa5a5a5a5 };
	u32 before = vn_read(nic, at);
	bool good = true;
	int n;

	for (n = 0; n < ARRAY_SIZE(patterns); n++) {
		vn_write(nic, at, patterns[n] & mask);
		good &= (vn_read(nic, at) & mask) == (patterns[n] & mask);
	}
	vn_write(nic, at, before);
	return good;
}

static bool e1000_test_registers(struct vn_nic *nic)
{
	static const struct {
		u32 at;
		u32 mask;
	} all[] = {
		{ FCAL, ~0U }, { FCAH, 0xffff }, { FCT, 0xffff }, { VET, 0xffff }, { ITR, 0xffff },
		{ FCTTV, 0xffff }, { TIPG, 0x3fffffff }, { RDBAL, 0xfffffff0 }, { RDBAH, ~0U },
		{ RDLEN, 0xfff80 }, { RDTR, 0xffff }, { TDBAL, 0xfffffff0 }, { TDBAH, ~0U },
		{ TDLEN, 0xfff80 }, { TIDV, 0xffff }, { RAL + 8, ~0U }, { RAH + 8, 0x8003ffff },
		{ MTA, ~0U }, { MTA + 508, ~0U }, { VFTA, ~0U }, { VFTA + 508, ~0U },
	};
	bool good = true;
	int n;

	for (n = 0; n < ARRAY_SIZE(all); n++)
		good &= e1000_test_register(nic, all[n].at, all[n].mask);
	return good;
}

const struct vn_chip vn_e1000 = {
	.name = "82540EM",
	.features = NETIF_F_SG | NETIF_F_HW_CSUM | NETIF_F_TSO | NETIF_F_TSO6 | NETIF_F_RXCSUM |
		    NETIF_F_HW_VLAN_CTAG_TX | NETIF_F_HW_VLAN_CTAG_RX | NETIF_F_HW_VLAN_CTAG_FILTER,
	.mtu = 16110,
	.ring_most = VN_RING_MOST,
	.mss_most = 0xffff,
	.sent = CAUSE_TXDW,
	.received = CAUSE_RXT0 | CAUSE_RXDMT0 | CAUSE_RXO,
	.link = CAUSE_LSC,
	.with_csb = CAUSE_TXQE,
	.testable = CAUSE_TXDW | CAUSE_TXQE | CAUSE_LSC | CAUSE_RXDMT0 | CAUSE_RXO | CAUSE_RXT0,
	.moderation_ns = 256,
	.moderation_most = 0xffff,
	.reset = e1000_reset,
	.read_mac = e1000_read_mac,
	.start = e1000_start,
	.stop = e1000_stop,
	.loop = e1000_loop,
	.set_mac = e1000_set_mac,
	.set_filter = e1000_set_filter,
	.set_features = e1000_set_features,
	.set_moderation = e1000_set_moderation,
	.place_csb = e1000_place_csb,
	.status = e1000_status,
	.has_link = e1000_has_link,
	.speed = e1000_speed,
	.ring_tx = e1000_ring_tx,
	.ring_rx = e1000_ring_rx,
	.causes = e1000_causes,
	.mask = e1000_mask,
	.enable = e1000_enable,
	.disable = e1000_disable,
	.raise = e1000_raise,
	.tx_begin = e1000_tx_begin,
	.tx_fill = e1000_tx_fill,
	.tx_done = e1000_tx_done,
	.rx_fill = e1000_rx_fill,
	.rx_take = e1000_rx_take,
	.test_registers = e1000_test_registers,
	.test_eeprom = e1000_test_eeprom,
};
