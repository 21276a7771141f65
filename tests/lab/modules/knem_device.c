// SPDX-License-Identifier: GPL-2.0
/*
 * The device: contexts, the cookies of regions, and the result of each command.
 */
#include "knem.h"

#include <linux/cred.h>
#include <linux/miscdevice.h>
#include <linux/mman.h>
#include <linux/module.h>
#include <linux/slab.h>
#include <linux/uaccess.h>
#include <linux/vmalloc.h>

#define CMD_INFO 0x40104b10
#define CMD_BIND 0x80104b11
#define CMD_CREATE 0xc0204b21
#define CMD_DESTROY 0x80084b22
#define CMD_COPY 0x80304b32
#define CMD_INLINE 0x80304b33
#define CMD_COPY_BOUNDED 0x80384b34
#define CMD_INLINE_BOUNDED 0x80384b35

/* The maximum size of a mapping of slots, in bytes. */
#define MOST_SLOTS (1UL << 20)

struct info_args { u32 abi, features, ignored, forced; };
struct bind_args { u32 flags, bytes; u64 mask; };
struct create_args { u64 pieces; u32 count, flags, protection, pad; u64 cookie; };
struct copy_args { u64 from, from_at, to, to_at; u32 flags, status, slot, pad; };
struct copy_bounded_args { u64 from, from_at, to, to_at, most; u32 flags, status, slot, pad; };
struct inline_args { u64 pieces; u32 count, write; u64 cookie, at; u32 flags, status, slot, pad; };
struct inline_bounded_args { u64 pieces; u32 count, write; u64 cookie, at, most; u32 flags, status, slot, pad; };
static_assert(sizeof(struct info_args) == 16 && sizeof(struct bind_args) == 16 && sizeof(struct create_args) == 32);
static_assert(sizeof(struct copy_args) == 48 && sizeof(struct copy_bounded_args) == 56);
static_assert(sizeof(struct inline_args) == 48 && sizeof(struct inline_bounded_args) == 56);

atomic64_t copies, created, destroyed;
unsigned int delay_ms;
bool dma;

/* The contexts by id; the lowest free id is assigned next. */
static DEFINE_IDR(contexts);
/* The lock of the table of contexts and of every context's regions. */
static DEFINE_SPINLOCK(registry);

/* ---- Regions ---- */

/* A cookie contains the region's number within its context, a bit for single use, and the context's number.
 * Free numbers are reused first, so the same cookie may soon refer to another region. */
#define SINGLE_USE_BIT (1U << 31)

static u64 cookie_of(const struct region *region)
{
	return (u64)region->id << 32 | (region->single_use ? SINGLE_USE_BIT : 0) | region->context->id;
}

static struct region *region_find(u64 cookie)
{
	struct context *context = idr_find(&contexts, (u32)cookie & ~SINGLE_USE_BIT);
	struct region *region = context ? idr_find(&context->regions, cookie >> 32) : NULL;

	return region && cookie_of(region) == cookie ? region : NULL;
}

static void region_drop(struct region *region)
{
	idr_remove(&region->context->regions, region->id);
	atomic64_inc(&destroyed);
}

/* Assigns a number of the table. The caller holds the lock. */
static long numbered(struct idr *idr, void *it, u32 *id)
{
	int given = idr_alloc(idr, it, 1, INT_MAX, GFP_NOWAIT);

	if (given < 0)
		return given;
	*id = given;
	return 0;
}

/* Finds a region, and returns it with a reference if the caller may use the region with this protection. */
static struct region *region_use(u64 cookie, u32 protection)
{
	struct region *region;

	spin_lock(&registry);
	region = region_find(cookie);
	if (!region) {
		region = ERR_PTR(-EINVAL);
	} else if (!region->any_user && !uid_eq(region->uid, current_euid())) {
		region = ERR_PTR(-EPERM);
	} else if (protection & ~region->protection) {
		region = ERR_PTR(-EACCES);
	} else if (region->single_use) {
		region_drop(region);
	} else {
		kref_get(&region->refs);
	}
	spin_unlock(&registry);
	return region;
}

static long create(struct context *context, struct create_args __user *from)
{
	struct create_args args;
	struct region *region;
	long error;

	if (copy_from_user(&args, from, sizeof(args)))
		return -EFAULT;
	if (args.flags & ~(FLAG_SINGLE_USE | FLAG_ANY_USER) || args.protection & ~(PROT_READ | PROT_WRITE))
		return -EINVAL;
	region = kzalloc(sizeof(*region), GFP_KERNEL);
	if (!region)
		return -ENOMEM;
	kref_init(&region->refs);
	region->uid = current_euid();
	region->protection = args.protection;
	region->single_use = args.flags & FLAG_SINGLE_USE;
	region->any_user = args.flags & FLAG_ANY_USER;
	error = memory_pin(&region->memory, u64_to_user_ptr(args.pieces), args.count, args.protection & PROT_WRITE);
	if (error) {
		kfree(region);
		return error;
	}
	region->context = context;
	idr_preload(GFP_KERNEL);
	spin_lock(&registry);
	error = numbered(&context->regions, region, &region->id);
	if (!error) {
		args.cookie = cookie_of(region);
		atomic64_inc(&created);
	}
	spin_unlock(&registry);
	idr_preload_end();
	if (error) {
		region_put(region);
		return error;
	}
	return put_user(args.cookie, &from->cookie) ? -EFAULT : 0;
}

static long destroy(struct context *context, u64 __user *from)
{
	struct region *region;
	u64 cookie;

	if (get_user(cookie, from))
		return -EFAULT;
	spin_lock(&registry);
	/* The lower half of the cookie, the context's number, is ignored: the region must belong to this context. */
	region = idr_find(&context->regions, cookie >> 32);
	if (region)
		region_drop(region);
	spin_unlock(&registry);
	if (!region)
		return -EINVAL;
	region_put(region);
	return 0;
}

/* ---- Copies ---- */

static bool flags_are_known(u32 flags)
{
	return !(flags & ~(FLAG_DMA | FLAG_DMA_LATER | FLAG_DMA_THREAD | FLAG_COPY_THREAD | FLAG_PIN_LOCAL));
}

static long copy_between(struct context *context, const struct copy_args *args, u64 most, u32 *status)
{
	struct region *from, *to;
	long error;

	if (!flags_are_known(args->flags))
		return -EINVAL;
	from = region_use(args->from, PROT_READ);
	if (IS_ERR(from))
		return PTR_ERR(from);
	to = region_use(args->to, PROT_WRITE);
	if (IS_ERR(to)) {
		region_put(from);
		return PTR_ERR(to);
	}
	error = copy_regions(context, from, args->from_at, to, args->to_at, most, args->flags, args->slot, status);
	region_put(from);
	region_put(to);
	return error;
}

static long copy(struct context *context, struct copy_args __user *from)
{
	struct copy_args args;
	long error;

	if (copy_from_user(&args, from, sizeof(args)))
		return -EFAULT;
	error = copy_between(context, &args, U64_MAX, &args.status);
	return error ? error : put_user(args.status, &from->status) ? -EFAULT : 0;
}

static long copy_bounded(struct context *context, struct copy_bounded_args __user *from)
{
	struct copy_bounded_args args;
	struct copy_args plain;
	long error;

	if (copy_from_user(&args, from, sizeof(args)))
		return -EFAULT;
	plain = (struct copy_args) { args.from, args.from_at, args.to, args.to_at, args.flags, 0, args.slot, 0 };
	error = copy_between(context, &plain, args.most, &args.status);
	return error ? error : put_user(args.status, &from->status) ? -EFAULT : 0;
}

static long inline_with(struct context *context, const struct inline_args *args, u64 most, u32 *status)
{
	struct region *region;
	long error;

	if (!flags_are_known(args->flags))
		return -EINVAL;
	region = region_use(args->cookie, args->write ? PROT_WRITE : PROT_READ);
	if (IS_ERR(region))
		return PTR_ERR(region);
	error = copy_inline(context, u64_to_user_ptr(args->pieces), args->count, args->write, region, args->at, most,
			    args->flags, args->slot, status);
	region_put(region);
	return error;
}

static long inline_plain(struct context *context, struct inline_args __user *from)
{
	struct inline_args args;
	long error;

	if (copy_from_user(&args, from, sizeof(args)))
		return -EFAULT;
	error = inline_with(context, &args, U64_MAX, &args.status);
	return error ? error : put_user(args.status, &from->status) ? -EFAULT : 0;
}

static long inline_bounded(struct context *context, struct inline_bounded_args __user *from)
{
	struct inline_bounded_args args;
	struct inline_args plain;
	long error;

	if (copy_from_user(&args, from, sizeof(args)))
		return -EFAULT;
	plain = (struct inline_args) { args.pieces, args.count, args.write, args.cookie, args.at, args.flags, 0, args.slot, 0 };
	error = inline_with(context, &plain, args.most, &args.status);
	return error ? error : put_user(args.status, &from->status) ? -EFAULT : 0;
}

/* ---- The device ---- */

static long info(struct info_args __user *to)
{
	struct info_args args = { KNEM_ABI, dma ? FEATURE_DMA : 0, 0, 0 };

	return copy_to_user(to, &args, sizeof(args)) ? -EFAULT : 0;
}

/* Does nothing, because a context has no thread that could be bound. */
static long bind(struct context *context, struct bind_args __user *from)
{
	struct bind_args args;

	if (copy_from_user(&args, from, sizeof(args)))
		return -EFAULT;
	if (args.flags != 1 && args.flags != 2 && args.flags != 4)
		return -EINVAL;
	return smp_load_acquire(&context->slots) ? -EBUSY : 0;
}

static long knem_ioctl(struct file *file, unsigned int command, unsigned long argument)
{
	void __user *from = (void __user *)argument;
	struct context *context = file->private_data;

	/* A descriptor that was opened for reading only provides statistics. */
	if (!context)
		return -EBADF;
	switch (command) {
	case CMD_INFO: return info(from);
	case CMD_BIND: return bind(context, from);
	case CMD_CREATE: return create(context, from);
	case CMD_DESTROY: return destroy(context, from);
	case CMD_COPY: return copy(context, from);
	case CMD_INLINE: return inline_plain(context, from);
	case CMD_COPY_BOUNDED: return copy_bounded(context, from);
	case CMD_INLINE_BOUNDED: return inline_bounded(context, from);
	default: return -ENOSYS;
	}
}

/* Maps the slots: a byte for each copy in the background. */
static int knem_mmap(struct file *file, struct vm_area_struct *vma)
{
	struct context *context = file->private_data;
	unsigned long size = vma->vm_end - vma->vm_start;
	int error;
	u8 *slots;

	if (!context || vma->vm_pgoff || size > MOST_SLOTS)
		return -EINVAL;
	mutex_lock(&context->lock);
	error = -EBUSY;
	if (context->slots)
		goto out;
	error = -ENOMEM;
	context->later = alloc_workqueue("lab-knem", WQ_UNBOUND, 0);
	if (!context->later)
		goto out;
	slots = vmalloc_user(size);
	error = slots ? remap_vmalloc_range(vma, slots, 0) : -ENOMEM;
	if (error) {
		vfree(slots);
		destroy_workqueue(context->later);
		goto out;
	}
	context->slot_count = size;
	smp_store_release(&context->slots, slots);
out:
	mutex_unlock(&context->lock);
	return error;
}

static ssize_t knem_read(struct file *file, char __user *to, size_t size, loff_t *at)
{
	char text[160];
	int len = scnprintf(text, sizeof(text), "knem double, abi %#x\nregions created %lld, destroyed %lld\ncopies %lld\n",
			    KNEM_ABI, (long long)atomic64_read(&created), (long long)atomic64_read(&destroyed),
			    (long long)atomic64_read(&copies));

	return simple_read_from_buffer(to, size, at, text, len);
}

static int knem_open(struct inode *inode, struct file *file)
{
	struct context *context;
	long error;

	file->private_data = NULL;
	if (!(file->f_mode & FMODE_WRITE))
		return 0;
	context = kzalloc(sizeof(*context), GFP_KERNEL);
	if (!context)
		return -ENOMEM;
	idr_init(&context->regions);
	mutex_init(&context->lock);
	idr_preload(GFP_KERNEL);
	spin_lock(&registry);
	error = numbered(&contexts, context, &context->id);
	spin_unlock(&registry);
	idr_preload_end();
	if (error)
		kfree(context);
	else
		file->private_data = context;
	return error;
}

/* Releases a context when its last descriptor, in any process, and the mapping of its slots are gone. */
static int knem_release(struct inode *inode, struct file *file)
{
	struct context *context = file->private_data;
	struct region *region;
	int id = 0;

	if (!context)
		return 0;
	/* After this block the context's regions cannot be looked up. */
	spin_lock(&registry);
	idr_remove(&contexts, context->id);
	spin_unlock(&registry);
	while ((region = idr_get_next(&context->regions, &id))) {
		spin_lock(&registry);
		region_drop(region);
		spin_unlock(&registry);
		region_put(region);
	}
	idr_destroy(&context->regions);
	if (context->later)
		destroy_workqueue(context->later);
	vfree(context->slots);
	kfree(context);
	return 0;
}

static const struct file_operations device_operations = {
	.owner = THIS_MODULE,
	.open = knem_open,
	.release = knem_release,
	.read = knem_read,
	.mmap = knem_mmap,
	.unlocked_ioctl = knem_ioctl,
	.compat_ioctl = compat_ptr_ioctl,
};

static struct miscdevice device = {
	.minor = MISC_DYNAMIC_MINOR,
	.name = "knem",
	.fops = &device_operations,
};

static int counter_get(char *buffer, const struct kernel_param *param)
{
	return sprintf(buffer, "%lld\n", (long long)atomic64_read((atomic64_t *)param->arg));
}

static const struct kernel_param_ops counter = { .get = counter_get };

module_param_cb(copies, &counter, &copies, 0444);
module_param_cb(created, &counter, &created, 0444);
module_param_cb(destroyed, &counter, &destroyed, 0444);
module_param(delay_ms, uint, 0644);
MODULE_PARM_DESC(delay_ms, "how long a copy in the background is held back");
module_param(dma, bool, 0444);
MODULE_PARM_DESC(dma, "pretend to have an engine for copies");

module_misc_device(device);
MODULE_DESCRIPTION("A double of the knem interface for tests in a virtual machine");
MODULE_LICENSE("GPL");
