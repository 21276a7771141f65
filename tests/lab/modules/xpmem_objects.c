// SPDX-License-Identifier: GPL-2.0
/*
 * The device and its objects: their references, the processes that have opened the device, and the end of their
 * objects.
 *
 * `registry` guards every list here and is never held across a sleep; so code that holds an mmap lock may take it,
 * for instance at the end of a mapping.
 */
#include "xpmem.h"

#include <linux/cred.h>
#include <linux/hashtable.h>
#include <linux/idr.h>
#include <linux/miscdevice.h>
#include <linux/module.h>
#include <linux/sched/mm.h>
#include <linux/shmem_fs.h>
#include <linux/slab.h>

DEFINE_SPINLOCK(registry);
struct file *shared;
struct workqueue_struct *endings;

static LIST_HEAD(parties);
static DEFINE_IDA(slots);
static DEFINE_MUTEX(opening);

/* ---- References ---- */

static void party_free(struct kref *refs)
{
	struct party *party = container_of(refs, struct party, refs);

	ida_free(&slots, party->slot);
	mmdrop(party->mm);
	kfree(party);
}

void party_put(struct party *party)
{
	kref_put(&party->refs, party_free);
}

static void segment_free(struct kref *refs)
{
	struct segment *segment = container_of(refs, struct segment, refs);

	party_put(segment->owner);
	kfree(segment);
}

void segment_put(struct segment *segment)
{
	kref_put(&segment->refs, segment_free);
}

static void permit_free(struct kref *refs)
{
	struct permit *permit = container_of(refs, struct permit, refs);

	segment_put(permit->segment);
	party_put(permit->holder);
	kfree(permit);
}

void permit_put(struct permit *permit)
{
	kref_put(&permit->refs, permit_free);
}

static void attachment_free(struct kref *refs)
{
	struct attachment *attachment = container_of(refs, struct attachment, refs);

	permit_put(attachment->permit);
	kfree(attachment);
}

void attachment_put(struct attachment *attachment)
{
	kref_put(&attachment->refs, attachment_free);
}

/* ---- Parties ---- */

/* Returns the party of the calling process, with a reference, if the process has opened the device. After exec, the
   process is another party. */
struct party *caller(void)
{
	struct party *party, *found = NULL;

	spin_lock(&registry);
	list_for_each_entry(party, &parties, all) {
		if (party->number == task_tgid_nr(current) && party->mm == current->mm) {
			kref_get(&party->refs);
			found = party;
			break;
		}
	}
	spin_unlock(&registry);
	return found;
}

/* Runs the end of a party in a work item, because the notifier cannot be removed inside its own callback. */
static void party_ending(struct work_struct *work)
{
	struct party *party = container_of(work, struct party, ending);

	mmu_interval_notifier_remove(&party->notifier);
	party_put(party);
}

void segment_drop(struct segment *segment)
{
	lockdep_assert_held(&registry);
	WRITE_ONCE(segment->gone, true);
	hash_del(&segment->hashed);
	list_del(&segment->own);
}

void permit_drop(struct permit *permit)
{
	lockdep_assert_held(&registry);
	permit->gone = true;
	hash_del(&permit->hashed);
	list_del(&permit->own);
}

/* Detaches all attachments of a permit, whose holder is the calling process. */
void permit_detach(struct permit *permit)
{
	for (;;) {
		struct attachment *attachment;

		spin_lock(&registry);
		attachment = list_first_entry_or_null(&permit->attachments, struct attachment, own);
		if (attachment) {
			list_del_init(&attachment->own);
			kref_get(&attachment->refs);
		}
		spin_unlock(&registry);
		if (!attachment)
			return;
		unmap_attachment(attachment);
		attachment_put(attachment);
	}
}

/* Ends all objects that this party made. The party's own attachments are unmapped here if their memory is that of
 * the caller; otherwise they are unmapped together with that memory. */
void party_end(struct party *party)
{
	struct segment *segment;
	struct permit *permit;
	bool mine = current->mm == party->mm;

	spin_lock(&registry);
	if (party->gone) {
		spin_unlock(&registry);
		return;
	}
	WRITE_ONCE(party->gone, true);
	list_del(&party->all);
	spin_unlock(&registry);
	zap(party, 0, U64_MAX);
	for (;;) {
		spin_lock(&registry);
		segment = list_first_entry_or_null(&party->segments, struct segment, own);
		if (segment)
			segment_drop(segment);
		spin_unlock(&registry);
		if (!segment)
			break;
		segment_put(segment);
	}
	for (;;) {
		spin_lock(&registry);
		permit = list_first_entry_or_null(&party->permits, struct permit, own);
		if (permit)
			permit_drop(permit);
		spin_unlock(&registry);
		if (!permit)
			break;
		if (mine)
			permit_detach(permit);
		permit_put(permit);
	}
	queue_work(endings, &party->ending);
}

static int xpmem_open(struct inode *inode, struct file *file)
{
	struct party *party;
	int slot, error = 0;

	/* All mappings belong to one inode, for any node that was opened. */
	file->f_mapping = shared->f_mapping;
	mutex_lock(&opening);
	party = caller();
	if (party) {
		party_put(party);
		goto out;
	}
	party = kzalloc(sizeof(*party), GFP_KERNEL);
	slot = ida_alloc_range(&slots, 1, MOST_PARTIES, GFP_KERNEL);
	error = slot < 0 ? slot : -ENOMEM;
	if (!party || slot < 0)
		goto undo;
	kref_init(&party->refs);
	INIT_LIST_HEAD(&party->segments);
	INIT_LIST_HEAD(&party->permits);
	INIT_WORK(&party->ending, party_ending);
	party->number = task_tgid_nr(current);
	party->mm = current->mm;
	party->uid = current_euid();
	party->gid = current_egid();
	party->slot = slot;
	error = mmu_interval_notifier_insert(&party->notifier, current->mm, 0, ULONG_MAX, &party_notifier);
	if (error)
		goto undo;
	mmgrab(party->mm);
	spin_lock(&registry);
	list_add(&party->all, &parties);
	spin_unlock(&registry);
	goto out;
undo:
	if (slot >= 0)
		ida_free(&slots, slot);
	kfree(party);
out:
	mutex_unlock(&opening);
	return error;
}

/* Handles every close of a descriptor. If a process closes its copy of another process's descriptor table, a fork
   has failed. */
static int xpmem_flush(struct file *file, fl_owner_t owner)
{
	struct party *party, *found = NULL;

	if (current->files && current->files != owner)
		return 0;
	spin_lock(&registry);
	list_for_each_entry(party, &parties, all) {
		if (party->number == task_tgid_nr(current)) {
			kref_get(&party->refs);
			found = party;
			break;
		}
	}
	spin_unlock(&registry);
	if (found) {
		party_end(found);
		party_put(found);
	}
	return 0;
}

/* ---- The module ---- */

static const struct file_operations device_operations = {
	.owner = THIS_MODULE,
	.open = xpmem_open,
	.flush = xpmem_flush,
	.mmap = xpmem_mmap,
	.unlocked_ioctl = xpmem_ioctl,
};

static struct miscdevice device = {
	.minor = MISC_DYNAMIC_MINOR,
	.name = "xpmem",
	.fops = &device_operations,
	.mode = 0666,
};

static int __init xpmem_start(void)
{
	int error = -ENOMEM;

	endings = alloc_workqueue("lab-xpmem", WQ_UNBOUND, 0);
	if (!endings)
		return error;
	/* The file stays empty, and provides the inode to which all mappings belong. */
	shared = shmem_file_setup("lab-xpmem", PAGE_SIZE, 0);
	if (IS_ERR(shared)) {
		destroy_workqueue(endings);
		return PTR_ERR(shared);
	}
	error = misc_register(&device);
	if (error) {
		fput(shared);
		destroy_workqueue(endings);
	}
	return error;
}

static void __exit xpmem_stop(void)
{
	misc_deregister(&device);
	/* No descriptor and no mapping exists here, because they would keep the module loaded. A party whose open has
	   failed midway may remain. */
	while (!list_empty(&parties))
		party_end(list_first_entry(&parties, struct party, all));
	/* The call waits for parties that are still ending. */
	destroy_workqueue(endings);
	fput(shared);
	ida_destroy(&slots);
	drop_stale();
}

static int counter_get(char *buffer, const struct kernel_param *param)
{
	return sprintf(buffer, "%lld\n", (long long)atomic64_read((atomic64_t *)param->arg));
}

static const struct kernel_param_ops counter = { .get = counter_get };

module_param_cb(faults, &counter, &faults, 0444);
module_param_cb(zaps, &counter, &zaps, 0444);
module_param_cb(attached, &counter, &attached, 0444);
module_param_cb(detached, &counter, &detached, 0444);
module_param_cb(stale, &counter, &stale, 0444);

module_init(xpmem_start);
module_exit(xpmem_stop);
MODULE_DESCRIPTION("A double of the xpmem interface for tests in a virtual machine");
MODULE_LICENSE("GPL");
