//! The values that the threads of a store share, and the answers to its requests.

use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};

/// Values under keys.
pub type Store = Mutex<BTreeMap<String, String>>;

/// The answer to a line.
pub fn answer(request: &str, store: &Store) -> String {
    let mut store = store.lock().unwrap_or_else(PoisonError::into_inner);
    let words: Vec<_> = request.splitn(3, ' ').collect();
    match words[..] {
        ["get", key] => store.get(key).cloned().unwrap_or_default(),
        ["set", key, value] => {
            store.insert(key.to_owned(), value.to_owned());
            "ok".to_owned()
        }
        _ => format!("neither `get KEY` nor `set KEY VALUE`: {request}"),
    }
}
