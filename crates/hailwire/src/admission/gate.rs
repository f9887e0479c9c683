//! Slots that tasks hold.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use tokio::{sync::Notify, time::Instant};

use super::{
    slots::{Admitted, Shares, SlotId, Slots},
    source::Source,
};

/// A table of slots. Clones are the same table.
#[derive(Clone, Debug)]
pub(crate) struct Gate(Arc<Mutex<Table>>);

#[derive(Debug)]
struct Table {
    slots: Slots,
    /// How to tell who makes way.
    told: HashMap<SlotId, Arc<Notify>>,
}

/// A slot, held until it is dropped.
#[derive(Debug)]
pub(crate) struct Slot {
    gate: Gate,
    id: SlotId,
    displaced: Arc<Notify>,
}

impl Gate {
    pub(crate) fn new(shares: Shares) -> Self {
        Self(Arc::new(Mutex::new(Table {
            slots: Slots::new(shares),
            told: HashMap::new(),
        })))
    }

    /// A slot for a newcomer, for whom somebody else may have to make way; none where nobody does.
    pub(crate) fn enter(&self, from: Source) -> Option<Slot> {
        let mut table = self.lock();
        let Admitted::In { slot, displaced } = table.slots.enter(Instant::now(), from) else {
            return None;
        };
        let way = displaced.and_then(|displaced| table.told.remove(&displaced));
        let told = Arc::new(Notify::new());
        table.told.insert(slot, told.clone());
        drop(table);
        if let Some(way) = way {
            way.notify_one();
        }
        Some(Slot {
            gate: self.clone(),
            id: slot,
            displaced: told,
        })
    }

    fn lock(&self) -> MutexGuard<'_, Table> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Slot {
    /// Resolves when its holder has made way for somebody else. For one task at a time.
    pub(crate) async fn displaced(&self) {
        self.displaced.notified().await;
        // For whoever asks again.
        self.displaced.notify_one();
    }

    /// Its holder has shown that it goes on.
    pub(crate) fn goes_on(&self) {
        self.gate.lock().slots.goes_on(Instant::now(), self.id);
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        let mut table = self.gate.lock();
        table.slots.leave(self.id);
        table.told.remove(&self.id);
    }
}
