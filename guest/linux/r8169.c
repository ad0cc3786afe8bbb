// SPDX-License-Identifier: GPL-2.0 OR MIT
/*
 * Realtek RTL8169SB, after Realtek's datasheet. Registers are 1, 2 or 4 bytes wide. Descriptors say
 * who owns them, so rings have no tails.
 */

#include <linux/crc32.h>
#include <linux/delay.h>
#include <linux/udp.h>

#include "vmlan_nic.h"

#define IDR0		0x00
#define IDR4		0x04
#define MAR0		0x08
#define MAR4		0x0c
#define TNPDS		0x20
#define TNPDSH		0x24
#define CR		0x37
#define TPPOLL		0x38
#define IMR		0x3c
#define ISR		0x3e
#define TCR		0x40
#define RCR		0x44
#define EECR		0x50
#define PHYSTATUS	0x6c
#define RMS		0xda
#define CPCR		0xe0
#define INTMITIGATE	0xe2
#define RDSAR		0xe4
#define RDSARH		0xe8
#define CSBAL		0xf0
#define CSBAH		0xf4

#define CR_TE		BIT(2)
#define CR_RE		BIT(3)
#define CR_RST		BIT(4)
#define TPPOLL_NPQ	BIT(6)
#define TPPOLL_FSWINT	BIT(0)
#define EECR_UNLOCK	0xc0
#define EECR_LOAD	0x40
#define EECR_LOCK	0
#define TCR_PLAIN	(7 << 8 | 3 << 24)
#define TCR_LOOP	BIT(17)
#define RCR_PLAIN	(7 << 8 | 7 << 13)
#define RCR_AAP		BIT(0)
#define RCR_APM		BIT(1)
#define RCR_AM		BIT(2)
#define RCR_AB		BIT(3)
#define CPCR_RXCSUM	BIT(5)
#define CPCR_RXVLAN	BIT(6)
/* Units of 10.24 us at 1000 Mbit/s. */
#define CPCR_UNIT	3
#define PHY_LINK	BIT(1)
#define PHY_10		BIT(2)
#define PHY_100		BIT(3)

#define CAUSE_ROK	BIT(0)
#define CAUSE_RER	BIT(1)
#define CAUSE_TOK	BIT(2)
#define CAUSE_TER	BIT(3)
#define CAUSE_RDU	BIT(4)
#define CAUSE_LINK	BIT(5)
#define CAUSE_FOVW	BIT(6)
#define CAUSE_TDU	BIT(7)
#define CAUSE_SWINT	BIT(8)
#define CAUSES		0xffff

/* The first quadword of a descriptor: opts1, and opts2 above it. */
#define OWN		BIT_ULL(31)
#define EOR		BIT_ULL(30)
#define FS		BIT_ULL(29)
#define LS		BIT_ULL(28)
#define TX_LGSEN	BIT_ULL(27)
#define TX_IPCS		BIT_ULL(18)
#define TX_UDPCS	BIT_ULL(17)
#define TX_TCPCS	BIT_ULL(16)
#define TX_MSS		0x7ff
#define TX_TAGC		BIT_ULL(49)
#define RX_LEN		GENMASK_ULL(13, 0)
#define RX_TCPF		BIT_ULL(14)
#define RX_UDPF		BIT_ULL(15)
#define RX_IPF		BIT_ULL(16)
#define RX_TCP		BIT_ULL(17)
#define RX_UDP		BIT_ULL(18)
#define RX_RES		BIT_ULL(21)
#define RX_TAVA		BIT_ULL(48)

struct r8169_desc {
	__le64 opts;
	__le64 address;
};

static struct r8169_desc *r8169_desc(void *ring, u16 at)
{
	return (struct r8169_desc *)ring + at;
}

static void r8169_write8(struct vn_nic *nic, u32 at, u8 value)
{
	writeb(value, nic->registers + at);
}

static void r8169_write16(struct vn_nic *nic, u32 at, u16 value)
{
	writew(value, nic->registers + at);
}

/* A read pushes posted writes before it. */
static void r8169_flush(struct vn_nic *nic)
{
	readw(nic->registers + IMR);
}

/* The high half first: the low one takes effect. */
static void r8169_write_wide(struct vn_nic *nic, u32 low, u32 high, u64 address)
{
	vn_write(nic, high, upper_32_bits(address));
	vn_write(nic, low, lower_32_bits(address));
}

/* Replaces some of the enabled causes. */
static void r8169_set_mask(struct vn_nic *nic, u16 clear, u16 set)
{
	unsigned long flags;

	spin_lock_irqsave(&nic->mask_lock, flags);
	nic->enabled = (nic->enabled & ~clear) | set;
	r8169_write16(nic, IMR, nic->enabled);
	spin_unlock_irqrestore(&nic->mask_lock, flags);
}

static int r8169_reset(struct vn_nic *nic)
{
	int tries;

	r8169_set_mask(nic, CAUSES, 0);
	r8169_write8(nic, CR, CR_RST);
	for (tries = 0; tries < 100; tries++) {
		u8 cr = readb(nic->registers + CR);

		if (cr == 0xff)
			return -ENODEV;
		if (!(cr & CR_RST))
			break;
		usleep_range(1000, 2000);
	}
	if (tries == 100)
		return -EIO;
	r8169_set_mask(nic, CAUSES, 0);
	r8169_write16(nic, ISR, CAUSES);
	r8169_flush(nic);
	return 0;
}

/* The address, which reset has fetched from the EEPROM. */
static int r8169_read_mac(struct vn_nic *nic, u8 *mac)
{
	u32 low = vn_read(nic, IDR0), high = vn_read(nic, IDR4);
	int at;

	for (at = 0; at < 4; at++)
		mac[at] = low >> (8 * at);
	mac[4] = high;
	mac[5] = high >> 8;
	return 0;
}

static void r8169_set_mac(struct vn_nic *nic)
{
	const u8 *mac = nic->dev->dev_addr;

	r8169_write8(nic, EECR, EECR_UNLOCK);
	vn_write(nic, IDR4, mac[4] | mac[5] << 8);
	vn_write(nic, IDR0, mac[0] | mac[1] << 8 | mac[2] << 16 | (u32)mac[3] << 24);
	r8169_write8(nic, EECR, EECR_LOCK);
}

/* Of groups, 6 bits of the address's CRC count. */
static void r8169_set_filter(struct vn_nic *nic)
{
	struct net_device *dev = nic->dev;
	u32 rcr = RCR_PLAIN | RCR_APM | RCR_AB | RCR_AM;
	struct netdev_hw_addr *entry;
	u32 hash[2] = {};

	netdev_for_each_mc_addr(entry, dev) {
		u32 bit = ether_crc(ETH_ALEN, entry->addr) >> 26;

		hash[bit >> 5] |= BIT(bit & 31);
	}
	if (dev->flags & IFF_PROMISC || netdev_uc_count(dev))
		rcr |= RCR_AAP;
	if (dev->flags & (IFF_PROMISC | IFF_ALLMULTI) || netdev_mc_count(dev) > 32)
		memset(hash, 0xff, sizeof(hash));
	vn_write(nic, MAR0, hash[0]);
	vn_write(nic, MAR4, hash[1]);
	vn_write(nic, RCR, rcr);
}

static void r8169_set_features(struct vn_nic *nic, netdev_features_t features)
{
	u16 command = CPCR_UNIT;

	if (features & NETIF_F_HW_VLAN_CTAG_RX)
		command |= CPCR_RXVLAN;
	if (features & NETIF_F_RXCSUM)
		command |= CPCR_RXCSUM;
	r8169_write8(nic, EECR, EECR_UNLOCK);
	r8169_write16(nic, CPCR, command);
	r8169_write8(nic, EECR, EECR_LOCK);
}

/* Timers of both sides; so many frames that they do not count. */
static void r8169_set_moderation(struct vn_nic *nic, u32 units)
{
	r8169_write16(nic, INTMITIGATE,
		      units ? units << 12 | 0xf << 8 | units << 4 | 0xf : 0);
}

static void r8169_place_csb(struct vn_nic *nic, u64 address)
{
	r8169_write_wide(nic, CSBAL, CSBAH, address);
}

static void r8169_start(struct vn_nic *nic)
{
	r8169_write8(nic, EECR, EECR_UNLOCK);
	r8169_write16(nic, RMS, nic->dev->mtu + ETH_HLEN + VLAN_HLEN + ETH_FCS_LEN);
	r8169_write_wide(nic, TNPDS, TNPDSH, nic->tx.dma);
	r8169_write_wide(nic, RDSAR, RDSARH, nic->rx.dma);
	r8169_write8(nic, EECR, EECR_LOCK);
	r8169_write8(nic, CR, CR_TE | CR_RE);
	vn_write(nic, TCR, TCR_PLAIN);
}

static void r8169_stop(struct vn_nic *nic)
{
	r8169_write8(nic, CR, 0);
	r8169_flush(nic);
}

static void r8169_loop(struct vn_nic *nic)
{
	vn_write(nic, TCR, TCR_PLAIN | TCR_LOOP);
	r8169_set_filter(nic);
}

static u32 r8169_status(struct vn_nic *nic)
{
	u8 status = readb(nic->registers + PHYSTATUS);

	return status == 0xff ? ~0U : status;
}

static bool r8169_has_link(u32 status)
{
	return status & PHY_LINK;
}

static int r8169_speed(u32 status)
{
	return status & PHY_10 ? SPEED_10 : status & PHY_100 ? SPEED_100 : SPEED_1000;
}

static void r8169_ring_tx(struct vn_nic *nic)
{
	r8169_write8(nic, TPPOLL, TPPOLL_NPQ);
}

/* There is no doorbell for buffers. With the CSB any write of TPPoll is one; this does no more. */
static void r8169_ring_rx(struct vn_nic *nic)
{
	if (nic->csb.on)
		r8169_write8(nic, TPPOLL, 0);
}

static u32 r8169_causes(struct vn_nic *nic)
{
	u16 causes = readw(nic->registers + ISR);

	if (causes == 0xffff)
		return ~0U;
	if (causes)
		r8169_write16(nic, ISR, causes);
	return causes;
}

static void r8169_mask(struct vn_nic *nic)
{
	r8169_set_mask(nic, CAUSES, 0);
	r8169_flush(nic);
}

static void r8169_enable(struct vn_nic *nic, u32 causes)
{
	r8169_set_mask(nic, 0, causes);
}

static void r8169_disable(struct vn_nic *nic, u32 causes)
{
	r8169_set_mask(nic, causes, 0);
}

static void r8169_raise(struct vn_nic *nic, u32 causes)
{
	r8169_write8(nic, TPPOLL, TPPOLL_FSWINT);
}

static void r8169_put(void *ring, u16 at, u16 size, u64 address, u64 opts)
{
	struct r8169_desc *desc = r8169_desc(ring, at);

	WRITE_ONCE(desc->address, cpu_to_le64(address));
	/* OWN comes last. */
	dma_wmb();
	WRITE_ONCE(desc->opts, cpu_to_le64(opts | OWN | (at + 1 == size ? EOR : 0)));
}

/* The chip finds the headers by itself. */
static int r8169_tx_begin(struct vn_nic *nic, struct sk_buff *skb, struct vn_describe *how)
{
	if (skb_is_gso(skb))
		how->first |= TX_LGSEN | (u64)(skb_shinfo(skb)->gso_size & TX_MSS) << 16;
	else if (skb->ip_summed == CHECKSUM_PARTIAL)
		how->first |= TX_IPCS |
			      (skb->csum_offset == offsetof(struct udphdr, check) ? TX_UDPCS :
										    TX_TCPCS);
	if (skb_vlan_tag_present(skb))
		how->first |= TX_TAGC | (u64)swab16(skb_vlan_tag_get(skb)) << 32;
	how->rest = how->first;
	how->first |= FS;
	how->last = LS;
	return 0;
}

static void r8169_tx_fill(struct vn_nic *nic, u16 at, dma_addr_t dma, u32 len, u64 how)
{
	r8169_put(nic->tx.ring, at, nic->tx.size, dma, how | len);
}

static bool r8169_tx_done(struct vn_nic *nic, u16 at)
{
	u64 opts = le64_to_cpu(READ_ONCE(r8169_desc(nic->tx.ring, at)->opts));

	dma_rmb();
	return !(opts & OWN);
}

static void r8169_rx_fill(struct vn_nic *nic, u16 at, dma_addr_t dma)
{
	r8169_put(nic->rx.ring, at, nic->rx.size, dma, VN_RX_BUFFER);
}

static bool r8169_rx_take(struct vn_nic *nic, u16 at, struct vn_received *got)
{
	u64 opts = le64_to_cpu(READ_ONCE(r8169_desc(nic->rx.ring, at)->opts));

	if (opts & OWN)
		return false;
	dma_rmb();
	got->len = opts & RX_LEN;
	got->end = opts & LS;
	got->bad = got->end && opts & RX_RES;
	/* The last descriptor of a frame has the length of all of it, with its check sequence. */
	got->whole = got->end;
	got->sums_right = (opts & (RX_TCP | RX_UDP | RX_TCPF | RX_IPF)) == RX_TCP ||
			  (opts & (RX_TCP | RX_UDP | RX_UDPF | RX_IPF)) == RX_UDP;
	got->tagged = opts & RX_TAVA;
	got->tag = swab16(opts >> 32);
	return true;
}

static bool r8169_test_registers(struct vn_nic *nic)
{
	static const u32 patterns[] = { 0, ~0U, 0x5a5a5a5a, 0xa5a5a5a5 };
	static const u32 all[] = { MAR0, MAR4 };
	bool good = true;
	int n, at;

	for (at = 0; at < ARRAY_SIZE(all); at++) {
		for (n = 0; n < ARRAY_SIZE(patterns); n++) {
			vn_write(nic, all[at], patterns[n]);
			good &= vn_read(nic, all[at]) == patterns[n];
		}
	}
	return good;
}

/* The EEPROM is read again, and has the address that it had. */
static bool r8169_test_eeprom(struct vn_nic *nic)
{
	u8 mac[ETH_ALEN];

	r8169_write8(nic, EECR, EECR_LOAD);
	r8169_flush(nic);
	r8169_read_mac(nic, mac);
	return ether_addr_equal_unaligned(mac, nic->dev->perm_addr);
}

const struct vn_chip vn_r8169 = {
	.name = "RTL8169",
	.bar = 1,
	.features = NETIF_F_SG | NETIF_F_IP_CSUM | NETIF_F_TSO | NETIF_F_RXCSUM |
		    NETIF_F_HW_VLAN_CTAG_TX | NETIF_F_HW_VLAN_CTAG_RX,
	.mtu = 7000,
	.ring_most = 1024,
	.mss_most = TX_MSS,
	.sent = CAUSE_TOK | CAUSE_TER,
	.received = CAUSE_ROK | CAUSE_RER | CAUSE_RDU | CAUSE_FOVW,
	.link = CAUSE_LINK,
	.with_csb = CAUSE_TDU,
	.testable = CAUSE_SWINT,
	.moderation_ns = 10240,
	.moderation_most = 15,
	.reset = r8169_reset,
	.read_mac = r8169_read_mac,
	.start = r8169_start,
	.stop = r8169_stop,
	.loop = r8169_loop,
	.set_mac = r8169_set_mac,
	.set_filter = r8169_set_filter,
	.set_features = r8169_set_features,
	.set_moderation = r8169_set_moderation,
	.place_csb = r8169_place_csb,
	.status = r8169_status,
	.has_link = r8169_has_link,
	.speed = r8169_speed,
	.ring_tx = r8169_ring_tx,
	.ring_rx = r8169_ring_rx,
	.causes = r8169_causes,
	.mask = r8169_mask,
	.enable = r8169_enable,
	.disable = r8169_disable,
	.raise = r8169_raise,
	.tx_begin = r8169_tx_begin,
	.tx_fill = r8169_tx_fill,
	.tx_done = r8169_tx_done,
	.rx_fill = r8169_rx_fill,
	.rx_take = r8169_rx_take,
	.test_registers = r8169_test_registers,
	.test_eeprom = r8169_test_eeprom,
};
