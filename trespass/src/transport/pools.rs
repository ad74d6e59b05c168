//! The pools of this process: connections with the same pool configuration over the same device share one.

use std::io;
use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::config::Config;
use crate::pool::{Pool, PoolConfig};
#[cfg(feature = "rdma")]
use crate::wire::Unavailable;

/// The process's pools: all connections whose configurations want the same pool, over the same device or over none, share it.
static POOLS: Mutex<Vec<(PoolConfig, Pool)>> = Mutex::new(Vec::new());

fn pools() -> MutexGuard<'static, Vec<(PoolConfig, Pool)>> {
    POOLS.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The device of this domain has failed: whoever wants a pool from now on gets another one.
#[cfg(feature = "rdma")]
pub(crate) fn forget_pools_of(domain: &sideway::ibverbs::protection_domain::ProtectionDomain) {
    let mut pools = pools();
    pools.retain(|(_, pool)| !pool.give_up(domain));
}

/// The pool that a configuration begins with: its first device's, if there is one.
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

/// The pool at hand, or, where its device has failed, the one that the configuration begins with now.
pub(crate) fn usable_pool(current: &Pool, config: &Config) -> io::Result<Pool> {
    if current.is_given_up() { pool_of(config) } else { Ok(current.clone()) }
}

/// The pool of a configuration for connections over the device that has this domain: the one at hand, if there is one and it can be that,
/// else the process's for that device. A pool of the program's own is never another.
#[cfg(feature = "rdma")]
pub(crate) fn pool_over(
    domain: &sideway::ibverbs::protection_domain::ProtectionDomain,
    current: Option<&Pool>,
    config: &Config,
) -> Result<Pool, Unavailable> {
    use crate::pool::PoolError;
    let unavailable = |error: PoolError| Unavailable::new(crate::wire::Cause::Resources, error.to_string());
    if let Some(current) = current {
        match current.register(domain) {
            Ok(()) => return check_can_send(current.clone()),
            Err(PoolError::OtherDomain) if config.given_pool.is_none() => (),
            Err(error) => return Err(unavailable(error)),
        }
    }
    let wanted = config.pool_config();
    let mut pools = pools();
    let known = pools.iter().find(|(config, pool)| *config == wanted && pool.register(domain).is_ok());
    if let Some((_, pool)) = known {
        return check_can_send(pool.clone());
    }
    let pool = Pool::with_domain(&wanted, domain).map_err(unavailable)?;
    pools.push((wanted, pool.clone()));
    check_can_send(pool)
}

/// Where the device registers nothing to send from, what is written would wait for it for ever. (A pool that is empty has some again.)
#[cfg(feature = "rdma")]
fn check_can_send(pool: Pool) -> Result<Pool, Unavailable> {
    if pool.take(1).is_none() && pool.is_refused() {
        let words =
            "the device registers no memory to send from; raise the limit of locked memory (ulimit -l)";
        return Err(Unavailable::new(crate::wire::Cause::Resources, words));
    }
    Ok(pool)
}
