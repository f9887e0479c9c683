//! A table of slots that tasks hold.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use hailwire_core::{
    RemoteSource,
    admission::{Admission, AdmissionShares, AdmissionSlotId, AdmissionTable},
};
use tokio::sync::Notify;

use crate::clock;

/// A table of slots. Clones are the same table.
#[derive(Clone, Debug)]
pub(crate) struct AdmissionGate(Arc<Mutex<GateTable>>);

#[derive(Debug)]
struct GateTable {
    slots: AdmissionTable,
    /// How to tell who makes way.
    waiters: HashMap<AdmissionSlotId, Arc<Notify>>,
}

/// A slot, held until it is dropped.
#[derive(Debug)]
pub(crate) struct AdmissionSlot {
    gate: AdmissionGate,
    id: AdmissionSlotId,
    displaced: Arc<Notify>,
}

impl AdmissionGate {
    pub(crate) fn new(shares: AdmissionShares) -> Self {
        Self(Arc::new(Mutex::new(GateTable {
            slots: AdmissionTable::new(shares),
            waiters: HashMap::new(),
        })))
    }

    /// A slot for a newcomer, for whom somebody else may have to make way; none where nobody does.
    pub(crate) fn enter(&self, from: RemoteSource) -> Option<AdmissionSlot> {
        let mut table = self.lock();
        let Admission::Granted { slot, displaced } = table.slots.enter(clock::now(), from) else {
            return None;
        };
        let way = displaced.and_then(|displaced| table.waiters.remove(&displaced));
        let told = Arc::new(Notify::new());
        table.waiters.insert(slot, told.clone());
        drop(table);
        if let Some(way) = way {
            way.notify_one();
        }
        Some(AdmissionSlot {
            gate: self.clone(),
            id: slot,
            displaced: told,
        })
    }

    fn lock(&self) -> MutexGuard<'_, GateTable> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl AdmissionSlot {
    /// Resolves when its holder has made way for somebody else. For one task at a time.
    pub(crate) async fn displaced(&self) {
        self.displaced.notified().await;
        // For whoever asks again.
        self.displaced.notify_one();
    }

    /// Its holder has shown that it goes on.
    pub(crate) fn goes_on(&self) {
        self.gate.lock().slots.goes_on(clock::now(), self.id);
    }
}

impl Drop for AdmissionSlot {
    fn drop(&mut self) {
        let mut table = self.gate.lock();
        table.slots.leave(self.id);
        table.waiters.remove(&self.id);
    }
}
