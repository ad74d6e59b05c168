//! A device cannot be used after its list was freed.

use sideway::ibverbs::device::{Device, DeviceList};

fn outlive() -> Device<'static> {
    let list = DeviceList::new().unwrap();
    list.first().unwrap()
}

fn main() {
    let list = DeviceList::new().unwrap();
    let device = list.first().unwrap();
    drop(list);
    println!("{}", device.name());
    outlive();
}
