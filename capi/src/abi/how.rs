//! Parameters that select how the completion of an operation is reported, and requests.

use super::counter::{CounterHandle, CounterObject};
use super::enter::object;
use super::error::Fault;
use super::numbers::{
    TIELINE_HOW_NUMBERED, TIELINE_TELL_COUNTED as COUNTED, TIELINE_TELL_REQUEST as REQUEST,
    TIELINE_TELL_TRACKED as TRACKED,
};
use super::records::{self, Params};
use super::worker::{WorkerState, closed};
use tieline::{Outcome, Request, Status};

/// The parameters that select how the completion of an operation is reported. If the pointer is null or all fields but `size` are
/// zero, the completion is reported by the request number that the call writes. If the caller requests no number, only a failure is
/// reported, by the endpoint's next flush.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct How {
    /// The size of this record in bytes.
    pub size: usize,
    /// The kind of the report: TIELINE_TELL_*.
    pub tell: u32,
    /// Flags of the operation: TIELINE_HOW_*.
    pub flags: u32,
    /// The word that is reported with the completion, for TIELINE_TELL_TRACKED.
    pub user: u64,
    /// The counter, for TIELINE_TELL_COUNTED.
    pub counter: *const CounterHandle,
    /// The word that the peer receives after the bytes of a put, for TIELINE_HOW_NOTIFY.
    pub word: u32,
    /// A reserved field, which must be zero.
    pub reserved: u32,
}

// SAFETY: `How` consists of numbers and addresses only.
unsafe impl Params for How {}

/// The requests of a worker, by number. A request number consists of the index of a place and, in the upper bits, the use count of
/// the place.
#[derive(Default)]
pub(crate) struct Requests {
    places: Vec<(u32, Option<Request>)>,
    free: Vec<u32>,
}

impl Requests {
    fn add(&mut self, request: Request) -> u64 {
        let place = self.free.pop().unwrap_or_else(|| {
            self.places.push((0, None));
            self.places.len() as u32 - 1
        });
        let (used, kept) = &mut self.places[place as usize];
        *used = used.wrapping_add(1);
        *kept = Some(request);
        u64::from(*used) << 32 | (u64::from(place) + 1)
    }

    /// Returns the request with this number, unless the request has ended.
    pub(crate) fn get(&self, number: u64) -> Result<&Request, Fault> {
        let place = (number as u32 as usize).wrapping_sub(1);
        let found = self.places.get(place).filter(|(used, _)| u64::from(*used) == number >> 32);
        found.and_then(|(_, request)| request.as_ref()).ok_or_else(|| no_request(number))
    }

    /// Takes the request out for the duration of a wait. The place of the request stays reserved.
    pub(crate) fn lend(&mut self, number: u64) -> Result<Request, Fault> {
        let _ = self.get(number)?;
        let kept = &mut self.places[number as u32 as usize - 1].1;
        kept.take().ok_or_else(|| no_request(number))
    }

    /// Returns a request that [`lend`](Requests::lend) took out to its place; `None` means that the request has ended.
    pub(crate) fn put_back(&mut self, number: u64, request: Option<Request>) {
        let place = number as u32 - 1;
        // A worker that was dropped during the wait has no places.
        let Some((_, kept)) = self.places.get_mut(place as usize) else { return };
        if request.is_none() {
            self.free.push(place);
        }
        *kept = request;
    }

    /// Takes the request out and releases its number.
    pub(crate) fn take(&mut self, number: u64) -> Result<Request, Fault> {
        let request = self.lend(number)?;
        self.put_back(number, None);
        Ok(request)
    }
}

#[cold]
fn no_request(number: u64) -> Fault {
    Fault::new(
        Status::Invalid,
        "a call for a pending operation",
        format!("this worker has none with the number {number:#x}, or it has ended"),
        "pass the number from a call of this worker that returned TIELINE_PENDING, once",
    )
}

/// The validated form of [`How`].
pub(crate) struct Told {
    pub(crate) flags: u32,
    pub(crate) word: u32,
    tell: u32,
    user: u64,
    counter: *const CounterHandle,
}

/// The default report: by request number.
pub(crate) const USUAL: Told =
    Told { flags: 0, word: 0, tell: REQUEST, user: 0, counter: std::ptr::null() };

/// Reads and validates how an operation of this worker is reported; `flags` are those that the call supports. The function runs
/// before the operation is posted, so that the report cannot fail later.
#[inline]
pub(crate) fn read(how: *const How, flags: u32, worker: &WorkerState) -> Result<Told, Fault> {
    if how.is_null() { Ok(USUAL) } else { read_given(how, flags, worker) }
}

fn read_given(how: *const How, known: u32, worker: &WorkerState) -> Result<Told, Fault> {
    let How { tell, flags, user, counter, word, reserved, .. } = records::read(how)?;
    let known = known | TIELINE_HOW_NUMBERED;
    if flags & !known != 0 || tell > COUNTED || reserved != 0 {
        let why = format!(
            "tell {tell} with flags {flags:#x}, of which this call knows {known:#x}, and {reserved} in a reserved field"
        );
        let fix = "use TIELINE_TELL_* and the TIELINE_HOW_* of this call";
        return Err(Fault::new(Status::UnsupportedParam, "a tieline_how record", why, fix));
    }
    if tell != REQUEST && worker.has_ended() {
        return Err(closed());
    }
    if tell == COUNTED {
        object::<CounterObject, _>(counter)?.check_worker(worker)?;
    }
    Ok(Told { flags, word, tell, user, counter })
}

/// Checks whether the default applies. If the default applies, sets the place of the request number to 0.
#[inline(always)]
pub(crate) fn is_usual(how: *const How, request: *mut u64) -> bool {
    if !how.is_null() {
        return false;
    }
    no_number(request);
    true
}

/// Sets the place of the request number to 0, if the caller gave a place.
#[inline]
pub(crate) fn no_number(request: *mut u64) {
    if !request.is_null() {
        // SAFETY: the caller guarantees that `request` is null or valid; the code has checked that it is not null.
        unsafe { request.write(0) };
    }
}

/// Makes the return value of a call that has posted: TIELINE_OK or TIELINE_PENDING. The completion is reported as the caller
/// requested.
#[inline]
pub(crate) fn posted(
    state: &WorkerState,
    outcome: Outcome,
    told: &Told,
    request: *mut u64,
) -> Result<i32, Fault> {
    match outcome {
        Outcome::Done(_) if told.tell == REQUEST => Ok(0),
        outcome => tell(state, outcome, told, request),
    }
}

#[inline(never)]
fn tell(
    state: &WorkerState,
    outcome: Outcome,
    told: &Told,
    request: *mut u64,
) -> Result<i32, Fault> {
    let code = i32::from(!outcome.is_done());
    if let (Outcome::Pending(pending), false) = (&outcome, told.tell == REQUEST) {
        if told.flags & TIELINE_HOW_NUMBERED != 0 && !request.is_null() {
            // SAFETY: the caller guarantees that `request` is null or valid; the code has checked that it is not null.
            unsafe { request.write(pending.number()) };
        }
    }
    if told.tell == TRACKED {
        state.worker()?.track(&outcome, told.user)?;
    } else if told.tell == COUNTED {
        object::<CounterObject, _>(told.counter)?.count(state, &outcome)?;
    } else if let (Outcome::Pending(pending), false) = (outcome, request.is_null()) {
        let number = state.requests.borrow_mut().add(pending);
        // SAFETY: the caller guarantees that `request` is null or valid; the code has checked that it is not null.
        unsafe { request.write(number) };
    }
    Ok(code)
}

#[cfg(test)]
mod tests {
    use super::*;
    use tieline::{Context, Worker};

    /// Makes requests that stay pending, because the receiver does not receive these rendezvous messages.
    fn pending(worker: &Worker) -> Request {
        let me = worker.connect(&worker.address().unwrap()).unwrap();
        match me.send(1, 0, &vec![1; 1 << 20]).unwrap() {
            Outcome::Pending(request) => {
                std::mem::forget(me);
                request
            }
            Outcome::Done(_) => panic!("a megabyte was sent inline"),
        }
    }

    #[test]
    fn request_number_is_valid_once_and_reused_place_gets_new_one() {
        let context = Context::open().unwrap();
        let worker = context.worker().unwrap();
        let mut requests = Requests::default();
        let first = requests.add(pending(&worker));
        assert!(requests.get(first).is_ok());
        assert!(requests.take(first).is_ok() && requests.take(first).is_err());
        let second = requests.add(pending(&worker));
        assert_eq!(first as u32, second as u32);
        assert!(first != second && requests.get(first).is_err());
        for none in [0, 7, u64::MAX] {
            assert!(requests.get(none).is_err());
        }
    }

    #[test]
    fn place_of_awaited_request_is_not_reused() {
        let context = Context::open().unwrap();
        let worker = context.worker().unwrap();
        let mut requests = Requests::default();
        let first = requests.add(pending(&worker));
        let lent = requests.lend(first).ok().unwrap();
        let second = requests.add(pending(&worker));
        assert!(requests.get(first).is_err() && requests.get(second).is_ok());
        requests.put_back(first, Some(lent));
        assert!(requests.get(first).is_ok());
    }
}
