/* SPDX-License-Identifier: GPL-2.0 */
/*
 * A double of /dev/knem for the lab: the declarations that its two files share. README.md describes the
 * purpose and the limits.
 *
 * A context is a descriptor that was opened for writing. A context has regions and, once mapped, slots for the
 * status of background copies. A region has plain references to the pages that were mapped at its creation,
 * and does not follow later changes of the mapping. A plain reference is not a pin: the next store of the
 * owner to a shared page gives the owner a copy.
 */
#ifndef LAB_KNEM_H
#define LAB_KNEM_H

#include <linux/fs.h>
#include <linux/idr.h>
#include <linux/kref.h>
#include <linux/list.h>
#include <linux/mm.h>
#include <linux/mutex.h>
#include <linux/uidgid.h>
#include <linux/workqueue.h>

#define KNEM_ABI 0xd
#define FEATURE_DMA 1

#define FLAG_DMA 1
#define FLAG_DMA_LATER 2
#define FLAG_DMA_THREAD 4
#define FLAG_COPY_THREAD 8
#define FLAG_PIN_LOCAL 16
#define FLAG_SINGLE_USE 32
#define FLAG_NOTIFY 64
#define FLAG_ANY_USER 128
#define FLAGS_LATER (FLAG_DMA_LATER | FLAG_DMA_THREAD | FLAG_COPY_THREAD)

enum status { PENDING, SUCCESS, FAILED };

struct piece { u64 base, len; };

/* The pages of a piece of memory. */
struct pinned {
	struct page **pages;
	u64 first;			/* offset in the first page */
	u64 len;
	unsigned long count;
	bool writable;
};

struct memory {
	struct pinned *pieces;
	u32 count;
	u64 len;
};

struct region {
	struct kref refs;
	struct context *context;
	struct memory memory;
	u32 id;				/* within the context */
	kuid_t uid;
	u32 protection;
	bool single_use, any_user;
};

struct context {
	struct idr regions;		/* by id; the lowest free one is next */
	u32 id;
	struct mutex lock;		/* the slots are made once */
	u8 *slots;
	unsigned long slot_count;
	struct workqueue_struct *later;
};

extern atomic64_t copies, created, destroyed;
extern unsigned int delay_ms;
extern bool dma;

/* The functions of knem_copy.c. */
long memory_pin(struct memory *memory, const struct piece __user *list, u32 count, bool writable);
void memory_unpin(struct memory *memory);
void region_put(struct region *region);
long copy_regions(struct context *context, struct region *from, u64 from_at, struct region *to, u64 to_at, u64 most,
		  u32 flags, u32 slot, u32 *status);
long copy_inline(struct context *context, const struct piece __user *list, u32 count, bool write, struct region *region,
		 u64 at, u64 most, u32 flags, u32 slot, u32 *status);

#endif
