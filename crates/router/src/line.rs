//! The wait for a place at a worker, when each has as many requests as it may: in the same queue, as far as its length and
//! its patience go, as the wait for admission.

use std::sync::Arc;

use forebay_workers::{Places, Ticket};
use tokio::time::{Instant, timeout_at};

use crate::admission::{Admission, Waiting};
use crate::failure::Failure;

/// A place in the line, given up by drop.
pub(crate) struct InLine<'a> {
    ticket: Ticket,
    _waiting: Waiting<'a>,
    until: Option<Instant>,
}

impl<'a> InLine<'a> {
    /// Goes to the end of the line for a worker of the pool of this label.
    ///
    /// # Errors
    /// Too many wait already.
    pub(crate) fn join(admission: &'a Admission, places: &Arc<Places>, label: u32) -> Result<Self, Failure> {
        let waiting = admission.wait().ok_or(Failure::Overloaded)?;
        let until = Instant::now().checked_add(admission.timeout());
        Ok(Self { ticket: places.stand(label), _waiting: waiting, until })
    }

    /// Whether it may look for a place before it is called.
    pub(crate) fn may_look(&self) -> bool {
        self.ticket.may_look()
    }

    /// It leaves without a place: if it was called to one, that is another's.
    pub(crate) fn leave(self) {
        self.ticket.leave();
    }

    /// There was nothing for this one: waits until it is worth another look.
    ///
    /// # Errors
    /// The wait took too long.
    pub(crate) async fn called(&self) -> Result<(), Failure> {
        self.ticket.pass_on();
        match self.until {
            Some(until) => timeout_at(until, self.ticket.called()).await.map_err(|_| Failure::QueueTimeout),
            None => {
                self.ticket.called().await;
                Ok(())
            }
        }
    }
}
