//! A poll out of turn: for a scale-down that would otherwise be decided on old samples. Several that ask at once get one poll.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};

use tokio::sync::{mpsc, oneshot};
use tokio::time::{Instant, timeout_at};

use crate::api::policies::PolicyKey;

/// Scale-downs that may wait for one poller; more than may be held at all are never turned away by this.
const WAITING: usize = 256;

/// Told when the poll is done.
pub type Request = oneshot::Sender<()>;

/// The pollers, by policy.
#[derive(Default)]
pub struct FreshPolls(Mutex<HashMap<PolicyKey, mpsc::Sender<Request>>>);

impl FreshPolls {
    /// Where a policy's poller hears of requests. The one before it, if any, hears no more.
    pub fn register(&self, policy: &PolicyKey) -> mpsc::Receiver<Request> {
        let (sender, receiver) = mpsc::channel(WAITING);
        self.pollers().insert(policy.clone(), sender);
        receiver
    }

    pub fn forget_policy(&self, policy: &PolicyKey) {
        self.pollers().remove(policy);
    }

    /// Waits for a poll that begins after now. False where there is no poller, or it is not done in time.
    pub async fn ask(&self, policy: &PolicyKey, deadline: Instant) -> bool {
        let Some(poller) = self.pollers().get(policy).cloned() else { return false };
        let (done, is_done) = oneshot::channel();
        poller.try_send(done).is_ok() && matches!(timeout_at(deadline, is_done).await, Ok(Ok(())))
    }

    fn pollers(&self) -> std::sync::MutexGuard<'_, HashMap<PolicyKey, mpsc::Sender<Request>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Answers everybody who asked before a poll began.
pub fn answer(waiting: Vec<Request>) {
    for request in waiting {
        // Whoever has gone meanwhile needs no answer.
        let _ = request.send(());
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::time::Duration;

    use super::*;

    fn key() -> PolicyKey {
        PolicyKey { namespace: "shop".into(), name: "web".into() }
    }

    #[tokio::test(start_paused = true)]
    async fn several_that_ask_at_once_get_one_poll() {
        let fresh = Arc::new(FreshPolls::default());
        let mut requests = fresh.register(&key());
        let poller = tokio::spawn(async move {
            let mut polls = 0;
            while let Some(first) = requests.recv().await {
                tokio::time::sleep(Duration::from_millis(10)).await;
                let mut waiting = vec![first];
                while let Ok(more) = requests.try_recv() {
                    waiting.push(more);
                }
                tokio::time::sleep(Duration::from_millis(100)).await;
                polls += 1;
                answer(waiting);
            }
            polls
        });
        let deadline = Instant::now() + Duration::from_secs(1);
        let ask = || {
            let fresh = fresh.clone();
            tokio::spawn(async move { fresh.ask(&key(), deadline).await })
        };
        let asked: Vec<_> = (0..50).map(|_| ask()).collect();
        for answer in asked {
            assert!(answer.await.unwrap());
        }
        fresh.forget_policy(&key());
        assert_eq!(poller.await.unwrap(), 1);
        assert!(!fresh.ask(&key(), deadline).await, "nobody polls any more");
    }

    #[tokio::test(start_paused = true)]
    async fn nobody_waits_beyond_the_deadline() {
        let fresh = FreshPolls::default();
        let _requests = fresh.register(&key());
        let start = Instant::now();
        assert!(!fresh.ask(&key(), start + Duration::from_millis(300)).await);
        assert_eq!(start.elapsed(), Duration::from_millis(300));
    }
}
