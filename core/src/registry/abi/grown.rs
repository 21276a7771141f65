//! Answers of any length: slots that write bytes or a list are asked with room that grows.

use tieline_plugin_api::Status;

/// Longest answer that is taken from a slot that writes bytes.
const MOST_BYTES: usize = 1 << 20;
/// Longest list that is taken from a slot that writes a list.
const MOST_RECORDS: usize = 4096;

/// Calls a slot that writes bytes and returns their length, with a larger buffer until they fit.
pub(crate) fn grown(mut call: impl FnMut(*mut u8, usize) -> i64) -> Result<Vec<u8>, Status> {
    let mut buffer = vec![0; 256];
    loop {
        let len = call(buffer.as_mut_ptr(), buffer.len());
        let len = usize::try_from(len).map_err(|_| Status::from_code(len as i32))?;
        if len <= buffer.len() {
            buffer.truncate(len);
            return Ok(buffer);
        }
        if len > MOST_BYTES {
            return Err(Status::ProviderFailed);
        }
        buffer.resize(len, 0);
    }
}

/// Calls a slot that writes a list, asking first how long it is. Every record's `size` is that of `empty`.
pub(crate) fn listed<T: Copy>(
    empty: T,
    mut call: impl FnMut(*mut T, usize, *mut usize) -> i32,
) -> Result<Vec<T>, i32> {
    let mut count = 0;
    let code = call(std::ptr::null_mut(), 0, &mut count);
    if code < 0 {
        return Err(code);
    }
    loop {
        if count > MOST_RECORDS {
            return Err(Status::ProviderFailed as i32);
        }
        if count == 0 {
            return Ok(Vec::new());
        }
        let mut records = vec![empty; count];
        let code = call(records.as_mut_ptr(), records.len(), &mut count);
        if code < 0 {
            return Err(code);
        }
        // The list may have grown or shrunk between the two calls.
        if count <= records.len() {
            records.truncate(count);
            return Ok(records);
        }
    }
}
