// SPDX-License-Identifier: GPL-2.0 OR MIT
/* The device: probe, interrupts, NAPI, resets, and what the stack asks of it. */

#include <linux/module.h>
#include <linux/rtnetlink.h>

#include "compat.h"
#include "vmlan_nic.h"

/* So many resets, each within so long of the one before, and the device is left alone. */
#define VN_RESETS	3
#define VN_HEALTHY	(30 * HZ)
/* The link is looked at so often: a driver of the CSB by MSI hears of nothing but frames. */
#define VN_WATCH	HZ
/* Frames that are under way for so many looks are not sent any more. */
#define VN_PATIENCE	5

/* Says so once, until the interface is taken down or was healthy again, and resets. */
void vn_broken(struct vn_nic *nic, const char *what)
{
	if (test_and_set_bit(VN_BROKEN, &nic->state))
		return;
	if (time_after(jiffies, nic->last_reset + VN_HEALTHY))
		nic->resets = 0;
	if (!nic->resets)
		netdev_err(nic->dev, "device broken: %s\n", what);
	schedule_work(&nic->reset);
}

/* All ones are what a bus reads where nothing answers. */
static bool vn_is_gone(struct vn_nic *nic, u32 value)
{
	if (likely(value != ~0U))
		return false;
	vn_broken(nic, "it does not answer any more");
	return true;
}

static enum hrtimer_restart vn_timer(struct hrtimer *timer)
{
	struct vn_nic *nic = container_of(timer, struct vn_nic, timer);

	napi_schedule(&nic->napi);
	return HRTIMER_NORESTART;
}

/* NAPI is to look again within so long. */
void vn_timer_within(struct vn_nic *nic, u32 us)
{
	/* While vn_timer still runs, the timer is active, but does not come again by itself. */
	if (!hrtimer_is_queued(&nic->timer) ||
	    ktime_to_us(hrtimer_get_remaining(&nic->timer)) > us)
		hrtimer_start(&nic->timer, ns_to_ktime((u64)us * NSEC_PER_USEC), HRTIMER_MODE_REL);
}

/* The causes that interrupt, as the NIC is driven now. */
static u32 vn_causes(const struct vn_nic *nic)
{
	const struct vn_chip *chip = nic->chip;
	u32 causes = chip->link;

	/* By MSI the link's cause would stay, and be told again and again: vn_watch looks at it. */
	if (nic->csb.on)
		return chip->sent | chip->received | chip->with_csb | (nic->msi ? 0 : chip->link);
	if (!vn_has(nic, VN_POLLING))
		causes |= chip->received;
	if (!vn_is_lazy(nic) || nic->tx.wanted)
		causes |= chip->sent;
	return causes;
}

void vn_enable(struct vn_nic *nic)
{
	nic->chip->enable(nic, vn_causes(nic));
}

static void vn_look_at_link(struct vn_nic *nic)
{
	mod_delayed_work(system_power_efficient_wq, &nic->watch, 0);
}

/*
 * INTx: the causes are read, which acknowledges them, and masked until NAPI is done. With the CSB
 * nothing is masked: its wishes say when there are interrupts.
 */
static irqreturn_t vn_interrupt(int irq, void *data)
{
	struct vn_nic *nic = data;
	u32 causes = nic->chip->causes(nic);

	if (!causes || vn_is_gone(nic, causes))
		return IRQ_NONE;
	nic->interrupts++;
	if (causes & nic->chip->link)
		vn_look_at_link(nic);
	if (!nic->csb.on) {
		nic->chip->mask(nic);
		WRITE_ONCE(nic->called, true);
	}
	napi_schedule(&nic->napi);
	return IRQ_HANDLED;
}

/*
 * MSI: the causes stand until they are read, and no other message comes before. So nothing needs to
 * be masked, and NAPI reads them when the rings are dry.
 */
static irqreturn_t vn_message(int irq, void *data)
{
	struct vn_nic *nic = data;

	nic->interrupts++;
	if (!nic->csb.on)
		WRITE_ONCE(nic->called, true);
	napi_schedule(&nic->napi);
	return IRQ_HANDLED;
}

/* The rings are dry. True: they are not, after all. */
static bool vn_settle(struct vn_nic *nic)
{
	u32 causes;

	if (nic->csb.on) {
		if (vn_has(nic, VN_POLLING))
			return false;
		nic->rx.wishes++;
		csb_want_received(&nic->csb);
		return vn_rx_ready(nic);
	}
	if (!nic->msi || !READ_ONCE(nic->called))
		return false;
	WRITE_ONCE(nic->called, false);
	causes = nic->chip->causes(nic);
	if (vn_is_gone(nic, causes))
		return false;
	if (causes & nic->chip->link)
		vn_look_at_link(nic);
	/* What they were about may have come after the last look. */
	return causes & nic->chip->sent || vn_rx_ready(nic);
}

static int vn_poll(struct napi_struct *napi, int budget)
{
	struct vn_nic *nic = container_of(napi, struct vn_nic, napi);
	int frames;

	if (unlikely(test_bit(VN_BROKEN, &nic->state))) {
		if (budget)
			napi_complete(napi);
		return 0;
	}
	/* Netpoll looks after sent frames only; nobody would state the other wish again. */
	if (nic->csb.on && budget)
		csb_unwant_received(&nic->csb);
	vn_tx_poll(nic, budget);
	if (!budget)
		return 0;
	frames = vn_rx_poll(nic, budget);
	if (frames >= budget || vn_settle(nic))
		return budget;
	if (!napi_complete_done(napi, frames))
		return frames;
	if (!nic->msi && READ_ONCE(nic->called)) {
		WRITE_ONCE(nic->called, false);
		vn_enable(nic);
	}
	if (vn_has(nic, VN_POLLING))
		vn_timer_within(nic, vn_poll_us);
	return frames;
}

static void vn_tx_stuck(struct vn_nic *nic)
{
	/* The registers are what every device has. */
	if (nic->csb.on) {
		set_bit(VN_CSB_SILENT, &nic->state);
		vn_broken(nic, "by the CSB nothing is sent; registers from now on");
	} else {
		vn_broken(nic, "nothing is sent");
	}
}

/*
 * The stack's clock goes on while the switch is away. So not the time counts, but how often the
 * device was there, was told of the frames, and has not sent them.
 */
static void vn_watch_frames(struct vn_nic *nic)
{
	struct vn_tx *tx = &nic->tx;
	bool late = false;

	/* A tail that is written after a newer one would have what lies behind it sent again. */
	__netif_tx_lock_bh(vn_queue(nic));
	if (tx->clean == tx->tail || tx->reaped != nic->watched)
		nic->stuck = 0;
	else if (++nic->stuck == VN_PATIENCE)
		late = true;
	else
		nic->chip->ring_tx(nic);
	nic->watched = tx->reaped;
	__netif_tx_unlock_bh(vn_queue(nic));
	if (late)
		vn_tx_stuck(nic);
}

static void vn_tx_timeout(struct net_device *dev, unsigned int queue)
{
	vn_look_at_link(netdev_priv(dev));
}

static void vn_watch(struct work_struct *work)
{
	struct vn_nic *nic = container_of(work, struct vn_nic, watch.work);
	u32 status = nic->chip->status(nic);
	bool link;

	if (!test_bit(VN_UP, &nic->state) || vn_is_gone(nic, status))
		return;
	link = nic->chip->has_link(status);
	if (link != netif_carrier_ok(nic->dev)) {
		netdev_info(nic->dev, "link is %s\n", link ? "up" : "down");
		if (link)
			netif_carrier_on(nic->dev);
		else
			netif_carrier_off(nic->dev);
	}
	if (link)
		vn_watch_frames(nic);
	queue_delayed_work(system_power_efficient_wq, &nic->watch, VN_WATCH);
}

static void vn_set_filters(struct vn_nic *nic)
{
	netif_addr_lock_bh(nic->dev);
	nic->chip->set_filter(nic);
	netif_addr_unlock_bh(nic->dev);
}

/* Device and rings, from nothing to traffic. Interrupts are requested by the caller. */
int vn_up(struct vn_nic *nic)
{
	int error = vn_tx_init(nic);

	if (error)
		return error;
	error = vn_rx_init(nic);
	if (error)
		goto no_receiver;
	error = nic->chip->reset(nic);
	if (error)
		goto no_device;
	csb_init(&nic->csb, nic->msi);
	nic->chip->place_csb(nic, nic->csb.dma);
	nic->chip->set_mac(nic);
	nic->chip->start(nic);
	nic->chip->set_features(nic, nic->dev->features);
	vn_set_filters(nic);
	nic->chip->set_moderation(nic, vn_moderation(nic));
	clear_bit(VN_BROKEN, &nic->state);
	set_bit(VN_UP, &nic->state);
	vn_rx_refill(nic);
	nic->rx.told = nic->rx.tail;
	nic->chip->ring_rx(nic);
	if (vn_has(nic, VN_CSB) && !test_bit(VN_CSB_SILENT, &nic->state))
		csb_start(&nic->csb, nic->tx.tail, nic->rx.told);
	nic->called = false;
	nic->stuck = 0;
	napi_enable(&nic->napi);
	vn_enable(nic);
	netif_start_queue(nic->dev);
	/* Starts what polls by the timer. */
	local_bh_disable();
	napi_schedule(&nic->napi);
	local_bh_enable();
	vn_look_at_link(nic);
	return 0;
no_device:
	vn_rx_free_ring(nic);
no_receiver:
	vn_tx_free_ring(nic);
	return error;
}

void vn_down(struct vn_nic *nic)
{
	clear_bit(VN_UP, &nic->state);
	netif_carrier_off(nic->dev);
	netif_tx_disable(nic->dev);
	nic->chip->mask(nic);
	synchronize_irq(nic->irq);
	napi_disable(&nic->napi);
	cancel_delayed_work_sync(&nic->watch);
	hrtimer_cancel(&nic->timer);
	csb_stop(&nic->csb);
	nic->chip->stop(nic);
	nic->chip->place_csb(nic, 0);
	if (nic->chip->reset(nic) && !test_bit(VN_BROKEN, &nic->state))
		netdev_err(nic->dev, "device broken: it does not stop\n");
	vn_rx_free_ring(nic);
	vn_tx_free_ring(nic);
}

static void vn_reset(struct work_struct *work)
{
	struct vn_nic *nic = container_of(work, struct vn_nic, reset);

	rtnl_lock();
	if (!test_bit(VN_BROKEN, &nic->state) || !test_bit(VN_UP, &nic->state))
		goto out;
	vn_down(nic);
	nic->last_reset = jiffies;
	if (++nic->resets <= VN_RESETS && !vn_up(nic))
		goto out;
	set_bit(VN_DEAD, &nic->state);
	netdev_err(nic->dev, "the device stays broken; it is left alone until the link is set up again\n");
out:
	rtnl_unlock();
}

static void vn_free_irq(struct vn_nic *nic)
{
	if (nic->irq)
		free_irq(nic->irq, nic);
	nic->irq = 0;
}

int vn_open(struct net_device *dev)
{
	struct vn_nic *nic = netdev_priv(dev);
	int error, irq = pci_irq_vector(nic->pdev, 0);

	nic->resets = 0;
	clear_bit(VN_DEAD, &nic->state);
	clear_bit(VN_BROKEN, &nic->state);
	clear_bit(VN_CSB_SILENT, &nic->state);
	error = request_irq(irq, nic->msi ? vn_message : vn_interrupt,
			    nic->msi ? 0 : IRQF_SHARED, dev->name, nic);
	if (error)
		return error;
	nic->irq = irq;
	error = vn_up(nic);
	if (error) {
		netdev_err(dev, "the device does not start (%d)\n", error);
		vn_free_irq(nic);
	}
	return error;
}

/* Also of a device that is down already: dead, suspended, or not opened again by the self-test. */
int vn_close(struct net_device *dev)
{
	struct vn_nic *nic = netdev_priv(dev);

	if (test_bit(VN_UP, &nic->state))
		vn_down(nic);
	clear_bit(VN_DEAD, &nic->state);
	vn_free_irq(nic);
	return 0;
}

static void vn_get_stats64(struct net_device *dev, struct rtnl_link_stats64 *stats)
{
	struct vn_nic *nic = netdev_priv(dev);
	unsigned int start;

	do {
		start = u64_stats_fetch_begin(&nic->tx.sync);
		stats->tx_packets = nic->tx.packets;
		stats->tx_bytes = nic->tx.bytes;
		stats->tx_dropped = nic->tx.dropped;
	} while (u64_stats_fetch_retry(&nic->tx.sync, start));
	do {
		start = u64_stats_fetch_begin(&nic->rx.sync);
		stats->rx_packets = nic->rx.packets;
		stats->rx_bytes = nic->rx.bytes;
		stats->multicast = nic->rx.multicast;
		stats->rx_errors = nic->rx.errors;
		stats->rx_dropped = nic->rx.dropped;
	} while (u64_stats_fetch_retry(&nic->rx.sync, start));
}

static int vn_set_mac_address(struct net_device *dev, void *address)
{
	struct vn_nic *nic = netdev_priv(dev);
	int error = eth_mac_addr(dev, address);

	if (!error && test_bit(VN_UP, &nic->state))
		nic->chip->set_mac(nic);
	return error;
}

static void vn_set_rx_mode(struct net_device *dev)
{
	struct vn_nic *nic = netdev_priv(dev);

	if (test_bit(VN_UP, &nic->state))
		nic->chip->set_filter(nic);
}

static int vn_vlan(struct net_device *dev, u16 vid, bool joined)
{
	struct vn_nic *nic = netdev_priv(dev);

	__assign_bit(vid, nic->vlans, joined);
	if (test_bit(VN_UP, &nic->state))
		vn_set_filters(nic);
	return 0;
}

static int vn_vlan_add(struct net_device *dev, __be16 proto, u16 vid)
{
	return vn_vlan(dev, vid, true);
}

static int vn_vlan_kill(struct net_device *dev, __be16 proto, u16 vid)
{
	return vn_vlan(dev, vid, false);
}

static int vn_change_mtu(struct net_device *dev, int mtu)
{
	struct vn_nic *nic = netdev_priv(dev);
	bool up = test_bit(VN_UP, &nic->state);

	if (up)
		vn_down(nic);
	WRITE_ONCE(dev->mtu, mtu);
	if (!up || !vn_up(nic))
		return 0;
	set_bit(VN_DEAD, &nic->state);
	return -EIO;
}

/* One bit of the chip lets it take tags off, and put them on. */
static netdev_features_t vn_fix_features(struct net_device *dev, netdev_features_t features)
{
	if (!(features & NETIF_F_HW_VLAN_CTAG_RX))
		features &= ~NETIF_F_HW_VLAN_CTAG_TX;
	return features;
}

static int vn_set_features(struct net_device *dev, netdev_features_t features)
{
	struct vn_nic *nic = netdev_priv(dev);

	dev->features = features;
	if (test_bit(VN_UP, &nic->state)) {
		nic->chip->set_features(nic, features);
		vn_set_filters(nic);
	}
	return 1;
}

static const struct net_device_ops vn_netdev_ops = {
	.ndo_open = vn_open,
	.ndo_stop = vn_close,
	.ndo_start_xmit = vn_xmit,
	.ndo_tx_timeout = vn_tx_timeout,
	.ndo_get_stats64 = vn_get_stats64,
	.ndo_set_mac_address = vn_set_mac_address,
	.ndo_validate_addr = eth_validate_addr,
	.ndo_set_rx_mode = vn_set_rx_mode,
	.ndo_vlan_rx_add_vid = vn_vlan_add,
	.ndo_vlan_rx_kill_vid = vn_vlan_kill,
	.ndo_change_mtu = vn_change_mtu,
	.ndo_fix_features = vn_fix_features,
	.ndo_set_features = vn_set_features,
	.ndo_features_check = vn_features_check,
};

static int vn_map(struct vn_nic *nic)
{
	struct pci_dev *pdev = nic->pdev;
	int error;

	error = pcim_enable_device(pdev);
	if (error)
		return error;
	error = dma_set_mask_and_coherent(&pdev->dev, DMA_BIT_MASK(64));
	if (error)
		return error;
	error = pcim_iomap_regions(pdev, BIT(nic->chip->bar), VN_NAME);
	if (error)
		return error;
	nic->registers = pcim_iomap_table(pdev)[nic->chip->bar];
	nic->csb.words = dmam_alloc_coherent(&pdev->dev, CSB_BYTES, &nic->csb.dma, GFP_KERNEL);
	if (!nic->csb.words)
		return -ENOMEM;
	pci_set_master(pdev);
	return 0;
}

/* Asks the device who it is. */
static int vn_meet(struct vn_nic *nic)
{
	u8 mac[ETH_ALEN];
	int error;

	spin_lock_init(&nic->mask_lock);
	error = nic->chip->reset(nic);
	if (!error)
		error = nic->chip->read_mac(nic, mac);
	if (error)
		return dev_err_probe(&nic->pdev->dev, error, "the device does not answer\n");
	if (!is_valid_ether_addr(mac))
		return dev_err_probe(&nic->pdev->dev, -EINVAL, "%pM is no address\n", mac);
	eth_hw_addr_set(nic->dev, mac);
	error = pci_alloc_irq_vectors(nic->pdev, 1, 1,
				      PCI_IRQ_INTX | (vn_msi ? PCI_IRQ_MSI : 0));
	nic->msi = nic->pdev->msi_enabled;
	return error < 0 ? error : 0;
}

static void vn_describe_netdev(struct vn_nic *nic)
{
	struct net_device *dev = nic->dev;

	dev->netdev_ops = &vn_netdev_ops;
	dev->ethtool_ops = &vn_ethtool_ops;
	dev->watchdog_timeo = 5 * HZ;
	dev->min_mtu = ETH_MIN_MTU;
	dev->max_mtu = nic->chip->mtu;
	dev->hw_features = nic->chip->features & ~NETIF_F_HW_VLAN_CTAG_FILTER;
	dev->features = nic->chip->features | NETIF_F_HIGHDMA;
	dev->vlan_features = nic->chip->features &
			     (NETIF_F_SG | NETIF_F_CSUM_MASK | NETIF_F_TSO | NETIF_F_TSO6);
	dev->priv_flags |= IFF_UNICAST_FLT;
	netif_napi_add(dev, &nic->napi, vn_poll);
	vn_timer_setup(&nic->timer, vn_timer);
	INIT_DELAYED_WORK(&nic->watch, vn_watch);
	INIT_WORK(&nic->reset, vn_reset);
	u64_stats_init(&nic->tx.sync);
	u64_stats_init(&nic->rx.sync);
	nic->flags = vn_flags_at_load();
	nic->moderation_us = vn_itr_us;
	nic->ring_size = min(vn_ring, nic->chip->ring_most);
	nic->last_reset = jiffies - VN_HEALTHY;
}

static int vn_probe(struct pci_dev *pdev, const struct pci_device_id *id)
{
	struct net_device *dev = alloc_etherdev(sizeof(struct vn_nic));
	struct vn_nic *nic;
	int error;

	if (!dev)
		return -ENOMEM;
	SET_NETDEV_DEV(dev, &pdev->dev);
	nic = netdev_priv(dev);
	nic->dev = dev;
	nic->pdev = pdev;
	nic->chip = (const struct vn_chip *)id->driver_data;
	error = vn_map(nic);
	if (error)
		goto no_device;
	error = vn_meet(nic);
	if (error)
		goto no_vectors;
	vn_describe_netdev(nic);
	pci_set_drvdata(pdev, nic);
	netif_carrier_off(dev);
	error = register_netdev(dev);
	if (error)
		goto no_vectors;
	netdev_info(dev, "vmlan %s with CSB, %s, %pM\n", nic->chip->name,
		    nic->msi ? "MSI" : "INTx", dev->dev_addr);
	return 0;
no_vectors:
	pci_free_irq_vectors(pdev);
no_device:
	free_netdev(dev);
	return error;
}

static void vn_remove(struct pci_dev *pdev)
{
	struct vn_nic *nic = pci_get_drvdata(pdev);

	unregister_netdev(nic->dev);
	/* A shared interrupt may have asked for it after vn_down. */
	cancel_delayed_work_sync(&nic->watch);
	cancel_work_sync(&nic->reset);
	nic->chip->place_csb(nic, 0);
	nic->chip->reset(nic);
	pci_free_irq_vectors(pdev);
	free_netdev(nic->dev);
}

static int vn_suspend(struct device *device)
{
	struct vn_nic *nic = dev_get_drvdata(device);

	rtnl_lock();
	netif_device_detach(nic->dev);
	if (test_bit(VN_UP, &nic->state))
		vn_down(nic);
	rtnl_unlock();
	return 0;
}

static int vn_resume(struct device *device)
{
	struct vn_nic *nic = dev_get_drvdata(device);
	int error = 0;

	rtnl_lock();
	if (netif_running(nic->dev) && nic->irq && !test_bit(VN_DEAD, &nic->state))
		error = vn_up(nic);
	if (error)
		set_bit(VN_DEAD, &nic->state);
	netif_device_attach(nic->dev);
	rtnl_unlock();
	return error;
}

static DEFINE_SIMPLE_DEV_PM_OPS(vn_pm_ops, vn_suspend, vn_resume);

/* Before a kexec: no DMA into the next kernel's memory. */
static void vn_shutdown(struct pci_dev *pdev)
{
	vn_suspend(&pdev->dev);
	pci_clear_master(pdev);
}

static const struct pci_device_id vn_ids[] = {
	{ PCI_DEVICE_SUB(PCI_VENDOR_ID_INTEL, 0x100e, PCI_ANY_ID, CSB_SUBSYSTEM),
	  .driver_data = (kernel_ulong_t)&vn_e1000 },
	{ PCI_DEVICE_SUB(PCI_VENDOR_ID_REALTEK, 0x8169, PCI_ANY_ID, CSB_SUBSYSTEM),
	  .driver_data = (kernel_ulong_t)&vn_r8169 },
	{ }
};
MODULE_DEVICE_TABLE(pci, vn_ids);

static struct pci_driver vn_driver = {
	.name = VN_NAME,
	.id_table = vn_ids,
	.probe = vn_probe,
	.remove = vn_remove,
	.shutdown = vn_shutdown,
	.driver.pm = pm_sleep_ptr(&vn_pm_ops),
};

static int __init vn_init(void)
{
	int error = vn_check_parameters();

	return error ? error : pci_register_driver(&vn_driver);
}
module_init(vn_init);

static void __exit vn_exit(void)
{
	pci_unregister_driver(&vn_driver);
}
module_exit(vn_exit);

MODULE_DESCRIPTION("vmlan's emulated NICs, with send combining and the shared status block");
MODULE_AUTHOR("The vmlan developers");
MODULE_LICENSE("Dual MIT/GPL");
MODULE_VERSION("1.0");
