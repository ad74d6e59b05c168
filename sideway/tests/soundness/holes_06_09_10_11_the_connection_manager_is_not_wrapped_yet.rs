//! The peers' holes 6 (an address that dangles), 9 (contexts that are cached and closed by those who do not own
//! them), 10 (an event that is acknowledged twice) and 11 (private data that is only pointed to) are in their
//! connection managers. There is none here yet; with it, a test for each takes the place of this one.

use sideway::rdmacm::communication_manager;

fn main() {}
