// SPDX-License-Identifier: GPL-2.0 OR MIT
/* What ethtool asks. */

#include "vmlan_nic.h"

#define VN_COUNT(name, field) { name, offsetof(struct vn_nic, field) }

static const struct {
	char name[ETH_GSTRING_LEN];
	size_t at;
} vn_counts[] = {
	VN_COUNT("rx_packets", rx.packets),
	VN_COUNT("tx_packets", tx.packets),
	VN_COUNT("rx_bytes", rx.bytes),
	VN_COUNT("tx_bytes", tx.bytes),
	VN_COUNT("rx_multicast", rx.multicast),
	VN_COUNT("rx_errors", rx.errors),
	VN_COUNT("rx_dropped", rx.dropped),
	VN_COUNT("rx_alloc_failed", rx.alloc_failed),
	VN_COUNT("tx_dropped", tx.dropped),
	VN_COUNT("interrupts", interrupts),
	VN_COUNT("polls", rx.polls),
	VN_COUNT("tx_doorbells", tx.doorbells),
	VN_COUNT("tx_doorbells_saved", tx.doorbells_saved),
	VN_COUNT("tx_stops", tx.stops),
	VN_COUNT("tx_wishes", tx.wishes),
	VN_COUNT("sc_deferred", tx.deferred),
	VN_COUNT("sc_overdue", tx.overdue),
	VN_COUNT("rx_doorbells", rx.doorbells),
	VN_COUNT("rx_doorbells_saved", rx.doorbells_saved),
	VN_COUNT("rx_wishes", rx.wishes),
};

static void vn_get_drvinfo(struct net_device *dev, struct ethtool_drvinfo *info)
{
	struct vn_nic *nic = netdev_priv(dev);

	strscpy(info->driver, VN_NAME, sizeof(info->driver));
	strscpy(info->bus_info, pci_name(nic->pdev), sizeof(info->bus_info));
}

static int vn_get_sset_count(struct net_device *dev, int set)
{
	switch (set) {
	case ETH_SS_STATS:
		return ARRAY_SIZE(vn_counts);
	case ETH_SS_PRIV_FLAGS:
		return VN_FLAGS;
	case ETH_SS_TEST:
		return VN_TESTS;
	default:
		return -EOPNOTSUPP;
	}
}

static void vn_get_strings(struct net_device *dev, u32 set, u8 *data)
{
	int n;

	switch (set) {
	case ETH_SS_STATS:
		for (n = 0; n < ARRAY_SIZE(vn_counts); n++)
			memcpy(data + n * ETH_GSTRING_LEN, vn_counts[n].name, ETH_GSTRING_LEN);
		break;
	case ETH_SS_PRIV_FLAGS:
		memcpy(data, vn_flag_names, sizeof(vn_flag_names));
		break;
	case ETH_SS_TEST:
		memcpy(data, vn_test_names, sizeof(vn_test_names));
		break;
	}
}

static void vn_get_ethtool_stats(struct net_device *dev, struct ethtool_stats *stats, u64 *data)
{
	const u8 *nic = netdev_priv(dev);
	int n;

	for (n = 0; n < ARRAY_SIZE(vn_counts); n++)
		data[n] = READ_ONCE(*(const u64 *)(nic + vn_counts[n].at));
}

static u32 vn_get_priv_flags(struct net_device *dev)
{
	struct vn_nic *nic = netdev_priv(dev);

	return nic->flags;
}

static int vn_set_priv_flags(struct net_device *dev, u32 flags)
{
	return vn_set_flags(netdev_priv(dev), flags);
}

static int vn_get_coalesce(struct net_device *dev, struct ethtool_coalesce *wanted,
			   struct kernel_ethtool_coalesce *more, struct netlink_ext_ack *extack)
{
	struct vn_nic *nic = netdev_priv(dev);

	/* As the chip has it. */
	wanted->rx_coalesce_usecs =
		DIV_ROUND_CLOSEST(vn_moderation(nic) * nic->chip->moderation_ns, NSEC_PER_USEC);
	return 0;
}

/* rx-usecs is the time between interrupts of both kinds; 0: they are not moderated. */
static int vn_set_coalesce(struct net_device *dev, struct ethtool_coalesce *wanted,
			   struct kernel_ethtool_coalesce *more, struct netlink_ext_ack *extack)
{
	struct vn_nic *nic = netdev_priv(dev);
	unsigned long flags = nic->flags & ~BIT(VN_MODERATED);

	if (wanted->rx_coalesce_usecs > 16000) {
		NL_SET_ERR_MSG_MOD(extack, "rx-usecs: from 0 to 16000");
		return -EINVAL;
	}
	if (wanted->rx_coalesce_usecs) {
		nic->moderation_us = wanted->rx_coalesce_usecs;
		flags |= BIT(VN_MODERATED);
	}
	return vn_set_flags(nic, flags);
}

static void vn_get_ringparam(struct net_device *dev, struct ethtool_ringparam *ring,
			     struct kernel_ethtool_ringparam *more, struct netlink_ext_ack *extack)
{
	struct vn_nic *nic = netdev_priv(dev);

	ring->rx_max_pending = nic->chip->ring_most;
	ring->tx_max_pending = nic->chip->ring_most;
	ring->rx_pending = nic->ring_size;
	ring->tx_pending = nic->ring_size;
}

static int vn_set_ringparam(struct net_device *dev, struct ethtool_ringparam *ring,
			    struct kernel_ethtool_ringparam *more, struct netlink_ext_ack *extack)
{
	struct vn_nic *nic = netdev_priv(dev);
	bool up = test_bit(VN_UP, &nic->state);
	u32 wanted = ring->tx_pending == nic->ring_size ? ring->rx_pending : ring->tx_pending;

	if (wanted < VN_RING_LEAST || wanted & (wanted - 1)) {
		NL_SET_ERR_MSG_MOD(extack, "a power of two from 64 on, for both rings");
		return -EINVAL;
	}
	if (up)
		vn_down(nic);
	nic->ring_size = wanted;
	if (!up || !vn_up(nic))
		return 0;
	set_bit(VN_DEAD, &nic->state);
	return -EIO;
}

static int vn_get_link_ksettings(struct net_device *dev, struct ethtool_link_ksettings *link)
{
	struct vn_nic *nic = netdev_priv(dev);

	ethtool_link_ksettings_zero_link_mode(link, supported);
	ethtool_link_ksettings_zero_link_mode(link, advertising);
	ethtool_link_ksettings_add_link_mode(link, supported, 1000baseT_Full);
	ethtool_link_ksettings_add_link_mode(link, supported, Autoneg);
	ethtool_link_ksettings_add_link_mode(link, supported, TP);
	ethtool_link_ksettings_add_link_mode(link, advertising, 1000baseT_Full);
	ethtool_link_ksettings_add_link_mode(link, advertising, Autoneg);
	link->base.autoneg = AUTONEG_ENABLE;
	link->base.port = PORT_TP;
	link->base.speed = SPEED_UNKNOWN;
	link->base.duplex = DUPLEX_UNKNOWN;
	if (netif_carrier_ok(dev)) {
		link->base.speed = nic->chip->speed(nic->chip->status(nic));
		link->base.duplex = DUPLEX_FULL;
	}
	return 0;
}

const struct ethtool_ops vn_ethtool_ops = {
	.supported_coalesce_params = ETHTOOL_COALESCE_RX_USECS,
	.get_drvinfo = vn_get_drvinfo,
	.get_link = ethtool_op_get_link,
	.get_link_ksettings = vn_get_link_ksettings,
	.get_ts_info = ethtool_op_get_ts_info,
	.get_coalesce = vn_get_coalesce,
	.set_coalesce = vn_set_coalesce,
	.get_ringparam = vn_get_ringparam,
	.set_ringparam = vn_set_ringparam,
	.get_sset_count = vn_get_sset_count,
	.get_strings = vn_get_strings,
	.get_ethtool_stats = vn_get_ethtool_stats,
	.get_priv_flags = vn_get_priv_flags,
	.set_priv_flags = vn_set_priv_flags,
	.self_test = vn_self_test,
};
