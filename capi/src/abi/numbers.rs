//! Every named number of the header, but for statuses, which are the provider ABI's.

/// Status: an operation, an endpoint, a question or a worker has ended because its time was up (tieline_error.kind says what became of
/// it). TIELINE_TIMED_OUT is the end of a wait alone: what was waited for goes on.
pub const TIELINE_EXPIRED: i32 = -100;

/// A thread of the library serves what peers ask of this context's memory while the application computes.
pub const TIELINE_CONTEXT_PROGRESS_THREAD: u64 = 1;
/// Promises peers that all workers make progress all the time (TIELINE_POLLS_OFTEN).
pub const TIELINE_CONTEXT_POLLS_OFTEN: u64 = 2;
/// The caller carries the datagrams that form connections (tieline_worker_set_out_of_band).
pub const TIELINE_CONTEXT_OUT_OF_BAND: u64 = 4;

/// What was found and is used, as `tieline info` prints it.
pub const TIELINE_REPORT_TABLE: u32 = 0;
/// Why each provider and module is used or not.
pub const TIELINE_REPORT_WHY: u32 = 1;
/// All of it for a program.
pub const TIELINE_REPORT_JSON: u32 = 2;

/// Without end, for a time.
pub const TIELINE_FOREVER: i64 = -1;

/// Peers may get.
pub const TIELINE_READ: u64 = 1;
/// Peers may put.
pub const TIELINE_WRITE: u64 = 2;
/// Peers may do atomics.
pub const TIELINE_ATOMIC: u64 = 4;
/// Peers may do all three.
pub const TIELINE_ALL: u64 = 7;
/// No right, but a promise: nobody looks at the memory to see whether a put has arrived, before a completion, a notification or a
/// message has said so. A device may then let writes of peers pass each other on the bus.
pub const TIELINE_RELAXED_ORDERING: u64 = 8;
/// No right either: the memory need not be mapped with these rights yet, because it is reserved now and committed later. Until then
/// accesses of peers fail with TIELINE_PERMISSION, and nothing else does.
pub const TIELINE_COMMITTED_LATER: u64 = 16;

/// The end of an operation is told by a number: tieline_worker_finish, _test, _forget.
pub const TIELINE_TELL_REQUEST: u32 = 0;
/// By tieline_worker_take_completed, with `user`; also of what is done at once.
pub const TIELINE_TELL_TRACKED: u32 = 1;
/// By `counter`; also of what is done at once.
pub const TIELINE_TELL_COUNTED: u32 = 2;

/// A put is complete when its bytes may be used again; a flush says when they are at the target.
pub const TIELINE_HOW_LOCAL: u32 = 1;
/// The peer's handler of notifications runs with `word` when the bytes of this put, and of those before, are there.
pub const TIELINE_HOW_NOTIFY: u32 = 2;

/// What was posted is completed first.
pub const TIELINE_CLOSE_FLUSH: u32 = 0;
/// What is pending ends at once, as canceled.
pub const TIELINE_CLOSE_CANCEL: u32 = 1;

/// Of a failure: this call will never succeed as it is, and the object is as it was.
pub const TIELINE_DO_CORRECT: u32 = 0;
/// Nothing was done: make progress, and call again.
pub const TIELINE_DO_RETRY: u32 = 1;
/// The endpoint has ended, or did not come about: the same may succeed over a new one.
pub const TIELINE_DO_RECONNECT: u32 = 2;
/// The peer is gone, or another one is in its place: exchange addresses again.
pub const TIELINE_DO_EXCHANGE: u32 = 3;
/// A setting, what is installed or what is permitted has to change: `tieline info --why`.
pub const TIELINE_DO_CONFIGURE: u32 = 4;
/// A bounded resource of this process ran out: let go of some.
pub const TIELINE_DO_RELEASE: u32 = 5;
/// The context is of no use for this any more: open another one.
pub const TIELINE_DO_REOPEN: u32 = 6;
/// Of an operation that failed: it was refused, the target's memory is as it was, and the connection stands.
pub const TIELINE_OP_REFUSED: u32 = 7;
/// It was lost with its connection: it may have happened, or not, or may happen still.
pub const TIELINE_OP_UNKNOWN: u32 = 8;
/// This process gave it up.
pub const TIELINE_OP_CANCELED: u32 = 9;
/// Nothing was looked at: it goes on, if it has not ended.
pub const TIELINE_OP_PENDING: u32 = 10;
/// The library panicked: what was called is of no use any more. Report it.
pub const TIELINE_PANICKED: u32 = 11;

/// Of tieline_worker_wait: something happened.
pub const TIELINE_MOVED: i32 = 1;
/// Nothing has happened, and the time is not up: wait again.
pub const TIELINE_ROUSED: i32 = 2;

/// An atomic: addition, wrapping.
pub const TIELINE_ATOMIC_ADD: u32 = 0;
/// Bitwise and.
pub const TIELINE_ATOMIC_AND: u32 = 1;
/// Bitwise or.
pub const TIELINE_ATOMIC_OR: u32 = 2;
/// Bitwise exclusive or.
pub const TIELINE_ATOMIC_XOR: u32 = 3;
/// Exchange.
pub const TIELINE_ATOMIC_SWAP: u32 = 4;
/// Stores if the word is what it was taken for.
pub const TIELINE_ATOMIC_COMPARE_SWAP: u32 = 5;
/// Unsigned minimum.
pub const TIELINE_ATOMIC_MIN: u32 = 6;
/// Unsigned maximum.
pub const TIELINE_ATOMIC_MAX: u32 = 7;
