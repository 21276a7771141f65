// SPDX-License-Identifier: GPL-2.0
/*
 * The device and its objects: who made which segment, who holds which permit, and what each command answers.
 *
 * `registry` guards every list here and is never held while something sleeps; so it may be taken inside the lock of any
 * mmap, as a mapping's end does.
 */
#include "xpmem.h"

#include <linux/capability.h>
#include <linux/cred.h>
#include <linux/hashtable.h>
#include <linux/idr.h>
#include <linux/miscdevice.h>
#include <linux/module.h>
#include <linux/sched/mm.h>
#include <linux/shmem_fs.h>
#include <linux/slab.h>
#include <linux/uaccess.h>

#define VERSION 0x00027004
/* This process inherited the descriptor and did not open the device itself. Of no libc. */
#define NOT_OPENED 2004

#define CMD_VERSION 0x7800
#define CMD_MAKE 0x7801
#define CMD_REMOVE 0x7802
#define CMD_GET 0x7803
#define CMD_RELEASE 0x7804
#define CMD_ATTACH 0x7805
#define CMD_DETACH 0x7806
#define CMD_FORK_BEGIN 0x7807
#define CMD_FORK_END 0x7808

struct make_args { u64 start, size; s32 kind; u32 pad; u64 mode; s64 segid; };
struct get_args { s64 segid; s32 flags, kind; u64 zero; s64 apid; };
struct attach_args { s64 apid, offset; u64 size, address; s32 fd, flags; };
static_assert(sizeof(struct make_args) == 40 && sizeof(struct get_args) == 32 && sizeof(struct attach_args) == 40);

DEFINE_SPINLOCK(registry);
struct file *shared;
struct workqueue_struct *endings;

static LIST_HEAD(parties);
static DEFINE_HASHTABLE(segments, 10);
static DEFINE_HASHTABLE(permits, 10);
static DEFINE_IDA(slots);
static DEFINE_MUTEX(opening);

/* ---- What keeps what ---- */

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

static void segment_put(struct segment *segment)
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

static void permit_put(struct permit *permit)
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

/* The calling process, if it opened the device, with a reference. After exec it is another one. */
static struct party *caller(void)
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

/* The notifier cannot be removed where it calls. */
static void party_ending(struct work_struct *work)
{
	struct party *party = container_of(work, struct party, ending);

	mmu_interval_notifier_remove(&party->notifier);
	party_put(party);
}

static void segment_drop(struct segment *segment)
{
	lockdep_assert_held(&registry);
	WRITE_ONCE(segment->gone, true);
	hash_del(&segment->hashed);
	list_del(&segment->own);
}

static void permit_drop(struct permit *permit)
{
	lockdep_assert_held(&registry);
	permit->gone = true;
	hash_del(&permit->hashed);
	list_del(&permit->own);
}

/* All attachments that a permit's holder, the calling process, made by it. */
static void permit_detach(struct permit *permit)
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

/* Nothing that this process made counts any more. Its own attachments go where its memory is the caller's; else they
 * have gone, or go, with that memory. */
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

	/* All mappings belong to one inode, whichever node was opened. */
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

/* Runs at every close. What closes its copy of somebody else's descriptors is a fork that was given up. */
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

/* ---- Commands ---- */

static struct segment *segment_find(s64 id)
{
	struct segment *segment;

	hash_for_each_possible(segments, segment, hashed, id)
		if (segment->id == id)
			return segment;
	return NULL;
}

static struct permit *permit_find(s64 id)
{
	struct permit *permit;

	hash_for_each_possible(permits, permit, hashed, id)
		if (permit->id == id)
			return permit;
	return NULL;
}

static s64 next_id(const struct party *party, u32 *made)
{
	return ((s64)++*made << 32) | party->number;
}

static long make(struct party *party, struct make_args __user *from)
{
	struct make_args args;
	struct segment *segment;

	if (copy_from_user(&args, from, sizeof(args)))
		return -EFAULT;
	if (args.kind != 1 || args.mode & ~0777ULL || !args.size)
		return -EINVAL;
	if (args.size == U64_MAX && args.start < TASK_SIZE)
		args.size = TASK_SIZE - args.start;
	if ((args.start | args.size) & ~PAGE_MASK)
		return -EINVAL;
	if (args.start >= TASK_SIZE || args.size > TASK_SIZE - args.start)
		return -EINVAL;
	if (!party)
		return -NOT_OPENED;
	segment = kzalloc(sizeof(*segment), GFP_KERNEL);
	if (!segment)
		return -ENOMEM;
	kref_init(&segment->refs);
	kref_get(&party->refs);
	segment->owner = party;
	segment->start = args.start;
	segment->size = args.size;
	segment->mode = args.mode;
	spin_lock(&registry);
	if (party->gone) {
		spin_unlock(&registry);
		segment_put(segment);
		return -NOT_OPENED;
	}
	args.segid = segment->id = next_id(party, &party->segments_made);
	hash_add(segments, &segment->hashed, segment->id);
	list_add(&segment->own, &party->segments);
	spin_unlock(&registry);
	return put_user(args.segid, &from->segid) ? -EFAULT : 0;
}

static long remove(struct party *party, s64 __user *from)
{
	struct segment *segment;
	long error = 0;
	s64 id;

	if (get_user(id, from))
		return -EFAULT;
	if (id <= 0)
		return -EINVAL;
	spin_lock(&registry);
	segment = segment_find(id);
	if (!segment)
		error = -ENOENT;
	else if (segment->owner != party)
		error = -EACCES;
	else
		segment_drop(segment);
	spin_unlock(&registry);
	if (error)
		return error;
	/* Entries of its other segments are taken out with them, and come back. */
	zap(party, segment->start, segment->start + segment->size);
	segment_put(segment);
	return 0;
}

/* As for System V shared memory. */
static bool allowed(const struct segment *segment, bool writes)
{
	unsigned int asked = writes ? 6 : 4, granted = segment->mode;

	if (uid_eq(current_euid(), segment->owner->uid))
		granted >>= 6;
	else if (in_egroup_p(segment->owner->gid))
		granted >>= 3;
	return !(asked & ~granted) || capable(CAP_IPC_OWNER);
}

static long get(struct party *party, struct get_args __user *from)
{
	struct get_args args;
	struct permit *permit;
	struct segment *segment;
	long error = 0;

	if (copy_from_user(&args, from, sizeof(args)))
		return -EFAULT;
	if (args.segid <= 0 || (args.flags != 1 && args.flags != 2) || args.kind != 1 || args.zero)
		return -EINVAL;
	if (!party)
		return -NOT_OPENED;
	permit = kzalloc(sizeof(*permit), GFP_KERNEL);
	if (!permit)
		return -ENOMEM;
	kref_init(&permit->refs);
	INIT_LIST_HEAD(&permit->attachments);
	permit->writes = args.flags == 2;
	spin_lock(&registry);
	segment = segment_find(args.segid);
	if (segment)
		kref_get(&segment->refs);
	spin_unlock(&registry);
	if (!segment)
		error = -ENOENT;
	else if (!allowed(segment, permit->writes))
		error = -EACCES;
	if (error) {
		if (segment)
			segment_put(segment);
		kfree(permit);
		return error;
	}
	kref_get(&party->refs);
	permit->holder = party;
	permit->segment = segment;
	spin_lock(&registry);
	if (party->gone || segment->gone) {
		error = party->gone ? -NOT_OPENED : -ENOENT;
		spin_unlock(&registry);
		permit_put(permit);
		return error;
	}
	args.apid = permit->id = next_id(party, &party->permits_made);
	hash_add(permits, &permit->hashed, permit->id);
	list_add(&permit->own, &party->permits);
	spin_unlock(&registry);
	return put_user(args.apid, &from->apid) ? -EFAULT : 0;
}

/* A permit of the calling process, with a reference; with `drop`, the one that the registry had. */
static struct permit *own_permit(struct party *party, s64 id, bool drop)
{
	struct permit *permit;

	if (id <= 0)
		return ERR_PTR(-EINVAL);
	spin_lock(&registry);
	permit = permit_find(id);
	if (!permit)
		permit = ERR_PTR(-ENOENT);
	else if (permit->holder != party)
		permit = ERR_PTR(-EACCES);
	else if (drop)
		permit_drop(permit);
	else
		kref_get(&permit->refs);
	spin_unlock(&registry);
	return permit;
}

static long release(struct party *party, s64 __user *from)
{
	struct permit *permit;
	s64 id;

	if (get_user(id, from))
		return -EFAULT;
	permit = own_permit(party, id, true);
	if (IS_ERR(permit))
		return PTR_ERR(permit);
	permit_detach(permit);
	permit_put(permit);
	return 0;
}

static long attach_by(struct permit *permit, struct file *file, const struct attach_args *args)
{
	struct attachment *attachment;
	u64 size = PAGE_ALIGN(args->size);
	long at;

	if (args->offset < 0 || (args->offset | args->address) & ~PAGE_MASK || !args->size || size < args->size)
		return -EINVAL;
	if (!permit->writes)
		return -EACCES;
	if (!segment_counts(permit->segment))
		return -ENOENT;
	if (args->offset > permit->segment->size || size > permit->segment->size - args->offset)
		return -EINVAL;
	if (args->address && overlaps_attachment(args->address, size))
		return -EINVAL;
	attachment = kzalloc(sizeof(*attachment), GFP_KERNEL);
	if (!attachment)
		return -ENOMEM;
	kref_init(&attachment->refs);
	INIT_LIST_HEAD(&attachment->own);
	kref_get(&permit->refs);
	attachment->permit = permit;
	attachment->offset = args->offset;
	attachment->size = size;
	at = map_attachment(file, attachment, args->address);
	attachment_put(attachment);
	return at;
}

static long attach(struct party *party, struct file *file, struct attach_args __user *from)
{
	struct attach_args args;
	struct permit *permit;
	long at;

	if (copy_from_user(&args, from, sizeof(args)))
		return -EFAULT;
	permit = own_permit(party, args.apid, false);
	if (IS_ERR(permit))
		return PTR_ERR(permit);
	at = attach_by(permit, file, &args);
	permit_put(permit);
	if (IS_ERR_VALUE(at))
		return at;
	return put_user((u64)at, &from->address) ? -EFAULT : 0;
}

static long detach(struct party *party, u64 __user *from)
{
	struct attachment *attachment;
	bool nothing;
	long error = 0;
	u64 address;

	if (get_user(address, from))
		return -EFAULT;
	attachment = attachment_at(address, &nothing);
	if (!attachment)
		return nothing ? 0 : -EINVAL;
	if (attachment->permit->holder != party)
		error = -EACCES;
	else
		unmap_attachment(attachment);
	attachment_put(attachment);
	return error;
}

static long xpmem_ioctl(struct file *file, unsigned int command, unsigned long argument)
{
	void __user *from = (void __user *)argument;
	struct party *party = caller();
	long result = -ENOTTY;

	switch (command) {
	case CMD_VERSION: result = VERSION; break;
	case CMD_MAKE: result = make(party, from); break;
	case CMD_REMOVE: result = remove(party, from); break;
	case CMD_GET: result = get(party, from); break;
	case CMD_RELEASE: result = release(party, from); break;
	case CMD_ATTACH: result = attach(party, file, from); break;
	case CMD_DETACH: result = detach(party, from); break;
	case CMD_FORK_BEGIN:
	case CMD_FORK_END:
		if (party)
			zap(party, 0, U64_MAX);
		result = 0;
		break;
	}
	if (party)
		party_put(party);
	return result;
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
	/* Nothing is ever in it: it lends its inode, to which all mappings belong. */
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
	/* Every party has closed its descriptor; a mapping would keep the module. What ends still is waited for. */
	destroy_workqueue(endings);
	fput(shared);
	ida_destroy(&slots);
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

module_init(xpmem_start);
module_exit(xpmem_stop);
MODULE_DESCRIPTION("A double of the xpmem interface for tests in a virtual machine");
MODULE_LICENSE("GPL");
