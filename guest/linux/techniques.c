// SPDX-License-Identifier: GPL-2.0 OR MIT
/* How the NIC is driven: module parameters, and the same live by private flags. */

#include <linux/module.h>

#include "vmlan_nic.h"

const char vn_flag_names[VN_FLAGS][ETH_GSTRING_LEN] = {
	[VN_CSB] = "csb",
	[VN_MODERATED] = "moderated",
	[VN_SEND_COMBINING] = "send-combining",
	[VN_LAZY_COMPLETION] = "lazy-completion",
	[VN_POLLING] = "polling",
	[VN_XMIT_MORE] = "xmit-more",
};

static bool vn_flag_defaults[VN_FLAGS] = { [VN_CSB] = true, [VN_XMIT_MORE] = true };

module_param_named(csb, vn_flag_defaults[VN_CSB], bool, 0444);
MODULE_PARM_DESC(csb, "shared status block instead of registers (default: on)");
module_param_named(moderated, vn_flag_defaults[VN_MODERATED], bool, 0444);
MODULE_PARM_DESC(moderated, "interrupts are moderated, see itr_us (default: off)");
module_param_named(send_combining, vn_flag_defaults[VN_SEND_COMBINING], bool, 0444);
MODULE_PARM_DESC(send_combining,
		 "doorbells wait for the completion of frames before (default: off); not with csb");
module_param_named(lazy_completion, vn_flag_defaults[VN_LAZY_COMPLETION], bool, 0444);
MODULE_PARM_DESC(lazy_completion,
		 "sent frames interrupt only while the queue is full (default: off)");
module_param_named(polling, vn_flag_defaults[VN_POLLING], bool, 0444);
MODULE_PARM_DESC(polling, "a timer instead of interrupts, see poll_us (default: off)");
module_param_named(xmit_more, vn_flag_defaults[VN_XMIT_MORE], bool, 0444);
MODULE_PARM_DESC(xmit_more, "one doorbell for what the stack sends together (default: on)");

bool vn_msi = true;
module_param_named(msi, vn_msi, bool, 0444);
MODULE_PARM_DESC(msi, "interrupts by MSI (default: on)");

/* A number with bounds. */
struct vn_number {
	unsigned int *value;
	unsigned int least;
	unsigned int most;
	bool power_of_two;
};

static int vn_set_number(const char *text, const struct kernel_param *param)
{
	const struct vn_number *number = param->arg;
	unsigned int value;
	int error = kstrtouint(text, 0, &value);

	if (error)
		return error;
	if (value < number->least || value > number->most ||
	    (number->power_of_two && value & (value - 1))) {
		pr_err(VN_NAME ": %s=%u: from %u to %u%s\n", param->name, value, number->least,
		       number->most, number->power_of_two ? ", a power of two" : "");
		return -EINVAL;
	}
	WRITE_ONCE(*number->value, value);
	return 0;
}

static int vn_get_number(char *text, const struct kernel_param *param)
{
	const struct vn_number *number = param->arg;

	return sysfs_emit(text, "%u\n", *number->value);
}

static const struct kernel_param_ops vn_number_ops = {
	.set = vn_set_number,
	.get = vn_get_number,
};

#define VN_NUMBER(name, standard, least, most, power, mode, text)				\
	unsigned int vn_##name = (standard);							\
	static const struct vn_number vn_number_##name = { &vn_##name, least, most, power };	\
	module_param_cb(name, &vn_number_ops, (void *)&vn_number_##name, mode);			\
	MODULE_PARM_DESC(name, text)

VN_NUMBER(ring, 256, VN_RING_LEAST, VN_RING_MOST, true, 0444, "descriptors of each ring (256)");
VN_NUMBER(itr_us, 62, 1, 16000, false, 0444, "time between moderated interrupts, in us (62)");
VN_NUMBER(sc_frames, 64, 1, 1024, false, 0644,
	  "frames that send combining holds back at most (64)");
VN_NUMBER(sc_us, 200, 10, 100000, false, 0644, "for how long it does at most, in us (200)");
VN_NUMBER(sc_rate, 2000, 0, 10000000, false, 0644,
	  "frames a second below which it does nothing (2000)");
VN_NUMBER(reap_us, 500, 10, 100000, false, 0644,
	  "sent frames are given back within, where they do not interrupt, in us (500)");
VN_NUMBER(poll_us, 200, 10, 10000, false, 0644, "time between polls, in us (200)");
VN_NUMBER(copybreak, 256, 0, VN_RX_BUFFER, false, 0644,
	  "received frames up to this length are copied (256)");

unsigned long vn_flags_at_load(void)
{
	unsigned long flags = 0;
	int flag;

	for (flag = 0; flag < VN_FLAGS; flag++)
		flags |= vn_flag_defaults[flag] ? BIT(flag) : 0;
	return flags;
}

/* A doorbell that is held back would wait for an interrupt that the CSB suppresses. */
static bool vn_are_at_odds(unsigned long flags)
{
	return flags & BIT(VN_CSB) && flags & BIT(VN_SEND_COMBINING);
}

int vn_check_parameters(void)
{
	if (!vn_are_at_odds(vn_flags_at_load()))
		return 0;
	pr_err(VN_NAME ": send_combining=1 goes with csb=0 only\n");
	return -EINVAL;
}

/* What the chip is told of the time between interrupts. */
u32 vn_moderation(const struct vn_nic *nic)
{
	u32 units = DIV_ROUND_CLOSEST(nic->moderation_us * NSEC_PER_USEC, nic->chip->moderation_ns);

	if (!vn_has(nic, VN_MODERATED))
		return 0;
	return clamp_t(u32, units, 1, nic->chip->moderation_most);
}

/* The CSB is turned on or off in mid-traffic (docs/csb.md). NAPI and the queue stand still. */
static void vn_switch_csb(struct vn_nic *nic, bool on)
{
	vn_rx_tell(nic);
	if (nic->tx.untold)
		vn_tx_tell(nic);
	if (on == nic->csb.on)
		return;
	if (on) {
		csb_start(&nic->csb, nic->tx.tail, nic->rx.told);
		return;
	}
	/*
	 * An old kick that stands in a register, or arrives once the CSB is off, would be taken
	 * for the current tail.
	 */
	nic->chip->ring_tx(nic);
	nic->chip->ring_rx(nic);
	nic->chip->status(nic);
	csb_stop(&nic->csb);
	nic->chip->ring_tx(nic);
	nic->chip->ring_rx(nic);
}

/* Called under RTNL. */
int vn_set_flags(struct vn_nic *nic, unsigned long flags)
{
	bool on = flags & BIT(VN_CSB) && !test_bit(VN_CSB_SILENT, &nic->state);

	if (vn_are_at_odds(flags)) {
		netdev_err(nic->dev, "send-combining goes with csb off only\n");
		return -EINVAL;
	}
	if (!test_bit(VN_UP, &nic->state)) {
		nic->flags = flags;
		return 0;
	}
	nic->chip->mask(nic);
	synchronize_irq(nic->irq);
	napi_disable(&nic->napi);
	/* A message that was not acknowledged would be the last. */
	nic->chip->causes(nic);
	netif_tx_lock_bh(nic->dev);
	if (nic->csb.on && nic->tx.wanted)
		csb_unwant_sent(&nic->csb);
	nic->tx.wanted = false;
	nic->tx.kicked = false;
	vn_switch_csb(nic, on);
	nic->flags = flags;
	nic->tx.in_flight = false;
	nic->chip->set_moderation(nic, vn_moderation(nic));
	netif_tx_unlock_bh(nic->dev);
	/* The first poll finds what came meanwhile, acknowledges it, and enables interrupts. */
	if (nic->msi)
		vn_enable(nic);
	nic->called = nic->msi ? !nic->csb.on : true;
	if (nic->csb.on && !nic->msi)
		vn_enable(nic);
	napi_enable(&nic->napi);
	local_bh_disable();
	napi_schedule(&nic->napi);
	local_bh_enable();
	return 0;
}
