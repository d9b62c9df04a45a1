//! A body that goes on while it comes. What was read is held as long as it is little, so that another worker may still
//! have all of it; it chooses nobody.

use std::future::poll_fn;
use std::ops::Range;
use std::pin::pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use forebay_openai::FormReader;
use tokio::sync::Notify;
use tokio::time::{sleep, timeout};

use crate::failure::Failure;
use crate::incoming::Incoming;
use crate::patience::Patience;
use crate::upstream::Source;

/// Most bytes of an upload that are held, and searched for its model.
pub(crate) const HELD: usize = 1024 * 1024;

/// Most pieces that these may be in.
const PIECES: usize = 256;

/// A body that goes on while it comes.
pub(crate) struct Upload(Mutex<State>);

struct State {
    body: Box<dyn Incoming>,
    patience: Patience,
    /// Largest body, in bytes.
    limit: usize,
    /// What was read, as long as it is little.
    held: Vec<Bytes>,
    held_bytes: usize,
    /// Pieces of it that were handed out in this attempt.
    at: usize,
    /// Some of what was handed out is not held any more.
    spent: bool,
    ended: bool,
    /// Pieces that were handed out in all attempts.
    handed_out: u64,
    /// The next piece was asked for and has not come.
    awaits_client: bool,
    /// Told when it has.
    all_here: Arc<Notify>,
    /// Bytes that were read.
    read: u64,
    /// Of the whole body, if it was told.
    length: Option<u64>,
}

impl Upload {
    /// Of a body that may be so large, and of which the next bytes may take so long.
    pub(crate) fn new(
        mut body: impl Incoming,
        limit: usize,
        patience: Option<Duration>,
    ) -> Result<Self, Failure> {
        body.as_it_comes();
        let length = body.exact();
        if length.is_some_and(|length| length > limit as u64) {
            return Err(Failure::BodyTooLarge { limit });
        }
        Ok(Self(Mutex::new(State {
            body: Box::new(body),
            patience: Patience::new(patience, None),
            limit,
            held: Vec::new(),
            held_bytes: 0,
            at: 0,
            spent: false,
            ended: false,
            handed_out: 0,
            awaits_client: false,
            all_here: Arc::default(),
            read: 0,
            length,
        })))
    }

    /// Reads on until the form has told its model, but no further than it can be held.
    pub(crate) async fn read_form(&self, form: &mut FormReader) -> Result<(), Failure> {
        let mut so_far = Vec::new();
        while form.model().is_none() && !form.is_over() && so_far.len() < HELD {
            let Some(piece) = poll_fn(|cx| self.state().poll_read(cx)).await else { break };
            so_far.extend_from_slice(&piece?);
            form.read(&so_far);
        }
        let mut state = self.state();
        state.held_bytes = so_far.len();
        state.held.extend((!so_far.is_empty()).then(|| Bytes::from(so_far)));
        Ok(())
    }

    /// Puts a text in the place of another, in what was read for the model.
    pub(crate) fn rewrite(&self, place: Range<usize>, text: &[u8]) {
        let mut state = self.state();
        let State { held, held_bytes, length, .. } = &mut *state;
        let Some(begin) = held.first_mut() else { return };
        *length = length.map(|length| length + text.len() as u64 - place.len() as u64);
        *begin = [&begin[..place.start], text, &begin[place.end..]].concat().into();
        *held_bytes = begin.len();
    }

    /// Whether all that was handed out can be handed out again.
    pub(crate) fn can_be_repeated(&self) -> bool {
        !self.state().spent
    }

    /// An attempt begins.
    pub(crate) fn begin(&self) {
        let mut state = self.state();
        (state.at, state.awaits_client) = (0, false);
    }

    /// Resolves when it is the worker's turn for so long: it has got all of the body, or takes in no more of it.
    pub(crate) async fn left_waiting(&self, limit: Duration) {
        let mut seen = None;
        while timeout(limit, self.ended()).await.is_err() {
            let now = {
                let state = self.state();
                (!state.awaits_client).then_some(state.handed_out)
            };
            if now.is_some() && now == seen {
                return;
            }
            seen = now;
        }
        sleep(limit).await;
    }

    /// Resolves when all of the body has come, for each attempt that waits for it.
    async fn ended(&self) {
        let all_here = self.state().all_here.clone();
        let mut told = pin!(all_here.notified());
        // Listens before it looks, so that an end in between is heard.
        told.as_mut().enable();
        if !self.state().ended {
            told.await;
        }
    }

    /// Bytes of the whole body, if they were told.
    pub(crate) fn length(&self) -> Option<u64> {
        self.state().length
    }

    /// Bytes that have come.
    pub(crate) fn read(&self) -> u64 {
        self.state().read
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Source for &Upload {
    type Error = Failure;

    fn poll_piece(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Bytes, Failure>>> {
        let mut state = self.state();
        if let Some(held) = state.held.get(state.at).cloned() {
            state.at += 1;
            state.handed_out += 1;
            return Poll::Ready(Some(Ok(held)));
        }
        let read = state.poll_read(cx);
        state.awaits_client = read.is_pending();
        if let Poll::Ready(Some(Ok(piece))) = &read {
            state.handed_out += 1;
            state.hold(piece);
        }
        read
    }

    fn length(&self) -> Option<u64> {
        Upload::length(self)
    }
}

impl State {
    fn poll_read(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Bytes, Failure>>> {
        if self.ended {
            return Poll::Ready(None);
        }
        let piece = match self.body.poll_data(cx) {
            Poll::Ready(Some(Ok(piece))) => piece,
            Poll::Ready(Some(Err(_))) => return Poll::Ready(Some(Err(Failure::BodyCut))),
            Poll::Ready(None) => {
                self.ended = true;
                self.all_here.notify_waiters();
                return Poll::Ready(None);
            }
            Poll::Pending => return self.patience.poll(cx).map(|_| Some(Err(Failure::BodyTimeout))),
        };
        self.patience.moved();
        self.read += piece.len() as u64;
        if self.read > self.limit as u64 {
            return Poll::Ready(Some(Err(Failure::BodyTooLarge { limit: self.limit })));
        }
        Poll::Ready(Some(Ok(piece)))
    }

    /// Keeps what is handed out, or lets go of everything if that becomes too much.
    fn hold(&mut self, piece: &Bytes) {
        self.held_bytes += piece.len();
        if self.spent || self.held_bytes > HELD || self.held.len() >= PIECES {
            (self.spent, self.held) = (true, Vec::new());
            return;
        }
        self.held.push(piece.clone());
        self.at = self.held.len();
    }
}

#[cfg(test)]
mod tests {
    use std::task::Waker;

    use super::*;
    use crate::incoming::BodyGone;

    /// A body in these pieces, that breaks off with an empty one.
    struct Pieces(Vec<Vec<u8>>);

    impl Incoming for Pieces {
        fn poll_data(&mut self, _cx: &mut Context<'_>) -> Poll<Option<Result<Bytes, BodyGone>>> {
            if self.0.is_empty() {
                return Poll::Ready(None);
            }
            let piece = self.0.remove(0);
            Poll::Ready(Some(if piece.is_empty() { Err(BodyGone) } else { Ok(piece.into()) }))
        }

        fn exact(&self) -> Option<u64> {
            None
        }
    }

    fn upload(pieces: &[&[u8]]) -> Upload {
        let pieces = Pieces(pieces.iter().map(|piece| piece.to_vec()).collect());
        Upload::new(pieces, 4 * HELD, None).unwrap()
    }

    fn all(mut upload: &Upload) -> Result<Vec<u8>, Failure> {
        let (mut cx, mut all) = (Context::from_waker(Waker::noop()), Vec::new());
        upload.begin();
        while let Poll::Ready(Some(piece)) = upload.poll_piece(&mut cx) {
            all.extend_from_slice(&piece?);
        }
        Ok(all)
    }

    #[test]
    fn what_is_held_can_be_handed_out_again_and_what_is_not_cannot() {
        let short = upload(&[b"abc", b"def"]);
        assert_eq!((all(&short).unwrap(), all(&short).unwrap()), (b"abcdef".to_vec(), b"abcdef".to_vec()));
        assert!(short.can_be_repeated());
        let (half, rest) = (vec![b'x'; HELD / 2], vec![b'y'; HELD / 2 + 1]);
        let long = upload(&[&half, &rest, b"z"]);
        assert_eq!(all(&long).unwrap().len(), HELD + 2);
        assert!(!long.can_be_repeated() && long.state().held.is_empty());
    }

    #[test]
    fn a_body_that_breaks_off_or_is_too_large_is_told_apart() {
        assert_eq!(all(&upload(&[b"a", b""])).unwrap_err(), Failure::BodyCut);
        let large = upload(&[&vec![0; 4 * HELD], b"x"]);
        assert_eq!(all(&large).unwrap_err(), Failure::BodyTooLarge { limit: 4 * HELD });
    }

    #[test]
    fn every_attempt_is_told_that_the_body_has_ended() {
        let upload = upload(&[b"abc"]);
        let mut cx = Context::from_waker(Waker::noop());
        let mut waiting = pin!(upload.ended());
        assert!(waiting.as_mut().poll(&mut cx).is_pending());
        all(&upload).unwrap();
        assert!(waiting.as_mut().poll(&mut cx).is_ready());
        assert!(pin!(upload.ended()).poll(&mut cx).is_ready(), "the next attempt too");
    }

    #[tokio::test(start_paused = true)]
    async fn a_worker_is_waited_for_only_when_it_is_its_turn() {
        /// Gives one piece, and then nothing.
        struct Stalls(bool);
        impl Incoming for Stalls {
            fn poll_data(&mut self, _cx: &mut Context<'_>) -> Poll<Option<Result<Bytes, BodyGone>>> {
                let piece = Ok(Bytes::from_static(b"abc"));
                if std::mem::take(&mut self.0) { Poll::Ready(Some(piece)) } else { Poll::Pending }
            }

            fn exact(&self) -> Option<u64> {
                None
            }
        }
        let (limit, mut cx) = (Duration::from_secs(1), Context::from_waker(Waker::noop()));
        let upload = Upload::new(Stalls(true), HELD, None).unwrap();
        assert!((&mut &upload).poll_piece(&mut cx).is_ready());
        assert!(timeout(4 * limit, upload.left_waiting(limit)).await.is_ok(), "it takes in no more");
        assert!((&mut &upload).poll_piece(&mut cx).is_pending());
        assert!(timeout(9 * limit, upload.left_waiting(limit)).await.is_err(), "the client is slow");
    }

    #[tokio::test]
    async fn what_was_read_for_the_model_is_handed_out_first() {
        let form = b"--b\r\nContent-Disposition: form-data; name=\"model\"\r\n\r\nm\r\n--b--";
        let upload = upload(&[&form[..9], &form[9..], b"tail"]);
        let mut reader = FormReader::new(b"b");
        upload.read_form(&mut reader).await.unwrap();
        assert_eq!(reader.model(), Some("m"));
        assert_eq!(all(&upload).unwrap(), [&form[..], b"tail"].concat());
    }
}
