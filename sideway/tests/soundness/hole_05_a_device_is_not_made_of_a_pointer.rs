//! A device comes from a list, never from a pointer.

use sideway::ibverbs::device::{Device, DeviceList};

fn main() {
    let list = DeviceList::new().unwrap();
    let _ = Device::new(std::ptr::null_mut(), &list);
}
