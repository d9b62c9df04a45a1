//! Whose fault an error of a socket is: the worker's, or this process's own. It opens no socket.

use std::error::Error;
use std::io;

/// Out of file descriptors, of this process or of the machine; out of local ports; out of buffers.
const OWN: [i32; 4] = [24, 23, 99, 105];

/// Whether this error, or one that caused it, says something of this process or machine alone.
pub fn is_own_fault(error: &(dyn Error + 'static)) -> bool {
    let mut next = Some(error);
    while let Some(error) = next {
        let code = error.downcast_ref::<io::Error>().and_then(io::Error::raw_os_error);
        if code.is_some_and(|code| OWN.contains(&code)) {
            return true;
        }
        next = error.source();
    }
    false
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_own_fault_is_found_behind_what_it_caused() {
        let refused = io::Error::from_raw_os_error(111);
        assert!(!is_own_fault(&refused));
        assert!(!is_own_fault(&io::Error::other("24")));
        let out_of_descriptors = io::Error::from_raw_os_error(24);
        assert!(is_own_fault(&out_of_descriptors));
        #[derive(Debug, thiserror::Error)]
        #[error("cannot connect")]
        struct Cannot(#[source] io::Error);
        assert!(is_own_fault(&Cannot(out_of_descriptors)));
        assert!(!is_own_fault(&Cannot(refused)));
    }
}
