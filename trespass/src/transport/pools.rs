//! The buffer pools of this process: connections share one if their pool configuration and their
//! device are the same.

use std::io;
use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::config::Config;
#[cfg(feature = "rdma")]
use crate::pool::DomainSet;
use crate::pool::{Pool, PoolConfig};
use crate::process::PerProcess;
#[cfg(feature = "rdma")]
use crate::wire::Unavailable;

type Pools = Mutex<Vec<(PoolConfig, Pool)>>;

/// The process's pools, each with its configuration. Several entries can have the same
/// configuration, one for each device or set of devices. A forked child makes new ones, because the
/// locks of its copies may be held for ever.
static POOLS: PerProcess<Pools> = PerProcess::new();

fn pools() -> MutexGuard<'static, Vec<(PoolConfig, Pool)>> {
    POOLS.get().lock().unwrap_or_else(PoisonError::into_inner)
}

/// Removes the pools registered in `domain`, because its device has failed. Later connections get a
/// new pool. The connections of a pool with further devices keep it, and use it over those.
#[cfg(feature = "rdma")]
pub(crate) fn forget_pools_of(domain: &sideway::ibverbs::protection_domain::ProtectionDomain) {
    crate::pool::note_failure(domain);
    let mut pools = pools();
    pools.retain(|(_, pool)| !pool.give_up(domain));
}

/// The pool that a configuration starts with: the program's pool if it gave one, else the first
/// pool with this configuration, else a new one.
pub(crate) fn pool_of(config: &Config) -> io::Result<Pool> {
    if let Some(pool) = &config.given_pool {
        return Ok(pool.clone());
    }
    let wanted = config.pool_config();
    let mut pools = pools();
    if let Some((_, pool)) = pools.iter().find(|(config, _)| *config == wanted) {
        return Ok(pool.clone());
    }
    let pool = Pool::new(&wanted).map_err(|error| io::Error::new(io::ErrorKind::OutOfMemory, error))?;
    pools.push((wanted, pool.clone()));
    Ok(pool)
}

/// The current pool, or, if its device has failed, the pool that the configuration starts with now.
pub(crate) fn usable_pool(current: &Pool, config: &Config) -> io::Result<Pool> {
    if current.is_given_up() { pool_of(config) } else { Ok(current.clone()) }
}

/// The pool for connections over the devices with these protection domains.
///
/// The current pool is used if it can be registered in these domains, else the process's pool for
/// these devices. A pool that the program supplied is never replaced: if it belongs to other
/// domains, this fails.
#[cfg(feature = "rdma")]
pub(crate) fn pool_over(
    domains: impl Into<DomainSet>,
    current: Option<&Pool>,
    config: &Config,
) -> Result<Pool, Unavailable> {
    use crate::pool::PoolError;
    use crate::transport::rc::resources::of_pool;

    let domains = domains.into();
    if let Some(current) = current {
        match current.register_in(&domains) {
            Ok(()) => return check_can_send(current.clone()),
            Err(PoolError::OtherDomain) if config.given_pool.is_none() => (),
            // Another connection of the program has several devices.
            Err(PoolError::OtherDomain) if current.has_primary(&domains) => {
                return check_can_send(current.clone());
            }
            Err(error) => return Err(of_pool(&error)),
        }
    }
    let wanted = config.pool_config();
    let mut pools = pools();
    let known = pools.iter().find(|(config, pool)| *config == wanted && pool.register_in(&domains).is_ok());
    if let Some((_, pool)) = known {
        return check_can_send(pool.clone());
    }
    let pool = Pool::with_domains(&wanted, &domains).map_err(|error| of_pool(&error))?;
    pools.push((wanted, pool.clone()));
    check_can_send(pool)
}

/// Fails if the device registers no memory to send from, because a write would then wait for it for
/// ever. A pool that is merely empty passes, because its blocks return.
#[cfg(feature = "rdma")]
fn check_can_send(pool: Pool) -> Result<Pool, Unavailable> {
    if pool.take(1).is_none() && pool.is_refused() {
        return Err(crate::transport::rc::resources::locked_memory("the device registers none to send from"));
    }
    Ok(pool)
}

#[cfg(all(test, unix, not(miri), not(loom)))]
mod tests {
    use super::*;
    use crate::config::Builder;
    use crate::process::passes_in_child;

    /// Another thread may be in the pools when a thread forks.
    #[test]
    fn a_forked_child_has_pools_of_its_own() {
        let config = Builder::new().build().unwrap();
        let held = pools();
        assert!(passes_in_child(|| pool_of(&config).is_ok()), "the child waits for a lock of its parent");
        drop(held);
    }
}
