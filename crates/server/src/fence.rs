//! Numbers count every answer that had come before they were asked for. A data thread counts a request when the last bytes
//! of its answer are written, so a client can have them a moment earlier. Whoever reads numbers lets each data thread
//! finish first what it is at: that costs requests nothing.

use std::time::Duration;

use tokio::sync::{mpsc, oneshot};
use tokio::task::yield_now;
use tokio::time::timeout;

/// Longest wait for a data thread. One that does nothing for so long counts late.
const LIMIT: Duration = Duration::from_secs(2);

/// Readers that may wait for a data thread.
const READERS: usize = 64;

/// Around all data threads.
pub(crate) struct Fence(Vec<mpsc::Sender<oneshot::Sender<()>>>);

/// A data thread's end of it.
pub(crate) struct Post(mpsc::Receiver<oneshot::Sender<()>>);

impl Fence {
    /// Around so many data threads, each of which has to keep one of the posts.
    pub(crate) fn around(threads: usize) -> (Self, Vec<Post>) {
        let (ways, posts) = (0..threads).map(|_| mpsc::channel(READERS)).unzip();
        (Self(ways), Vec::into_iter(posts).map(Post).collect())
    }

    /// Resolves when everything is counted whose last bytes, or whose client's end, were there at the call.
    pub(crate) async fn pass(&self) {
        let passed_all = async {
            let mut awaited = Vec::with_capacity(self.0.len());
            for way in &self.0 {
                let (done, passed) = oneshot::channel();
                // A thread that has ended has counted everything.
                if way.send(done).await.is_ok() {
                    awaited.push(passed);
                }
            }
            for passed in awaited {
                let _ended = passed.await;
            }
        };
        if timeout(LIMIT, passed_all).await.is_err() {
            tracing::warn!(
                "a data thread does not get on: numbers are given without what it has not counted"
            );
        }
    }
}

impl Post {
    /// Lets readers pass, for as long as its thread lives.
    pub(crate) async fn keep(mut self) {
        while let Some(done) = self.0.recv().await {
            // What the kernel tells of connections is looked at first, then those are polled that it woke, and then those
            // whom they woke.
            yield_now().await;
            yield_now().await;
            let _gone = done.send(());
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicBool, Ordering};

    use tokio::io::AsyncReadExt;
    use tokio::net::{TcpListener, TcpStream};
    use tokio_util::task::TaskTracker;

    use super::*;

    #[tokio::test]
    async fn a_client_that_has_left_is_heard_of_first() {
        let (fence, posts) = Fence::around(1);
        let tasks = TaskTracker::new();
        posts.into_iter().for_each(|post| drop(tasks.spawn(post.keep())));
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let client = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
        let mut served = listener.accept().await.unwrap().0;
        let has_heard = Arc::new(AtomicBool::new(false));
        let heard = Arc::clone(&has_heard);
        let connection = tasks.spawn(async move { served.read(&mut [0]).await });
        tasks.spawn(async move {
            assert_eq!(connection.await.unwrap().unwrap(), 0);
            heard.store(true, Ordering::SeqCst);
        });
        fence.pass().await;
        assert!(!has_heard.load(Ordering::SeqCst));
        drop(client);
        fence.pass().await;
        assert!(has_heard.load(Ordering::SeqCst));
    }

    #[tokio::test]
    async fn nobody_waits_for_a_thread_that_has_ended() {
        let (fence, posts) = Fence::around(2);
        drop(posts);
        fence.pass().await;
    }
}
