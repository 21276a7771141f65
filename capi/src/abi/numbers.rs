//! The named numbers of the header except the statuses, which come from the provider ABI.

/// Status: an operation, an endpoint, a name query or a worker has ended because its time limit has passed. tieline_error.kind
/// states the outcome. In contrast, TIELINE_TIMED_OUT means only that a wait has ended: the awaited operation continues. From
/// tieline_job_exchange and tieline_job_barrier, TIELINE_TIMED_OUT means that there will be no more exchanges.
pub const TIELINE_EXPIRED: i32 = -100;

/// Flag of a context: a thread of the library serves peers' accesses to this context's memory while the application computes.
pub const TIELINE_CONTEXT_PROGRESS_THREAD: u64 = 1;
/// Flag of a context: promises peers that all workers make progress continuously (TIELINE_POLLS_OFTEN).
pub const TIELINE_CONTEXT_POLLS_OFTEN: u64 = 2;
/// Flag of a context: the caller carries the datagrams that establish connections (tieline_worker_set_out_of_band).
pub const TIELINE_CONTEXT_OUT_OF_BAND: u64 = 4;
/// Flag of a context: every key contains the address of its region, which reveals the layout of the address space to everybody who
/// gets a key. tieline_region_key_with_address does this for one key.
pub const TIELINE_CONTEXT_KEYS_WITH_ADDRESSES: u64 = 8;
/// Flag of a context: permits tieline_region_publish. Every process that can connect to a worker of the context may then request the
/// keys of all numbers.
pub const TIELINE_CONTEXT_PUBLISH_KEYS: u64 = 16;
/// Flag of a worker: the worker has a progress thread, and all threads may use it at the same time.
pub const TIELINE_WORKER_DRIVEN: u64 = 1;

/// Report: the modules that were found and are used, as `tieline info` prints them.
pub const TIELINE_REPORT_TABLE: u32 = 0;
/// Report: the reason why each provider and module is used or not.
pub const TIELINE_REPORT_WHY: u32 = 1;
/// Report: the full report as JSON.
pub const TIELINE_REPORT_JSON: u32 = 2;

/// The timeout without a limit.
pub const TIELINE_FOREVER: i64 = -1;

/// Right to a region: peers may get.
pub const TIELINE_READ: u64 = 1;
/// Right to a region: peers may put.
pub const TIELINE_WRITE: u64 = 2;
/// Right to a region: peers may do atomics.
pub const TIELINE_ATOMIC: u64 = 4;
/// Rights to a region: peers may get, put and do atomics.
pub const TIELINE_ALL: u64 = 7;
/// Flag of a registration, not a right: the caller promises that no thread polls the memory for the arrival of a put before a
/// completion, a notification or a message has reported the put. A device may then reorder peers' writes on the bus.
pub const TIELINE_RELAXED_ORDERING: u64 = 8;
/// Flag of a registration, not a right: the memory is reserved and may be committed later, so the library does not check that it is
/// mapped with these rights. Until the memory is committed, accesses by peers fail, usually with TIELINE_PERMISSION.
pub const TIELINE_COMMITTED_LATER: u64 = 16;

/// Report of a completion by a request number: tieline_worker_finish, _test, _forget.
pub const TIELINE_TELL_REQUEST: u32 = 0;
/// Report of a completion through tieline_worker_take_completed, with `user`, even if the operation is done when the call returns.
pub const TIELINE_TELL_TRACKED: u32 = 1;
/// Report of a completion in `counter`, even if the operation is done when the call returns.
pub const TIELINE_TELL_COUNTED: u32 = 2;

/// Flag of an operation: a put completes when its bytes may be reused. A later flush completes when the bytes are at the target.
pub const TIELINE_HOW_LOCAL: u32 = 1;
/// Flag of an operation: runs the peer's notification handler with `word` when the bytes of this put, and of earlier puts, are at
/// the target.
pub const TIELINE_HOW_NOTIFY: u32 = 2;
/// Flag of an operation that is tracked or counted: the call writes the number of a pending operation to `request`, for
/// tieline_worker_cancel_number alone.
pub const TIELINE_HOW_NUMBERED: u32 = 4;

/// Kind of a prepared list: puts.
pub const TIELINE_LIST_PUT: u32 = 1;
/// Kind of a prepared list: gets.
pub const TIELINE_LIST_GET: u32 = 2;

/// Flag of a message: the operation completes when the receiver has acknowledged the message.
pub const TIELINE_SEND_DELIVERED: u32 = 1;
/// Flag of a message: it is a rendezvous message whatever its length, unless it is empty or the peer's version has none.
pub const TIELINE_SEND_RENDEZVOUS: u32 = 2;
/// The maximum number of header bytes of a message.
pub const TIELINE_MAX_HEADER_BYTES: usize = 32;

/// Way of closing an endpoint: refuses later operations, and completes when all operations posted before are complete.
pub const TIELINE_CLOSE_FLUSH: u32 = 0;
/// Way of closing an endpoint: ends pending operations immediately, as canceled.
pub const TIELINE_CLOSE_CANCEL: u32 = 1;

/// Kind of a failed call: the call was wrong, by its arguments or its place (for example inside a handler). The object is
/// unchanged.
pub const TIELINE_DO_CORRECT: u32 = 0;
/// Kind of a failed call: make progress, and call again. Nothing was done, except some blocks of a strided put or get.
pub const TIELINE_DO_RETRY: u32 = 1;
/// Kind of a failed call: the endpoint has ended, or could not be established. The same call may succeed over a new endpoint.
pub const TIELINE_DO_RECONNECT: u32 = 2;
/// Kind of a failed call: the peer is gone, or another process has replaced it. Exchange addresses again.
pub const TIELINE_DO_EXCHANGE: u32 = 3;
/// Kind of a failed call: a setting, an installation or a permission has to change. See `tieline info --why`.
pub const TIELINE_DO_CONFIGURE: u32 = 4;
/// Kind of a failed call: a bounded resource of this process is exhausted. Release a part of the resource.
pub const TIELINE_DO_RELEASE: u32 = 5;
/// Kind of a failed call: the context cannot be used for this call. Open another context.
pub const TIELINE_DO_REOPEN: u32 = 6;
/// Kind of a failed operation: the operation was refused, and the connection remains open. The target's memory is unchanged, except
/// for pieces of a large put.
pub const TIELINE_OP_REFUSED: u32 = 7;
/// Kind of a failed operation: the operation was lost with its connection. The operation may have happened, may not have happened,
/// or may still happen.
pub const TIELINE_OP_UNKNOWN: u32 = 8;
/// Kind of a failed operation: this process canceled the operation.
pub const TIELINE_OP_CANCELED: u32 = 9;
/// Kind of an operation whose state was not examined: unless it has ended, the operation continues.
pub const TIELINE_OP_PENDING: u32 = 10;
/// Kind of a failure: the library panicked. If the call was for a worker or an object of it, the worker is unusable. Report the
/// panic to the project.
pub const TIELINE_PANICKED: u32 = 11;

/// Result of tieline_worker_wait: an event was handled, a completion is waiting to be taken, or the worker was woken.
pub const TIELINE_MOVED: i32 = 1;
/// Result of tieline_worker_wait: nothing has happened, and the time limit has not passed. Wait again.
pub const TIELINE_ROUSED: i32 = 2;

/// Atomic operation: addition, wrapping.
pub const TIELINE_ATOMIC_ADD: u32 = 0;
/// Atomic operation: bitwise and.
pub const TIELINE_ATOMIC_AND: u32 = 1;
/// Atomic operation: bitwise or.
pub const TIELINE_ATOMIC_OR: u32 = 2;
/// Atomic operation: bitwise exclusive or.
pub const TIELINE_ATOMIC_XOR: u32 = 3;
/// Atomic operation: exchange.
pub const TIELINE_ATOMIC_SWAP: u32 = 4;
/// Atomic operation: stores the operand if the word equals the expected value.
pub const TIELINE_ATOMIC_COMPARE_SWAP: u32 = 5;
/// Atomic operation: unsigned minimum.
pub const TIELINE_ATOMIC_MIN: u32 = 6;
/// Atomic operation: unsigned maximum.
pub const TIELINE_ATOMIC_MAX: u32 = 7;
