// SPDX-License-Identifier: GPL-2.0
/*
 * References to memory, and copies into and out of it, inline or in the background.
 */
#include "knem.h"

#include <linux/delay.h>
#include <linux/highmem.h>
#include <linux/overflow.h>
#include <linux/slab.h>
#include <linux/uaccess.h>

#define MOST_PIECES 65536

/* ---- Memory ---- */

static void piece_unpin(struct pinned *piece)
{
	unsigned long i;

	for (i = 0; i < piece->count; i++) {
		if (piece->writable)
			set_page_dirty_lock(piece->pages[i]);
		put_page(piece->pages[i]);
	}
	kvfree(piece->pages);
}

void memory_unpin(struct memory *memory)
{
	u32 i;

	for (i = 0; i < memory->count; i++)
		piece_unpin(&memory->pieces[i]);
	kvfree(memory->pieces);
	memory->pieces = NULL;
	memory->count = 0;
}

static long piece_pin(struct pinned *piece, struct piece asked, bool writable)
{
	unsigned long start = asked.base & PAGE_MASK, count;
	u64 end;
	long got;

	if (check_add_overflow(asked.base, asked.len, &end) || end > TASK_SIZE)
		return -EFAULT;
	piece->first = asked.base - start;
	piece->len = asked.len;
	piece->writable = writable;
	count = asked.len ? (PAGE_ALIGN(end) - start) >> PAGE_SHIFT : 0;
	piece->pages = kvcalloc(max(count, 1UL), sizeof(struct page *), GFP_KERNEL);
	if (!piece->pages)
		return -ENOMEM;
	while (piece->count < count) {
		/* The function does not use pin_user_pages: as in the real module, a fork ignores these pages. */
		got = get_user_pages_fast(start + (piece->count << PAGE_SHIFT), min(count - piece->count, 1024UL),
					  writable ? FOLL_WRITE : 0, piece->pages + piece->count);
		if (got <= 0) {
			piece_unpin(piece);
			return got == -ENOMEM ? -ENOMEM : -EFAULT;
		}
		piece->count += got;
	}
	return 0;
}

long memory_pin(struct memory *memory, const struct piece __user *list, u32 count, bool writable)
{
	struct piece asked;
	long error = 0;

	memory->count = 0;
	memory->len = 0;
	if (count > MOST_PIECES)
		return -EINVAL;
	memory->pieces = kvcalloc(max(count, 1U), sizeof(struct pinned), GFP_KERNEL);
	if (!memory->pieces)
		return -ENOMEM;
	while (memory->count < count && !error) {
		if (copy_from_user(&asked, &list[memory->count], sizeof(asked)))
			error = -EFAULT;
		else
			error = piece_pin(&memory->pieces[memory->count], asked, writable);
		if (!error) {
			memory->count++;
			memory->len += asked.len;
		}
	}
	if (error)
		memory_unpin(memory);
	return error;
}

static void region_free(struct kref *refs)
{
	struct region *region = container_of(refs, struct region, refs);

	memory_unpin(&region->memory);
	kfree(region);
}

void region_put(struct region *region)
{
	kref_put(&region->refs, region_free);
}

/* Maps the page at that offset, and writes the number of bytes from the offset to the end of the page. The
   caller unmaps the page. */
static u8 *window(const struct memory *memory, u64 at, u64 *left)
{
	u32 i;

	for (i = 0; i < memory->count; i++) {
		const struct pinned *piece = &memory->pieces[i];
		u64 place;

		if (at >= piece->len) {
			at -= piece->len;
			continue;
		}
		place = piece->first + at;
		*left = min_t(u64, PAGE_SIZE - (place & ~PAGE_MASK), piece->len - at);
		return (u8 *)kmap_local_page(piece->pages[place >> PAGE_SHIFT]) + (place & ~PAGE_MASK);
	}
	return NULL;
}

/* ---- Copies ---- */

/* Returns the length of a copy, which ends without an error at the end of the shorter side. */
static u64 bounded(u64 most, u64 one, u64 one_at, u64 other, u64 other_at)
{
	most = min(most, one > one_at ? one - one_at : 0);
	return min(most, other > other_at ? other - other_at : 0);
}

static void copy_pinned(const struct memory *to, u64 to_at, const struct memory *from, u64 from_at, u64 len)
{
	while (len) {
		u64 here = 0, there = 0, now;
		u8 *source = window(from, from_at, &here);
		u8 *target = window(to, to_at, &there);

		now = min3(here, there, len);
		memmove(target, source, now);
		kunmap_local(target);
		kunmap_local(source);
		from_at += now;
		to_at += now;
		len -= now;
		cond_resched();
	}
}

/* A copy in the background. */
struct later {
	struct work_struct work;
	struct context *context;
	struct region *from, *to;
	struct memory local;
	const struct memory *source, *target;
	u64 from_at, to_at, len;
	u32 slot;
};

static void copy_now(struct work_struct *work)
{
	struct later *later = container_of(work, struct later, work);

	if (delay_ms)
		msleep(delay_ms);
	copy_pinned(later->target, later->to_at, later->source, later->from_at, later->len);
	atomic64_inc(&copies);
	if (later->from)
		region_put(later->from);
	if (later->to)
		region_put(later->to);
	memory_unpin(&later->local);
	/* A reader that loads the slot with acquire reads the copied bytes. */
	smp_store_release(&later->context->slots[later->slot], (u8)SUCCESS);
	kfree(later);
}

static bool has_slot(struct context *context, u32 slot)
{
	return smp_load_acquire(&context->slots) && slot < context->slot_count;
}

static bool is_later(u32 flags)
{
	/* Without an engine, the DMA flag has no effect. */
	return flags & FLAG_COPY_THREAD || (dma && flags & FLAG_DMA && flags & FLAGS_LATER);
}

static struct later *prepare(struct context *context, struct region *from, struct region *to, u32 slot)
{
	struct later *later = kzalloc(sizeof(*later), GFP_KERNEL);

	if (!later)
		return NULL;
	INIT_WORK(&later->work, copy_now);
	later->context = context;
	later->from = from;
	later->to = to;
	later->slot = slot;
	return later;
}

static void start(struct later *later)
{
	if (later->from)
		kref_get(&later->from->refs);
	if (later->to)
		kref_get(&later->to->refs);
	WRITE_ONCE(later->context->slots[later->slot], (u8)PENDING);
	queue_work(later->context->later, &later->work);
}

long copy_regions(struct context *context, struct region *from, u64 from_at, struct region *to, u64 to_at, u64 most,
		  u32 flags, u32 slot, u32 *status)
{
	u64 len = bounded(most, from->memory.len, from_at, to->memory.len, to_at);
	struct later *later;

	if (!is_later(flags)) {
		copy_pinned(&to->memory, to_at, &from->memory, from_at, len);
		atomic64_inc(&copies);
		*status = SUCCESS;
		return 0;
	}
	if (!has_slot(context, slot))
		return -EINVAL;
	later = prepare(context, from, to, slot);
	if (!later)
		return -ENOMEM;
	later->source = &from->memory;
	later->target = &to->memory;
	later->from_at = from_at;
	later->to_at = to_at;
	later->len = len;
	*status = PENDING;
	start(later);
	return 0;
}

/* Copies between the caller's memory, which is not pinned, and a region. Returns false if the caller's
 * memory is not mapped. */
static bool copy_local(const struct piece __user *list, u32 count, bool write, struct region *region, u64 at, u64 most)
{
	u32 i;

	for (i = 0; i < count && most; i++) {
		struct piece piece;

		if (copy_from_user(&piece, &list[i], sizeof(piece)))
			return false;
		while (piece.len && most) {
			u64 here = 0, now;
			u8 *place = window(&region->memory, at, &here);
			unsigned long left;

			if (!place)
				return true;
			now = min3(here, piece.len, most);
			left = write ? copy_from_user(place, (void __user *)piece.base, now) :
				       copy_to_user((void __user *)piece.base, place, now);
			kunmap_local(place);
			if (left)
				return false;
			piece.base += now;
			piece.len -= now;
			at += now;
			most -= now;
			cond_resched();
		}
	}
	return true;
}

long copy_inline(struct context *context, const struct piece __user *list, u32 count, bool write, struct region *region,
		 u64 at, u64 most, u32 flags, u32 slot, u32 *status)
{
	struct later *later;
	u64 len;

	if (count > MOST_PIECES)
		return -EINVAL;
	if (!is_later(flags)) {
		bool is_there = copy_local(list, count, write, region, at, most);

		if (!is_there && write)
			return -EFAULT;
		*status = is_there ? SUCCESS : FAILED;
		atomic64_inc(&copies);
		return 0;
	}
	if (!has_slot(context, slot))
		return -EINVAL;
	later = prepare(context, write ? NULL : region, write ? region : NULL, slot);
	if (!later)
		return -ENOMEM;
	if (memory_pin(&later->local, list, count, !write)) {
		kfree(later);
		*status = FAILED;
		return 0;
	}
	len = bounded(most, later->local.len, 0, region->memory.len, at);
	later->source = write ? &later->local : &region->memory;
	later->target = write ? &region->memory : &later->local;
	later->from_at = write ? 0 : at;
	later->to_at = write ? at : 0;
	later->len = len;
	*status = PENDING;
	start(later);
	return 0;
}
