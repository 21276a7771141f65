// SPDX-License-Identifier: GPL-2.0
/*
 * Attachments: mappings of another process's pages. Faults make the entries of an attachment; entries are removed
 * when the other process unmaps, discards, copies on write, protects or ends.
 *
 * A fault reads the sequence number of the source's notifier, pins the page, makes the entry, and reads the number
 * again: if an invalidation happened in between, the entry is removed. The page is therefore released immediately,
 * and does not stay pinned. If `stale_us` is set, the entry stays as in the real module, and the page stays
 * pinned.
 */
#include "xpmem.h"

#include <linux/delay.h>
#include <linux/highmem.h>
#include <linux/mman.h>
#include <linux/moduleparam.h>
#include <linux/sched/mm.h>
#include <linux/sched/signal.h>

#define PAGES_AFTER 16

atomic64_t faults, zaps, attached, detached;

/* The additional duration of each fault, in microseconds. The faults of an attach also take this additional time. */
static unsigned int fault_us;
module_param(fault_us, uint, 0644);

/* The pause of a fault between finding the page and making the entry, in microseconds. Unless the pause is 0, the
 * fault ignores the second sequence number: the entry stays although the source has since replaced the page, until
 * the next invalidation of the page. */
static unsigned int stale_us;
module_param(stale_us, uint, 0644);

/* The maximum number of pages of such entries: the pages must not be reused while the entry exists. */
#define MOST_STALE 4096
static struct page *stale_pages[MOST_STALE];
static atomic_t stale_count;
atomic64_t stale;

static LIST_HEAD(intents);
static DEFINE_SPINLOCK(intents_lock);

static void begin(struct intent *intent, enum doing doing, struct attachment *attachment)
{
	intent->task = current;
	intent->doing = doing;
	intent->attachment = attachment;
	spin_lock(&intents_lock);
	list_add(&intent->all, &intents);
	spin_unlock(&intents_lock);
}

static void end(struct intent *intent)
{
	spin_lock(&intents_lock);
	list_del(&intent->all);
	spin_unlock(&intents_lock);
}

/* Finds whether this process is in this action; if `attachment` is set, in the action on this attachment. */
static struct attachment *is_doing(enum doing doing, struct attachment *attachment, bool *found)
{
	struct intent *intent;
	struct attachment *of = NULL;

	*found = false;
	spin_lock(&intents_lock);
	list_for_each_entry(intent, &intents, all) {
		if (intent->task != current || intent->doing != doing)
			continue;
		if (attachment && intent->attachment != attachment)
			continue;
		*found = true;
		of = intent->attachment;
		break;
	}
	spin_unlock(&intents_lock);
	return of;
}

/* ---- Entries ---- */

static pgoff_t place(const struct party *party, u64 address)
{
	return (party->slot << SLOT_SHIFT) + (address >> PAGE_SHIFT);
}

/* Removes every entry of that memory. The function waits for faults that make such an entry, so it takes no lock
 * that a fault holds. */
void zap(struct party *party, u64 start, u64 end_)
{
	struct intent intent;
	u64 first = start >> PAGE_SHIFT, last = (end_ - 1) >> PAGE_SHIFT;

	last = min_t(u64, last, (1UL << SLOT_SHIFT) - 1);
	/* The matching barrier is in xpmem_fault: the side that arrives second sees the change of the first side. */
	smp_mb();
	if (!atomic_read(&party->used) || first > last)
		return;
	atomic64_inc(&zaps);
	/* Removing an attacher's entries also calls the notifier of the attacher's process. The notifier must do nothing
	 * then: attached memory cannot be attached again, and the notifier would need the lock that this function holds. */
	begin(&intent, ZAPPING, NULL);
	unmap_mapping_pages(shared->f_mapping, place(party, start), last - first + 1, true);
	end(&intent);
}

static bool invalidate(struct mmu_interval_notifier *notifier, const struct mmu_notifier_range *range, unsigned long number)
{
	struct party *party = container_of(notifier, struct party, notifier);
	bool nested;

	is_doing(ZAPPING, NULL, &nested);
	if (nested)
		return true;
	if (!mmu_notifier_range_blockable(range))
		return false;
	mmu_interval_set_seq(notifier, number);
	if (range->event == MMU_NOTIFY_RELEASE)
		party_end(party);
	else
		zap(party, range->start, range->end);
	return true;
}

const struct mmu_interval_notifier_ops party_notifier = { .invalidate = invalidate };

/* Brings in up to `most` pages of the source, all of them writable if the first page is writable. Copy-on-write of
 * the source's pages is broken by this, so that the source and its attachers continue to share the pages. Read-only
 * pages are brought in one at a time. */
static long bring_in(struct mm_struct *mm, u64 from, long most, bool write, struct page **pages, bool *writable)
{
	long got = get_user_pages_remote(mm, from, most, FOLL_WRITE, pages, NULL, NULL);

	*writable = true;
	if (got > 0 || write)
		return got;
	*writable = false;
	return get_user_pages_remote(mm, from, 1, 0, pages, NULL, NULL);
}

/* Makes the fault retry, because another thread changes the source's memory and holds the source's lock. A fault
   must not wait for the source's lock while it holds its own. */
static vm_fault_t again_later(struct vm_fault *vmf, struct mm_struct *mm)
{
	if (!(vmf->flags & FAULT_FLAG_ALLOW_RETRY))
		return VM_FAULT_NOPAGE;
	if (vmf->flags & FAULT_FLAG_RETRY_NOWAIT)
		return VM_FAULT_RETRY;
	mmap_read_unlock(vmf->vma->vm_mm);
	if (!mmap_read_lock_killable(mm))
		mmap_read_unlock(mm);
	return VM_FAULT_RETRY;
}

static vm_fault_t insert(struct vm_fault *vmf, struct page **pages, long count, bool writable)
{
	struct vm_area_struct *vma = vmf->vma;
	unsigned long address = vmf->address & PAGE_MASK;
	vm_fault_t result = VM_FAULT_NOPAGE;
	/* The code does not use vm_page_prot, because a mapping with pfn_mkwrite has a read-only value. */
	pgprot_t protection = vm_get_page_prot(writable ? vma->vm_flags : vma->vm_flags & ~VM_WRITE);
	long i;

	for (i = 0; i < count && result == VM_FAULT_NOPAGE; i++)
		result = vmf_insert_pfn_prot(vma, address + i * PAGE_SIZE, page_to_pfn(pages[i]), protection);
	return i > 1 ? VM_FAULT_NOPAGE : result;
}

/* Keeps pages until the module is unloaded. Returns false if there are too many pages: then the entries are removed. */
static bool keep_stale(struct page **pages, long count)
{
	int first = atomic_add_return(count, &stale_count) - count;
	long i;

	if (first + count > MOST_STALE) {
		atomic_sub(count, &stale_count);
		return false;
	}
	for (i = 0; i < count; i++) {
		get_page(pages[i]);
		stale_pages[first + i] = pages[i];
	}
	atomic64_inc(&stale);
	return true;
}

void drop_stale(void)
{
	int i;

	for (i = 0; i < atomic_read(&stale_count); i++)
		put_page(stale_pages[i]);
}

static vm_fault_t xpmem_fault(struct vm_fault *vmf)
{
	struct vm_area_struct *vma = vmf->vma;
	struct attachment *attachment = vma->vm_private_data;
	struct segment *segment = attachment->permit->segment;
	struct party *source = segment->owner;
	struct mm_struct *mm = source->mm;
	u64 from = (u64)(vmf->pgoff & ((1UL << SLOT_SHIFT) - 1)) << PAGE_SHIFT;
	long most = min_t(long, 1 + PAGES_AFTER, (vma->vm_end - (vmf->address & PAGE_MASK)) >> PAGE_SHIFT);
	bool own = mm == vma->vm_mm, write = vmf->flags & FAULT_FLAG_WRITE;
	struct page *pages[1 + PAGES_AFTER];
	vm_fault_t result;
	int tries;

	atomic64_inc(&faults);
	if (fault_us)
		udelay(min(fault_us, 1000u));
	/* The segment of a source that is ending is treated as empty; its remaining memory may be freed. */
	if (!segment_counts(segment) || !mmget_not_zero(mm))
		return VM_FAULT_SIGBUS;
	for (tries = 0, result = VM_FAULT_NOPAGE; tries < 4; tries++) {
		unsigned long number = mmu_interval_read_begin(&source->notifier);
		bool writable;
		long got, i;

		if (!own && !mmap_read_trylock(mm)) {
			result = again_later(vmf, mm);
			break;
		}
		got = bring_in(mm, from, most, write, pages, &writable);
		if (!own)
			mmap_read_unlock(mm);
		if (got <= 0) {
			result = got == -ENOMEM ? VM_FAULT_OOM : VM_FAULT_SIGBUS;
			break;
		}
		if (stale_us)
			udelay(min(stale_us, 1000u));
		result = insert(vmf, pages, got, writable);
		/* The matching barrier is in zap. */
		smp_mb();
		if (!segment_counts(segment)) {
			zap(source, from, from + got * PAGE_SIZE);
			result = VM_FAULT_SIGBUS;
		}
		if (!mmu_interval_read_retry(&source->notifier, number) || (stale_us && keep_stale(pages, got)))
			tries = 4;
		else
			zap(source, from, from + got * PAGE_SIZE);
		for (i = 0; i < got; i++)
			put_page(pages[i]);
		if (result != VM_FAULT_NOPAGE)
			break;
	}
	/* The code does not use mmput, because the end of the last user would unmap here, inside a fault. */
	mmput_async(mm);
	return result;
}

/* Handles a store to a page that is read-only in the source. If the source gets write access later, its notifier is
 * called and removes the entry. */
static vm_fault_t xpmem_no_store(struct vm_fault *vmf)
{
	return VM_FAULT_SIGBUS;
}

/* ---- Mappings ---- */

static void xpmem_open_piece(struct vm_area_struct *vma)
{
	struct attachment *attachment = vma->vm_private_data;

	kref_get(&attachment->refs);
	atomic_inc(&attachment->pieces);
	atomic_inc(&attachment->permit->segment->owner->used);
}

static void xpmem_close_piece(struct vm_area_struct *vma)
{
	struct attachment *attachment = vma->vm_private_data;
	bool whole = vma->vm_start == attachment->start && vma->vm_end - vma->vm_start == attachment->size;
	bool meant, failed;

	is_doing(DETACHING, attachment, &meant);
	is_doing(ATTACHING, attachment, &failed);
	/* An attachment ends by a command of the device, or with its process. The process may unmap a part of an
	   attachment. */
	if (whole && !meant && !failed && atomic_read(&vma->vm_mm->mm_users))
		send_sig(SIGKILL, current, 1);
	if (atomic_dec_and_test(&attachment->pieces)) {
		spin_lock(&registry);
		list_del_init(&attachment->own);
		spin_unlock(&registry);
		atomic64_inc(&detached);
	}
	atomic_dec(&attachment->permit->segment->owner->used);
	attachment_put(attachment);
}

static const struct vm_operations_struct operations = {
	.open = xpmem_open_piece,
	.close = xpmem_close_piece,
	.fault = xpmem_fault,
	.pfn_mkwrite = xpmem_no_store,
};

int xpmem_mmap(struct file *file, struct vm_area_struct *vma)
{
	bool asked;
	struct attachment *attachment = is_doing(ATTACHING, NULL, &asked);
	struct permit *permit;

	if (!asked)
		return -EINVAL;
	permit = attachment->permit;
	spin_lock(&registry);
	if (permit->gone || !segment_counts(permit->segment)) {
		spin_unlock(&registry);
		return -ENOENT;
	}
	list_add(&attachment->own, &permit->attachments);
	attachment->start = vma->vm_start;
	spin_unlock(&registry);
	vma->vm_pgoff = place(permit->segment->owner, permit->segment->start + attachment->offset);
	vma->vm_flags |= VM_PFNMAP | VM_DONTCOPY | VM_DONTEXPAND | VM_DONTDUMP;
	vma->vm_private_data = attachment;
	vma->vm_ops = &operations;
	xpmem_open_piece(vma);
	atomic64_inc(&attached);
	return 0;
}

long map_attachment(struct file *file, struct attachment *attachment, unsigned long address)
{
	struct intent intent;
	unsigned long flags = MAP_SHARED | (address ? MAP_FIXED : 0);
	long at;

	begin(&intent, ATTACHING, attachment);
	at = vm_mmap(file, address, attachment->size, PROT_READ | PROT_WRITE, flags, 0);
	end(&intent);
	return at;
}

/* Unmaps an attachment, which must belong to the calling process. */
void unmap_attachment(struct attachment *attachment)
{
	struct intent intent;
	bool first;

	spin_lock(&registry);
	first = !attachment->detaching;
	attachment->detaching = true;
	spin_unlock(&registry);
	if (!first)
		return;
	begin(&intent, DETACHING, attachment);
	vm_munmap(attachment->start, attachment->size);
	end(&intent);
}

/* Returns the attachment at this address, with a reference. Returns null, and sets `nothing`, if no memory is mapped
   there. */
struct attachment *attachment_at(unsigned long address, bool *nothing)
{
	struct attachment *attachment = NULL;
	struct vm_area_struct *vma;

	mmap_read_lock(current->mm);
	vma = find_vma(current->mm, address);
	*nothing = !vma || vma->vm_start > address;
	if (!*nothing && vma->vm_ops == &operations) {
		attachment = vma->vm_private_data;
		kref_get(&attachment->refs);
	}
	mmap_read_unlock(current->mm);
	return attachment;
}

bool overlaps_attachment(unsigned long address, unsigned long size)
{
	struct vm_area_struct *vma;
	bool found = false;

	mmap_read_lock(current->mm);
	for (vma = find_vma(current->mm, address); vma && vma->vm_start < address + size && !found;
	     vma = find_vma(current->mm, vma->vm_end))
		found = vma->vm_ops == &operations;
	mmap_read_unlock(current->mm);
	return found;
}
