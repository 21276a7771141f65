//! Results of unknown length: a slot that writes bytes or a list is called with a larger buffer if the first is too short.

use super::guarded::Guarded;
use tieline_plugin_api::Status;

/// The maximum number of bytes accepted from a slot that writes bytes.
const MOST_BYTES: usize = 1 << 20;
/// The length of the buffer with which a slot that writes bytes is called first.
const FIRST_ROOM: usize = 256;
/// The number of records for which a slot that writes a list has room first. Few lists are longer, and making one may take a dozen
/// system calls.
const FIRST_RECORDS: usize = 4;
/// The maximum number of records accepted from a slot that writes a list.
const MOST_RECORDS: usize = 4096;

/// Calls a slot that writes bytes and returns their length. The buffer grows until the bytes fit, to `MOST_BYTES` at most.
pub(crate) fn grown(mut call: impl FnMut(*mut u8, usize) -> i64) -> Result<Vec<u8>, Status> {
    let mut buffer = Vec::new();
    appended(&mut buffer, &mut call)?;
    Ok(buffer)
}

/// Calls a slot like [`grown`], and appends its bytes to a buffer. On an error the buffer is unchanged.
pub(crate) fn appended(
    buffer: &mut Vec<u8>,
    mut call: impl FnMut(*mut u8, usize) -> i64,
) -> Result<(), Status> {
    let (from, mut room) = (buffer.len(), FIRST_ROOM);
    loop {
        buffer.resize(from + room, 0);
        let len = call(buffer[from..].as_mut_ptr(), room);
        let written = usize::try_from(len).map_err(|_| Status::from_code(len as i32));
        match written {
            Ok(len) if len <= room => {
                buffer.truncate(from + len);
                return Ok(());
            }
            Ok(len) if len <= MOST_BYTES => room = len,
            Ok(_) => {
                buffer.truncate(from);
                return Err(Status::ProviderFailed);
            }
            Err(status) => {
                buffer.truncate(from);
                return Err(status);
            }
        }
    }
}

/// The reason for a missing list.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unlisted {
    /// The slot returned this negative status, or its list is too long.
    Code(i32),
    /// The slot has written beside the buffer that it was given.
    Overrun,
}

/// Calls a slot that writes a list. The first call has a buffer of a few copies of `empty`, and the next one a buffer for the whole
/// list if that is longer. The call is repeated if the list has grown.
pub fn listed<T: Copy>(
    empty: T,
    mut call: impl FnMut(*mut T, usize, *mut usize) -> i32,
) -> Result<Vec<T>, Unlisted> {
    let mut length = Guarded::new(0, 1);
    let mut ask = |out: *mut T, capacity| -> Result<usize, Unlisted> {
        let code = call(out, capacity, length.at());
        match length.first(1)[..] {
            [count] if code >= 0 && length.is_whole() => Ok(count),
            _ if code < 0 => Err(Unlisted::Code(code)),
            _ => Err(Unlisted::Overrun),
        }
    };
    let mut count = FIRST_RECORDS;
    loop {
        if count > MOST_RECORDS {
            return Err(Unlisted::Code(Status::ProviderFailed as i32));
        }
        let capacity = count;
        let mut room = Guarded::new(empty, capacity);
        let asked = ask(room.at(), capacity);
        if !room.is_whole() {
            return Err(Unlisted::Overrun);
        }
        count = asked?;
        // The list may have grown or shrunk between the two calls.
        if count <= capacity {
            return Ok(room.first(count));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the result of a slot that writes `bytes` bytes, and the buffer sizes with which it was called.
    fn bytes(len: usize) -> (Result<usize, Status>, Vec<usize>) {
        let mut rooms = Vec::new();
        let answer = grown(|_, room| {
            rooms.push(room);
            len as i64
        });
        (answer.map(|bytes| bytes.len()), rooms)
    }

    #[test]
    fn bytes_are_asked_for_with_more_room_until_they_fit() {
        assert_eq!(bytes(0), (Ok(0), vec![256]));
        assert_eq!(bytes(256), (Ok(256), vec![256]));
        assert_eq!(bytes(257), (Ok(257), vec![256, 257]));
        assert_eq!(bytes(MOST_BYTES), (Ok(MOST_BYTES), vec![256, MOST_BYTES]));
        assert_eq!(bytes(MOST_BYTES + 1), (Err(Status::ProviderFailed), vec![256]));
        assert_eq!(grown(|_, _| Status::NoDevice as i64), Err(Status::NoDevice));
        let written = grown(|at, room| {
            // SAFETY: the buffer has `room` bytes.
            unsafe { at.write_bytes(7, room.min(300)) };
            300
        });
        assert_eq!(written, Ok(vec![7; 300]));
        let mut behind = vec![1, 2];
        assert_eq!(appended(&mut behind, |_, _| Status::NoDevice as i64), Err(Status::NoDevice));
        let too_long = appended(&mut behind, |_, _| MOST_BYTES as i64 + 1);
        assert_eq!((too_long, &behind[..]), (Err(Status::ProviderFailed), &[1, 2][..]));
        let one = |at: *mut u8, _| {
            // SAFETY: the buffer has 256 bytes.
            unsafe { at.write(3) };
            1
        };
        assert_eq!((appended(&mut behind, one), behind), (Ok(()), vec![1, 2, 3]));
    }

    /// The result for a slot that reports these lengths in turn, and the capacities that it was called with.
    fn list(lens: &[usize]) -> (Result<usize, Unlisted>, Vec<usize>) {
        let (mut rooms, mut lens) = (Vec::new(), lens.iter());
        let answer = listed(0u8, |_, room, count| {
            rooms.push(room);
            // SAFETY: `count` is the caller's variable.
            unsafe { *count = *lens.next().unwrap() };
            0
        });
        (answer.map(|records| records.len()), rooms)
    }

    #[test]
    fn a_list_is_asked_for_its_length_and_again_when_it_has_grown_meanwhile() {
        assert_eq!(list(&[0]), (Ok(0), vec![4]));
        assert_eq!(list(&[4]), (Ok(4), vec![4]));
        assert_eq!(list(&[5, 5]), (Ok(5), vec![4, 5]));
        assert_eq!(list(&[5, 2]), (Ok(2), vec![4, 5]));
        assert_eq!(list(&[5, 6, 6]), (Ok(6), vec![4, 5, 6]));
        assert_eq!(list(&[MOST_RECORDS, MOST_RECORDS]), (Ok(4096), vec![4, 4096]));
        let failed = Err(Unlisted::Code(Status::ProviderFailed as i32));
        assert_eq!(list(&[MOST_RECORDS + 1]), (failed, vec![4]));
        assert_eq!(list(&[5, MOST_RECORDS + 1]), (failed, vec![4, 5]));
        let io = Status::Io as i32;
        assert_eq!(listed(0u8, |_, _, _| io), Err(Unlisted::Code(io)));
        let later = listed(0u8, |_, room, count| {
            // SAFETY: `count` is the caller's variable.
            unsafe { *count = 5 };
            if room == 4 { 0 } else { io }
        });
        assert_eq!(later, Err(Unlisted::Code(io)));
    }

    #[test]
    fn a_list_that_is_written_beside_its_room_is_no_list() {
        let written = |at: isize| {
            listed(7u64, |out, room, count| {
                // SAFETY: the caller's number, and a word of the room or beside it.
                unsafe {
                    *count = 2;
                    if room > 0 {
                        *out.offset(at) = 1;
                    }
                }
                0
            })
        };
        assert_eq!((written(0), written(1)), (Ok(vec![1, 7]), Ok(vec![7, 1])));
        for beside in [-512, -1, 4, 515] {
            assert_eq!(written(beside), Err(Unlisted::Overrun), "{beside}");
        }
    }
}
