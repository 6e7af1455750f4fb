//! Where calls of a store can be made to wait, so that a test decides what happens in between.

use std::sync::{Arc, Mutex};

use tokio::sync::{mpsc, oneshot};

/// When a call waits.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Moment {
    /// Nothing has happened yet.
    Before,
    /// It has happened, but nobody was told.
    After,
}

/// A call that waits, until the sender is used or dropped.
pub type Waiting = (String, oneshot::Sender<()>);

#[derive(Debug)]
struct Stop {
    moment: Moment,
    call: String,
    part: String,
    reached: mpsc::UnboundedSender<Waiting>,
}

/// The stops that were asked for; each is for one call.
#[derive(Clone, Debug, Default)]
pub struct Gate {
    stops: Arc<Mutex<Vec<Stop>>>,
}

impl Gate {
    /// Make the next such call with this part in its key wait, and say so.
    pub fn stop(
        &self,
        moment: Moment,
        call: String,
        part: String,
        reached: mpsc::UnboundedSender<Waiting>,
    ) {
        let stop = Stop {
            moment,
            call,
            part,
            reached,
        };
        self.stops.lock().expect("no panic").push(stop);
    }

    pub(crate) async fn pass(&self, moment: Moment, call: &str, key: &str) {
        let found = {
            let mut stops = self.stops.lock().expect("no panic");
            let place = stops.iter().position(|stop| {
                stop.moment == moment && stop.call == call && key.contains(&stop.part)
            });
            place.map(|place| stops.remove(place))
        };
        if let Some(stop) = found {
            let (go, waiting) = oneshot::channel();
            if stop.reached.send((key.to_string(), go)).is_ok() {
                let _ = waiting.await;
            }
        }
    }
}
