//! How the end of an operation is told, and requests.

use super::counter::{CounterHandle, CounterObject};
use super::enter::object;
use super::error::Fault;
use super::numbers::{
    TIELINE_TELL_COUNTED as COUNTED, TIELINE_TELL_REQUEST as REQUEST,
    TIELINE_TELL_TRACKED as TRACKED,
};
use super::records::{self, Params};
use super::worker::{WorkerState, closed};
use tieline::{Outcome, Request, Status};

/// How the end of an operation is told. Null, or all zeros: by the number that the call gives, or by nobody where it is not asked for
/// (its failure is told by the endpoint's next flush).
#[repr(C)]
#[derive(Clone, Copy)]
pub struct How {
    /// Bytes of this record.
    pub size: usize,
    /// TIELINE_TELL_*.
    pub tell: u32,
    /// TIELINE_HOW_*.
    pub flags: u32,
    /// TIELINE_TELL_TRACKED: the word that its end is told with.
    pub user: u64,
    /// TIELINE_TELL_COUNTED: where.
    pub counter: *const CounterHandle,
    /// TIELINE_HOW_NOTIFY: the word that the peer is told, behind the bytes of a put.
    pub word: u32,
    /// Zero.
    pub reserved: u32,
}

// SAFETY: numbers and addresses.
unsafe impl Params for How {}

/// Requests of a worker, by their numbers: a place, and above it how often the place was used.
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

    /// The request of a number, where it has not ended.
    pub(crate) fn get(&self, number: u64) -> Result<&Request, Fault> {
        let place = (number as u32 as usize).wrapping_sub(1);
        let found = self.places.get(place).filter(|(used, _)| u64::from(*used) == number >> 32);
        found.and_then(|(_, request)| request.as_ref()).ok_or_else(|| no_request(number))
    }

    /// Takes it out for the length of a wait: its place stays its own.
    pub(crate) fn lend(&mut self, number: u64) -> Result<Request, Fault> {
        let _ = self.get(number)?;
        let kept = &mut self.places[number as u32 as usize - 1].1;
        kept.take().ok_or_else(|| no_request(number))
    }

    /// What [`lend`](Requests::lend) gave comes back; `None`: it has ended.
    pub(crate) fn put_back(&mut self, number: u64, request: Option<Request>) {
        let place = number as u32 - 1;
        // A worker that was dropped meanwhile has none.
        let Some((_, kept)) = self.places.get_mut(place as usize) else { return };
        if request.is_none() {
            self.free.push(place);
        }
        *kept = request;
    }

    /// Takes it out: its number is nobody's from here on.
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
        format!("this worker has none with the number {number:#x}, or not any more"),
        "pass a number that a call of this worker gave with TIELINE_PENDING, once",
    )
}

/// How a call's end is to be told, read and found to make sense.
pub(crate) struct Told {
    pub(crate) flags: u32,
    pub(crate) word: u32,
    tell: u32,
    user: u64,
    counter: *const CounterHandle,
}

/// Nobody said anything.
pub(crate) const USUAL: Told =
    Told { flags: 0, word: 0, tell: REQUEST, user: 0, counter: std::ptr::null() };

/// Reads what the caller wants of an operation of this worker; `flags` are those that the call knows. That it can be told so is known
/// before anything is posted.
#[inline]
pub(crate) fn read(how: *const How, flags: u32, worker: &WorkerState) -> Result<Told, Fault> {
    if how.is_null() { Ok(USUAL) } else { read_given(how, flags, worker) }
}

fn read_given(how: *const How, known: u32, worker: &WorkerState) -> Result<Told, Fault> {
    let How { tell, flags, user, counter, word, reserved, .. } = records::read(how)?;
    if flags & !known != 0 || tell > COUNTED || reserved != 0 {
        let why = format!(
            "tell {tell} with flags {flags:#x}, of which this call knows {known:#x}, and {reserved} where a zero stands"
        );
        let fix = "use TIELINE_TELL_* and the TIELINE_HOW_* of this call";
        return Err(Fault::new(Status::UnsupportedParam, "how an end is told", why, fix));
    }
    if tell != REQUEST && worker.has_ended() {
        return Err(closed());
    }
    if tell == COUNTED {
        object::<CounterObject, _>(counter)?.check_worker(worker)?;
    }
    Ok(Told { flags, word, tell, user, counter })
}

/// Whether nobody said anything of how an end is told. The place of the number has its zero then.
#[inline(always)]
pub(crate) fn is_usual(how: *const How, request: *mut u64) -> bool {
    if !how.is_null() {
        return false;
    }
    no_number(request);
    true
}

/// The number of a pending operation goes there, if it is asked for: 0 first.
#[inline]
pub(crate) fn no_number(request: *mut u64) {
    if !request.is_null() {
        // SAFETY: the caller's place.
        unsafe { request.write(0) };
    }
}

/// What a call that has posted returns: TIELINE_OK or TIELINE_PENDING, with its end told as the caller wants.
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
    if told.tell == TRACKED {
        state.worker()?.track(&outcome, told.user)?;
    } else if told.tell == COUNTED {
        object::<CounterObject, _>(told.counter)?.count(state, &outcome)?;
    } else if let (Outcome::Pending(pending), false) = (outcome, request.is_null()) {
        let number = state.requests.borrow_mut().add(pending);
        // SAFETY: the caller's place.
        unsafe { request.write(number) };
    }
    Ok(code)
}

#[cfg(test)]
mod tests {
    use super::*;
    use tieline::{Context, Worker};

    /// Requests that stay pending: nobody takes what was announced.
    fn pending(worker: &Worker) -> Request {
        let me = worker.connect(&worker.address().unwrap()).unwrap();
        match me.send(1, 0, &vec![1; 1 << 20]).unwrap() {
            Outcome::Pending(request) => {
                std::mem::forget(me);
                request
            }
            Outcome::Done(_) => panic!("a megabyte was sent at once"),
        }
    }

    #[test]
    fn a_number_is_good_once_and_a_place_that_is_used_again_has_another() {
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
    fn a_place_whose_request_is_waited_for_is_given_to_nobody() {
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
