/* SPDX-License-Identifier: GPL-2.0 */
/*
 * A double of /dev/xpmem for the lab: the declarations that its files share. README.md describes the purpose and
 * the limits.
 *
 * There are three kinds of objects. A segment names a range of its maker's address space; a permit (apid) is one
 * process's right to attach parts of a segment; an attachment is a mapping in that process. A party is a process
 * that opened the device.
 *
 * Each object has a reference to the next one: attachment -> permit -> segment -> party. Each object has a flag
 * that states whether it has ended. The flag changes only once, under the lock `registry`.
 */
#ifndef LAB_XPMEM_H
#define LAB_XPMEM_H

#include <linux/fs.h>
#include <linux/kref.h>
#include <linux/list.h>
#include <linux/mm.h>
#include <linux/mmu_notifier.h>
#include <linux/sched.h>
#include <linux/uidgid.h>
#include <linux/workqueue.h>

/* The offset of a party's page in the one mapping to which all attachments belong: the party's number, then the
 * address. One call of unmap_mapping_pages therefore finds every entry of a page, in every process, without
 * taking an mmap lock. */
#define SLOT_SHIFT 45
#define MOST_PARTIES (1 << 18)

struct party {
	struct kref refs;
	struct list_head all;
	struct list_head segments, permits;
	pid_t number;			/* in the initial pid namespace */
	struct mm_struct *mm;
	struct mmu_interval_notifier notifier;
	struct work_struct ending;
	kuid_t uid;
	kgid_t gid;
	unsigned long slot;
	atomic_t used;			/* mappings of this party's memory */
	u32 segments_made, permits_made;
	bool gone;
};

struct segment {
	struct kref refs;
	struct hlist_node hashed;
	struct list_head own;
	struct party *owner;
	s64 id;
	u64 start, size;
	u64 mode;
	bool gone;
};

struct permit {
	struct kref refs;
	struct hlist_node hashed;
	struct list_head own;
	struct list_head attachments;
	struct party *holder;
	struct segment *segment;
	s64 id;
	bool writes;
	bool gone;
};

struct attachment {
	struct kref refs;
	struct list_head own;
	struct permit *permit;
	u64 offset;			/* within the segment */
	unsigned long start, size;	/* of the mapping */
	atomic_t pieces;		/* a mapping may be split, by mprotect for instance */
	bool detaching;
};

/* The present action of a process, which the module's callbacks read: mmap has no argument for it. */
enum doing { ATTACHING, DETACHING, ZAPPING };

struct intent {
	struct list_head all;
	struct task_struct *task;
	enum doing doing;
	struct attachment *attachment;
};

extern spinlock_t registry;
extern struct file *shared;
extern struct workqueue_struct *endings;
extern atomic64_t faults, zaps, attached, detached, stale;

/* The functions of xpmem_objects.c. */
struct party *caller(void);
void party_put(struct party *party);
void party_end(struct party *party);
void segment_put(struct segment *segment);
void segment_drop(struct segment *segment);
void permit_put(struct permit *permit);
void permit_drop(struct permit *permit);
void permit_detach(struct permit *permit);
void attachment_put(struct attachment *attachment);

/* The functions of xpmem_commands.c. */
long xpmem_ioctl(struct file *file, unsigned int command, unsigned long argument);

/* The functions of xpmem_map.c. */
extern const struct mmu_interval_notifier_ops party_notifier;
int xpmem_mmap(struct file *file, struct vm_area_struct *vma);
long map_attachment(struct file *file, struct attachment *attachment, unsigned long address);
void unmap_attachment(struct attachment *attachment);
struct attachment *attachment_at(unsigned long address, bool *nothing);
bool overlaps_attachment(unsigned long address, unsigned long size);
void zap(struct party *party, u64 start, u64 end);
void drop_stale(void);

static inline bool segment_counts(const struct segment *segment)
{
	return !READ_ONCE(segment->gone) && !READ_ONCE(segment->owner->gone);
}

#endif
