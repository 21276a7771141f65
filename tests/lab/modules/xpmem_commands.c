// SPDX-License-Identifier: GPL-2.0
/*
 * The result of each command, including the errno.
 */
#include "xpmem.h"

#include <linux/capability.h>
#include <linux/cred.h>
#include <linux/hashtable.h>
#include <linux/slab.h>
#include <linux/uaccess.h>

#define VERSION 0x00027004
/* The errno of a process that inherited the descriptor and did not open the device itself. No libc defines
   this errno. */
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

static DEFINE_HASHTABLE(segments, 10);
static DEFINE_HASHTABLE(permits, 10);

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
	/* The call also removes entries of the party's other segments; later faults restore these entries. */
	zap(party, segment->start, segment->start + segment->size);
	segment_put(segment);
	return 0;
}

/* Checks the access rights by the rules of System V shared memory. */
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

/* Finds a permit of the calling process, and returns it with a reference; with `drop`, the registry's own
   reference. */
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

long xpmem_ioctl(struct file *file, unsigned int command, unsigned long argument)
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
		result = party ? 0 : -ENOENT;
		break;
	}
	if (party)
		party_put(party);
	return result;
}
