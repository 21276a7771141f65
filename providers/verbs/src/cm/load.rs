//! Loads librdmacm when the first connector is opened, not earlier.

#![allow(unsafe_code)]

use super::abi::*;
use crate::abi::ibv_qp_attr;
use crate::load::functions;
use core::ffi::{CStr, c_int, c_uint, c_void};
use std::path::Path;
use std::sync::OnceLock;
use tieline_plugin_api::process::Owner;
use tieline_plugin_api::{Failure, Status};

/// The file name of the library.
const LIBRARY: &CStr = c"librdmacm.so.1";
/// The device file of the kernel's connection manager.
#[cfg(not(test))]
const DEVICE: &str = "/dev/infiniband/rdma_cm";

functions! {
    LIBRARY, "23",
    [
        rdma_create_event_channel: fn() -> *mut rdma_event_channel;
        rdma_destroy_event_channel: fn(*mut rdma_event_channel) -> ();
        rdma_get_cm_event: fn(*mut rdma_event_channel, *mut *mut rdma_cm_event) -> c_int;
        rdma_ack_cm_event: fn(*mut rdma_cm_event) -> c_int;
        rdma_create_id: fn(*mut rdma_event_channel, *mut *mut rdma_cm_id, *mut c_void, c_uint) -> c_int;
        rdma_destroy_id: fn(*mut rdma_cm_id) -> c_int;
        rdma_bind_addr: fn(*mut rdma_cm_id, *mut sockaddr_room) -> c_int;
        rdma_listen: fn(*mut rdma_cm_id, c_int) -> c_int;
        rdma_resolve_addr: fn(*mut rdma_cm_id, *mut sockaddr_room, *mut sockaddr_room, c_int) -> c_int;
        rdma_resolve_route: fn(*mut rdma_cm_id, c_int) -> c_int;
        rdma_init_qp_attr: fn(*mut rdma_cm_id, *mut ibv_qp_attr, *mut c_int) -> c_int;
        rdma_connect: fn(*mut rdma_cm_id, *mut rdma_conn_param) -> c_int;
        rdma_establish: fn(*mut rdma_cm_id) -> c_int;
        rdma_accept: fn(*mut rdma_cm_id, *mut rdma_conn_param) -> c_int;
        rdma_reject: fn(*mut rdma_cm_id, *const c_void, u8) -> c_int;
        rdma_disconnect: fn(*mut rdma_cm_id) -> c_int;
        rdma_set_option: fn(*mut rdma_cm_id, c_int, c_int, *mut c_void, usize) -> c_int;
    ]
    []
}

/// Returns librdmacm, which stays loaded for the life of the process.
///
/// # Errors
/// The kernel module or the library is missing or cannot be used, or a forked child asks for its parent's library. The text says
/// what to do.
pub(crate) fn library() -> Result<&'static Library, Failure> {
    static LOADED: OnceLock<Result<Library, Failure>> = OnceLock::new();
    static OWNER: Owner = Owner::new();
    #[cfg(not(test))]
    device(Path::new(DEVICE))?;
    // The library's open devices belong to the parent process, and its locks do not work across processes.
    if !OWNER.take() {
        let text = "this is a forked child, and its parent has loaded librdmacm or tried to: librdmacm keeps devices open for the \
                    parent alone. Start the child by exec, or fork before a context is opened";
        return Err(Failure::new(Status::Unsupported, text));
    }
    #[cfg(not(test))]
    let load = || load(LIBRARY);
    // Tests run without a kernel connection manager.
    #[cfg(test)]
    let load = || Ok(super::double::sys::library());
    LOADED.get_or_init(load).as_ref().map_err(Clone::clone)
}

/// Checks the kernel's device file. Without this file, the library fails immediately with little explanation.
fn device(at: &Path) -> Result<(), Failure> {
    match std::fs::OpenOptions::new().read(true).write(true).open(at) {
        Ok(_) => Ok(()),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
            let text = format!("there is no {}: `modprobe rdma_ucm`", at.display());
            Err(Failure::new(Status::NoDevice, text))
        }
        Err(error) => Err(Failure::from_io(&format!("{}", at.display()), &error)),
    }
}

fn load(name: &CStr) -> Result<Library, Failure> {
    Library::open(name, "librdmacm1 (rdma-core)")
}

#[cfg(test)]
mod tests {
    use super::*;
    use tieline_testing::holds_in_child;

    #[test]
    fn forked_child_refuses_the_library_loaded_by_its_parent() {
        assert!(library().is_ok());
        assert!(holds_in_child(|| {
            let refused = library().err();
            refused.is_some_and(|why| why.text.contains("its parent has loaded librdmacm"))
        }));
        assert!(library().is_ok());
    }

    #[test]
    fn kernel_without_connection_manager_is_reported_in_one_line() {
        let failure = device(Path::new("/nonexistent/rdma_cm")).expect_err("there is none");
        assert_eq!(failure.text, "there is no /nonexistent/rdma_cm: `modprobe rdma_ucm`");
        assert_eq!(failure.status, Status::NoDevice);
    }

    #[test]
    fn missing_library_is_reported_with_its_package() {
        let failure = load(c"librdmacm.so.99").err().expect("there is none");
        assert!(failure.text.contains("librdmacm1"), "{}", failure.text);
        assert!(!failure.text.contains('\n'), "{}", failure.text);
    }
}
