// SPDX-License-Identifier: GPL-2.0 OR MIT
/* The receive ring. */

#include "vmlan_nic.h"

/* Buffers are given back with one write of the tail for so many. */
#define VN_RX_BATCH 16

int vn_rx_init(struct vn_nic *nic)
{
	struct vn_rx *rx = &nic->rx;

	rx->size = nic->ring_size;
	rx->next = 0;
	rx->tail = 0;
	rx->told = 0;
	rx->skip = false;
	rx->buffers = kvcalloc(rx->size, sizeof(*rx->buffers), GFP_KERNEL);
	rx->ring = dma_alloc_coherent(&nic->pdev->dev, rx->size * 16, &rx->dma, GFP_KERNEL);
	if (!rx->buffers || !rx->ring) {
		vn_rx_free_ring(nic);
		return -ENOMEM;
	}
	return 0;
}

static void vn_rx_unmap(struct vn_nic *nic, struct vn_rx_buffer *buffer)
{
	dma_unmap_single(&nic->pdev->dev, buffer->dma, VN_RX_BUFFER, DMA_FROM_DEVICE);
}

void vn_rx_free_ring(struct vn_nic *nic)
{
	struct vn_rx *rx = &nic->rx;
	u16 at;

	dev_kfree_skb_any(rx->skb);
	rx->skb = NULL;
	for (at = 0; rx->buffers && at < rx->size; at++) {
		if (!rx->buffers[at].data)
			continue;
		vn_rx_unmap(nic, &rx->buffers[at]);
		skb_free_frag(rx->buffers[at].data);
	}
	kvfree(rx->buffers);
	rx->buffers = NULL;
	if (rx->ring)
		dma_free_coherent(&nic->pdev->dev, rx->size * 16, rx->ring, rx->dma);
	rx->ring = NULL;
}

static bool vn_rx_new_buffer(struct vn_nic *nic, struct vn_rx_buffer *buffer)
{
	struct device *dma_dev = &nic->pdev->dev;

	buffer->data = netdev_alloc_frag(VN_RX_TRUESIZE);
	if (!buffer->data)
		return false;
	buffer->dma = dma_map_single(dma_dev, buffer->data + VN_RX_HEADROOM, VN_RX_BUFFER,
				     DMA_FROM_DEVICE);
	if (!dma_mapping_error(dma_dev, buffer->dma))
		return true;
	skb_free_frag(buffer->data);
	buffer->data = NULL;
	return false;
}

/* The device is told of the buffers that it was given. */
void vn_rx_tell(struct vn_nic *nic)
{
	struct vn_rx *rx = &nic->rx;
	u16 old = rx->told;

	if (old == rx->tail)
		return;
	rx->told = rx->tail;
	if (nic->csb.on && !csb_refill(&nic->csb, rx->size, old, rx->tail)) {
		rx->doorbells_saved++;
		return;
	}
	rx->doorbells++;
	nic->chip->ring_rx(nic);
}

/* Fills every descriptor but one. */
void vn_rx_refill(struct vn_nic *nic)
{
	struct vn_rx *rx = &nic->rx;
	u16 least = VN_RX_BATCH;

	/* A write for a good part of the ring does as well. */
	if (vn_has(nic, VN_SEND_COMBINING))
		least = rx->size / 4;
	while (vn_rx_posted(rx) < rx->size - 1) {
		struct vn_rx_buffer *buffer = &rx->buffers[rx->tail];

		if (!buffer->data && !vn_rx_new_buffer(nic, buffer)) {
			rx->alloc_failed++;
			vn_timer_within(nic, 10000);
			break;
		}
		nic->chip->rx_fill(nic, rx->tail, buffer->dma);
		rx->tail = vn_after(rx->tail, rx->size);
		if (vn_distance(rx->told, rx->tail, rx->size) >= least)
			vn_rx_tell(nic);
	}
	if (!vn_has(nic, VN_SEND_COMBINING))
		vn_rx_tell(nic);
}

/* A short frame is copied, and its buffer stays. */
static struct sk_buff *vn_rx_copy(struct vn_nic *nic, struct vn_rx_buffer *buffer, u16 len)
{
	struct device *dma_dev = &nic->pdev->dev;
	struct sk_buff *skb = napi_alloc_skb(&nic->napi, len);

	if (!skb)
		return NULL;
	dma_sync_single_for_cpu(dma_dev, buffer->dma, len, DMA_FROM_DEVICE);
	skb_put_data(skb, buffer->data + VN_RX_HEADROOM, len);
	dma_sync_single_for_device(dma_dev, buffer->dma, len, DMA_FROM_DEVICE);
	return skb;
}

static struct sk_buff *vn_rx_first(struct vn_nic *nic, struct vn_rx_buffer *buffer,
				   const struct vn_received *got)
{
	struct sk_buff *skb;

	if (got->end && got->len <= vn_copybreak)
		return vn_rx_copy(nic, buffer, got->len);
	skb = napi_build_skb(buffer->data, VN_RX_TRUESIZE);
	if (!skb)
		return NULL;
	vn_rx_unmap(nic, buffer);
	buffer->data = NULL;
	skb_reserve(skb, VN_RX_HEADROOM);
	skb_put(skb, got->len);
	return skb;
}

/* A further buffer of a long frame. */
static bool vn_rx_append(struct vn_nic *nic, struct vn_rx_buffer *buffer, u16 len)
{
	struct sk_buff *skb = nic->rx.skb;
	struct page *page = virt_to_head_page(buffer->data);

	if (skb_shinfo(skb)->nr_frags == MAX_SKB_FRAGS)
		return false;
	vn_rx_unmap(nic, buffer);
	skb_add_rx_frag(skb, skb_shinfo(skb)->nr_frags, page,
			buffer->data + VN_RX_HEADROOM - page_address(page), len, VN_RX_TRUESIZE);
	buffer->data = NULL;
	return true;
}

static void vn_rx_deliver(struct vn_nic *nic, const struct vn_received *got)
{
	struct vn_rx *rx = &nic->rx;
	struct sk_buff *skb = rx->skb;

	rx->skb = NULL;
	/* A first buffer may have less than a header, and the frame may be trimmed to less. */
	if (unlikely(!pskb_may_pull(skb, ETH_HLEN))) {
		rx->errors++;
		dev_kfree_skb_any(skb);
		return;
	}
	u64_stats_update_begin(&rx->sync);
	rx->packets++;
	rx->bytes += skb->len;
	if (is_multicast_ether_addr(skb->data) && !is_broadcast_ether_addr(skb->data))
		rx->multicast++;
	u64_stats_update_end(&rx->sync);
	if (got->sums_right && nic->dev->features & NETIF_F_RXCSUM)
		skb->ip_summed = CHECKSUM_UNNECESSARY;
	if (got->tagged)
		__vlan_hwaccel_put_tag(skb, htons(ETH_P_8021Q), got->tag);
	skb->protocol = eth_type_trans(skb, nic->dev);
	napi_gro_receive(&nic->napi, skb);
}

/* The frame is thrown away, up to its end. */
static void vn_rx_drop(struct vn_nic *nic, const struct vn_received *got, u64 *reason)
{
	struct vn_rx *rx = &nic->rx;

	if (!rx->skip)
		(*reason)++;
	dev_kfree_skb_any(rx->skb);
	rx->skb = NULL;
	rx->skip = !got->end;
}

/* Of a length that is the whole frame's only what is new counts. True: nothing is. */
static bool vn_rx_rest(struct vn_rx *rx, struct vn_received *got)
{
	u16 so_far = rx->skb ? rx->skb->len : 0;
	u16 total = got->len > ETH_FCS_LEN ? got->len - ETH_FCS_LEN : 0;

	if (!got->whole)
		return false;
	if (total > so_far || !rx->skb) {
		got->len = total - so_far;
		return false;
	}
	/* A part of the check sequence is in the buffer before. */
	return !pskb_trim(rx->skb, total);
}

/* One descriptor; true: a frame ended. Its buffer is gone, or is given to the device again. */
static bool vn_rx_one(struct vn_nic *nic, u16 at, struct vn_received *got)
{
	struct vn_rx *rx = &nic->rx;
	struct vn_rx_buffer *buffer = &rx->buffers[at];
	bool short_frame;

	if (!rx->skip && !got->bad && vn_rx_rest(rx, got)) {
		vn_rx_deliver(nic, got);
		return true;
	}
	short_frame = !rx->skb && got->end && got->len < ETH_HLEN;
	if (rx->skip || got->bad || !got->len || got->len > VN_RX_BUFFER || short_frame) {
		vn_rx_drop(nic, got, &rx->errors);
		return got->end;
	}
	if (!rx->skb) {
		rx->skb = vn_rx_first(nic, buffer, got);
		if (!rx->skb) {
			vn_rx_drop(nic, got, &rx->dropped);
			return got->end;
		}
	} else if (!vn_rx_append(nic, buffer, got->len)) {
		vn_rx_drop(nic, got, &rx->errors);
		return got->end;
	}
	if (got->end)
		vn_rx_deliver(nic, got);
	return got->end;
}

/* NAPI's part: at most so many frames, and at most one round of the ring, whatever it says. */
int vn_rx_poll(struct vn_nic *nic, int budget)
{
	struct vn_rx *rx = &nic->rx;
	int frames = 0;
	u16 looks;

	rx->polls++;
	for (looks = 0; frames < budget && looks < rx->size && vn_rx_posted(rx); looks++) {
		struct vn_received got = {};
		u16 at = rx->next;

		if (!nic->chip->rx_take(nic, at, &got))
			break;
		rx->next = vn_after(at, rx->size);
		frames += vn_rx_one(nic, at, &got);
		if (vn_distance(rx->tail, rx->next, rx->size) > 2 * VN_RX_BATCH)
			vn_rx_refill(nic);
	}
	vn_rx_refill(nic);
	return looks == rx->size ? budget : frames;
}

bool vn_rx_ready(struct vn_nic *nic)
{
	struct vn_received got = {};

	return vn_rx_posted(&nic->rx) && nic->chip->rx_take(nic, nic->rx.next, &got);
}
