//! The owners of blocks, from the list of sockets.

use std::collections::HashMap;
use std::io;

use super::numbers::LAST_BLOCK;
use super::{NodeState, names};

/// An owner of a block, found in the list of sockets.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct BlockOwner {
    pub(crate) fabric: String,
    pub(crate) block: u16,
    /// The abstract socket name at which it listens.
    pub(crate) name: Vec<u8>,
}

/// The owners of blocks of a fabric, or of all, that are this user's or may be.
///
/// # Errors
///
/// The system has no descriptor left, or lists no sockets.
pub(crate) fn block_owners(fabric: Option<&str>, user: u32) -> io::Result<Vec<BlockOwner>> {
    let beginning = fabric.map_or_else(|| "soft-rnic/".to_owned(), |fabric| format!("soft-rnic/{fabric}/"));
    let things = names::things(&beginning, user)?.into_iter();
    Ok(things.filter_map(|(thing, name)| BlockOwner::of(&thing, name)).collect())
}

impl BlockOwner {
    /// `None` if the thing is no block. Any user may have chosen it.
    fn of(thing: &str, name: Vec<u8>) -> Option<Self> {
        let (fabric, block) = thing.strip_prefix("soft-rnic/")?.rsplit_once('/')?;
        let block = block.parse().ok().filter(|block| (1..=LAST_BLOCK).contains(block))?;
        // Names with another `/` belong to ports and domains.
        (!fabric.contains('/')).then(|| Self { fabric: fabric.to_owned(), block, name })
    }
}

impl NodeState {
    /// All blocks that have an owner of this user, each with the names at which it listens.
    pub(super) fn block_owners(&self) -> io::Result<HashMap<u16, Vec<Vec<u8>>>> {
        let fabric = Some(self.common.settings.fabric.as_str());
        let mut blocks = HashMap::<_, Vec<_>>::new();
        for BlockOwner { block, name, .. } in block_owners(fabric, self.socket_user)? {
            blocks.entry(block).or_default().push(name);
        }
        Ok(blocks)
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::BlockOwner;

    #[test]
    fn blocks_are_told_from_other_things() {
        let of = |thing: &str| BlockOwner::of(thing, Vec::new()).map(|owner| (owner.fabric, owner.block));
        assert_eq!(of("soft-rnic//7"), Some((String::new(), 7)));
        assert_eq!(of("soft-rnic/lab/1023"), Some(("lab".to_owned(), 1023)));
        for other in ["1024", "0", "x", "cm/1/p7", "cm/1/7", "xrc/1a-2b/lock", "xrc/1a-2b/open", ""] {
            assert_eq!(of(&format!("soft-rnic/lab/{other}")), None, "{other}");
        }
        assert_eq!(of("soft-rnic"), None);
    }
}
