/* SPDX-License-Identifier: GPL-2.0 OR MIT */
/* What differs between kernels from 6.1 on. */
#ifndef VMLAN_COMPAT_H
#define VMLAN_COMPAT_H

#include <linux/hrtimer.h>
#include <linux/pci.h>
#include <linux/version.h>

#if LINUX_VERSION_CODE < KERNEL_VERSION(6, 1, 0)
#error "vmlan_nic needs Linux 6.1 or later"
#endif

/* Half a word of a descriptor would be seen by the device, or seen of it. */
#ifndef CONFIG_64BIT
#error "vmlan_nic needs a 64-bit kernel: words of descriptors are read and written at once"
#endif

#ifndef PCI_IRQ_INTX
#define PCI_IRQ_INTX PCI_IRQ_LEGACY
#endif

static inline void vn_timer_setup(struct hrtimer *timer,
				  enum hrtimer_restart (*expired)(struct hrtimer *))
{
#if LINUX_VERSION_CODE >= KERNEL_VERSION(6, 13, 0)
	hrtimer_setup(timer, expired, CLOCK_MONOTONIC, HRTIMER_MODE_REL);
#else
	hrtimer_init(timer, CLOCK_MONOTONIC, HRTIMER_MODE_REL);
	timer->function = expired;
#endif
}

#endif
