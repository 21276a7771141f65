//! Every named number of the header except statuses, which come from the provider ABI.

/// Status: an operation, an endpoint, a name query or a worker has ended because its time was up. tieline_error.kind states the
/// outcome. In contrast, TIELINE_TIMED_OUT means only that a wait has ended: the awaited operation goes on.
pub const TIELINE_EXPIRED: i32 = -100;

/// A thread of the library serves peers' accesses to this context's memory while the application computes.
pub const TIELINE_CONTEXT_PROGRESS_THREAD: u64 = 1;
/// Promises peers that all workers make progress continuously (TIELINE_POLLS_OFTEN).
pub const TIELINE_CONTEXT_POLLS_OFTEN: u64 = 2;
/// The caller carries the datagrams that establish connections (tieline_worker_set_out_of_band).
pub const TIELINE_CONTEXT_OUT_OF_BAND: u64 = 4;

/// The modules that were found and are used, as `tieline info` prints them.
pub const TIELINE_REPORT_TABLE: u32 = 0;
/// Why each provider and module is used or not.
pub const TIELINE_REPORT_WHY: u32 = 1;
/// The full report in machine-readable form.
pub const TIELINE_REPORT_JSON: u32 = 2;

/// As a timeout: no limit.
pub const TIELINE_FOREVER: i64 = -1;

/// Peers may get.
pub const TIELINE_READ: u64 = 1;
/// Peers may put.
pub const TIELINE_WRITE: u64 = 2;
/// Peers may do atomics.
pub const TIELINE_ATOMIC: u64 = 4;
/// Peers may do all three.
pub const TIELINE_ALL: u64 = 7;
/// Not a right, but a promise: no thread polls the memory for the arrival of a put before a completion, a notification or a
/// message has reported it. A device may then reorder peers' writes on the bus.
pub const TIELINE_RELAXED_ORDERING: u64 = 8;
/// Not a right either: the memory need not be mapped with these rights yet, because it is reserved now and committed later. Until
/// then, accesses of peers fail with TIELINE_PERMISSION, and nothing else fails.
pub const TIELINE_COMMITTED_LATER: u64 = 16;

/// Reports the completion of an operation by a request number: tieline_worker_finish, _test, _forget.
pub const TIELINE_TELL_REQUEST: u32 = 0;
/// Reports it through tieline_worker_take_completed, with `user`, even if the operation is done when the call returns.
pub const TIELINE_TELL_TRACKED: u32 = 1;
/// Counts it in `counter`, even if the operation is done when the call returns.
pub const TIELINE_TELL_COUNTED: u32 = 2;

/// A put completes when its bytes may be reused; a flush completes when they are at the target.
pub const TIELINE_HOW_LOCAL: u32 = 1;
/// Runs the peer's notification handler with `word` when the bytes of this put, and of earlier puts, are at the target.
pub const TIELINE_HOW_NOTIFY: u32 = 2;

/// Completes everything that was posted before closing.
pub const TIELINE_CLOSE_FLUSH: u32 = 0;
/// Ends pending operations immediately, as canceled.
pub const TIELINE_CLOSE_CANCEL: u32 = 1;

/// Kind of a failure: this call will never succeed as it is, and the object is unchanged.
pub const TIELINE_DO_CORRECT: u32 = 0;
/// Nothing was done: make progress, and call again.
pub const TIELINE_DO_RETRY: u32 = 1;
/// The endpoint has ended, or could not be established: the same may succeed over a new one.
pub const TIELINE_DO_RECONNECT: u32 = 2;
/// The peer is gone, or another one has replaced it: exchange addresses again.
pub const TIELINE_DO_EXCHANGE: u32 = 3;
/// A setting, an installation or a permission has to change: `tieline info --why`.
pub const TIELINE_DO_CONFIGURE: u32 = 4;
/// A bounded resource of this process is exhausted: release some of it.
pub const TIELINE_DO_RELEASE: u32 = 5;
/// The context is unusable for this: open another one.
pub const TIELINE_DO_REOPEN: u32 = 6;
/// Kind of a failed operation: it was refused, the target's memory is unchanged, and the connection stands.
pub const TIELINE_OP_REFUSED: u32 = 7;
/// It was lost with its connection: it may or may not have happened, or may still happen.
pub const TIELINE_OP_UNKNOWN: u32 = 8;
/// This process canceled it.
pub const TIELINE_OP_CANCELED: u32 = 9;
/// Its state was not examined: if it has not ended, it goes on.
pub const TIELINE_OP_PENDING: u32 = 10;
/// The library panicked: the object of the call is unusable. Report it.
pub const TIELINE_PANICKED: u32 = 11;

/// Result of tieline_worker_wait: something happened.
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
/// Stores the operand if the word equals the expected value.
pub const TIELINE_ATOMIC_COMPARE_SWAP: u32 = 5;
/// Unsigned minimum.
pub const TIELINE_ATOMIC_MIN: u32 = 6;
/// Unsigned maximum.
pub const TIELINE_ATOMIC_MAX: u32 = 7;
