// SPDX-License-Identifier: GPL-2.0 OR MIT
/* ethtool -t. */

#include <linux/delay.h>

#include "vmlan_nic.h"

const char vn_test_names[VN_TESTS][ETH_GSTRING_LEN] = {
	"Register test  (offline)",
	"Eeprom test    (offline)",
	"Interrupt test (offline)",
	"Loopback test  (offline)",
	"Link test   (on/offline)",
};

/* Of a frame to ourselves. */
#define VN_TEST_BYTES 200

static irqreturn_t vn_test_interrupt(int irq, void *data)
{
	struct vn_nic *nic = data;
	u32 causes = nic->chip->causes(nic);

	if (!causes || causes == ~0U)
		return IRQ_NONE;
	WRITE_ONCE(nic->heard, nic->heard | causes);
	return IRQ_HANDLED;
}

/* Each cause interrupts when it is enabled, and not when it is not. */
static bool vn_test_cause(struct vn_nic *nic, u32 cause)
{
	bool good;
	int tries;

	nic->heard = 0;
	nic->chip->mask(nic);
	nic->chip->raise(nic, cause);
	usleep_range(2000, 3000);
	good = !READ_ONCE(nic->heard);
	nic->chip->causes(nic);
	nic->chip->enable(nic, cause);
	nic->chip->raise(nic, cause);
	for (tries = 0; tries < 500 && READ_ONCE(nic->heard) != cause; tries++)
		usleep_range(1000, 2000);
	return good && READ_ONCE(nic->heard) == cause;
}

static bool vn_test_interrupts(struct vn_nic *nic)
{
	unsigned long causes = nic->chip->testable;
	bool good = true;
	int bit, irq = pci_irq_vector(nic->pdev, 0);

	if (request_irq(irq, vn_test_interrupt, nic->msi ? 0 : IRQF_SHARED, VN_NAME, nic))
		return false;
	for_each_set_bit(bit, &causes, 32)
		good &= vn_test_cause(nic, BIT(bit));
	nic->chip->mask(nic);
	free_irq(irq, nic);
	return good;
}

static struct sk_buff *vn_test_frame(struct vn_nic *nic)
{
	struct sk_buff *skb = netdev_alloc_skb(nic->dev, VN_TEST_BYTES);

	if (!skb)
		return NULL;
	memset(skb_put(skb, VN_TEST_BYTES), 0xa5, VN_TEST_BYTES);
	ether_addr_copy(skb->data, nic->dev->dev_addr);
	ether_addr_copy(skb->data + ETH_ALEN, nic->dev->dev_addr);
	return skb;
}

/* Is this the frame, as it was sent? */
static bool vn_test_is_ours(struct vn_nic *nic, u16 at, const struct vn_received *got)
{
	const u8 *data = nic->rx.buffers[at].data + VN_RX_HEADROOM;

	if (!got->end || got->len != VN_TEST_BYTES + (got->whole ? ETH_FCS_LEN : 0))
		return false;
	dma_sync_single_for_cpu(&nic->pdev->dev, nic->rx.buffers[at].dma, got->len,
				DMA_FROM_DEVICE);
	return ether_addr_equal(data, nic->dev->dev_addr) && data[VN_TEST_BYTES - 1] == 0xa5;
}

/* Did the frame come back? Others' frames may have come before it. */
static bool vn_test_heard(struct vn_nic *nic)
{
	u16 at;

	for (at = 0; at < VN_RING_LEAST / 2 && at < vn_rx_posted(&nic->rx); at++) {
		struct vn_received got = {};

		if (!nic->chip->rx_take(nic, at, &got))
			return false;
		if (vn_test_is_ours(nic, at, &got))
			return true;
	}
	return false;
}

/* One frame through both rings, without interrupts and without the stack. */
static bool vn_test_frames(struct vn_nic *nic)
{
	struct sk_buff *skb = vn_test_frame(nic);
	int tries;

	if (!skb)
		return false;
	nic->chip->set_mac(nic);
	nic->chip->start(nic);
	nic->chip->loop(nic);
	vn_rx_refill(nic);
	nic->rx.told = nic->rx.tail;
	nic->chip->ring_rx(nic);
	set_bit(VN_UP, &nic->state);
	local_bh_disable();
	__netif_tx_lock(vn_queue(nic), smp_processor_id());
	vn_xmit(skb, nic->dev);
	__netif_tx_unlock(vn_queue(nic));
	local_bh_enable();
	clear_bit(VN_UP, &nic->state);
	for (tries = 0; tries < 500 && !vn_test_heard(nic); tries++)
		usleep_range(1000, 2000);
	hrtimer_cancel(&nic->timer);
	nic->chip->stop(nic);
	nic->chip->reset(nic);
	return tries < 500;
}

static bool vn_test_loopback(struct vn_nic *nic)
{
	bool good = false;

	if (vn_tx_init(nic))
		return false;
	if (!vn_rx_init(nic)) {
		good = vn_test_frames(nic);
		vn_rx_free_ring(nic);
	}
	vn_tx_free_ring(nic);
	return good;
}

static bool vn_test_link(struct vn_nic *nic)
{
	int tries;

	for (tries = 0; tries < 40; tries++) {
		if (nic->chip->has_link(nic->chip->status(nic)))
			return true;
		msleep(100);
	}
	return false;
}

static void vn_test_offline(struct vn_nic *nic, u64 *verdicts)
{
	unsigned long flags = nic->flags;

	/* No technique that needs an interrupt. */
	nic->flags = 0;
	verdicts[0] = !nic->chip->test_registers(nic);
	nic->chip->reset(nic);
	verdicts[1] = !nic->chip->test_eeprom(nic);
	verdicts[2] = !vn_test_interrupts(nic);
	verdicts[3] = !vn_test_loopback(nic);
	nic->flags = flags;
}

void vn_self_test(struct net_device *dev, struct ethtool_test *test, u64 *verdicts)
{
	struct vn_nic *nic = netdev_priv(dev);
	bool up = netif_running(dev);
	int n;

	memset(verdicts, 0, VN_TESTS * sizeof(*verdicts));
	if (test->flags & ETH_TEST_FL_OFFLINE) {
		if (up)
			vn_close(dev);
		if (nic->chip->reset(nic))
			verdicts[0] = 1;
		else
			vn_test_offline(nic, verdicts);
		if (up && vn_open(dev))
			verdicts[4] = 1;
	}
	if (netif_running(dev))
		verdicts[4] |= !vn_test_link(nic);
	for (n = 0; n < VN_TESTS; n++)
		test->flags |= verdicts[n] ? ETH_TEST_FL_FAILED : 0;
}
