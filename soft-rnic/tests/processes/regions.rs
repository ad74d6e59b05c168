//! Regions over device memory, dma-bufs and nothing (null regions), reached from another process on
//! every data path.

use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

use libtest_mimic::Trial;
use rdma_mummy_sys::types::*;
use rdma_mummy_sys::verbs;
use soft_rnic::status::Traffic;

use crate::copies::{post_mixed, statuses};
use crate::kit::{ALL, QpAddress, TestDevice, dereg, lib, rkey, until};
use crate::partner::{LEN, PATIENCE, TestEndpoint};
use crate::role::{self, ChildRole, say, told};

const SUCCESS: ibv_wc_status = ibv_wc_status::IBV_WC_SUCCESS;
const SEND: ibv_wr_opcode = ibv_wr_opcode::IBV_WR_SEND;
const ROUNDS: u8 = 20;

pub(crate) fn trials() -> Vec<Trial> {
    let paths = ["auto", "vm", "call"].map(|path| {
        Trial::test(format!("regions::each_is_reached_by_the_path_{path}"), move || {
            role::run(&format!("regions {path}"), &[("SOFT_RNIC_PATH", path)])
        })
    });
    let dma = Trial::test("regions::a_dma_buf_is_reached_by_its_owner_alone", || {
        role::run("regions dma", &[("SOFT_RNIC_PATH", "auto")])
    });
    // A system without /dev/udmabuf cannot make a dma-buf.
    let none = !std::path::Path::new(UDMABUF).exists();
    paths.into_iter().chain([dma.with_ignored_flag(none)]).collect()
}

const UDMABUF: &str = "/dev/udmabuf";
/// The size of the file, in whole pages.
const ROOM: u64 = (2 * LEN as u64).next_multiple_of(4096);

/// A dma-buf of a memory file.
fn dma_buf(file: &OwnedFd) -> OwnedFd {
    #[repr(C)]
    struct UffdCreate {
        memfd: u32,
        flags: u32,
        offset: u64,
        size: u64,
    }
    /// `UDMABUF_CREATE`
    const CREATE: libc::c_ulong = 0x4018_7542;
    let maker = std::fs::File::options().read(true).write(true).open(UDMABUF).expect(UDMABUF);
    let mut create = UffdCreate { memfd: file.as_raw_fd() as u32, flags: 1, offset: 0, size: ROOM };
    // SAFETY: the struct is the one of this request; nobody else has the returned descriptor.
    unsafe {
        let made = libc::ioctl(maker.as_raw_fd(), CREATE as _, &raw mut create);
        assert!(made >= 0, "UDMABUF_CREATE: {}", std::io::Error::last_os_error());
        OwnedFd::from_raw_fd(made)
    }
}

/// Device memory, part of a file, and a null region; each is registered.
struct KindsOfRegions {
    dm: *mut ibv_dm,
    file: std::fs::File,
    mrs: [*mut ibv_mr; 3],
}

impl KindsOfRegions {
    fn new(device: TestDevice, dma: bool) -> Self {
        let mut attr = ibv_alloc_dm_attr { length: LEN, log_align_req: 3, comp_mask: 0 };
        let flags = rustix::fs::MemfdFlags::CLOEXEC | rustix::fs::MemfdFlags::ALLOW_SEALING;
        let file = rustix::fs::memfd_create("test", flags).expect("a memory file");
        rustix::fs::ftruncate(&file, ROOM).expect("room");
        rustix::fs::fcntl_add_seals(&file, rustix::fs::SealFlags::SHRINK).expect("a seal");
        let made = dma.then(|| dma_buf(&file));
        let registered = made.as_ref().unwrap_or(&file).as_raw_fd();
        // Regions of such memory cannot bind windows.
        let all = ALL & !ibv_access_flags::IBV_ACCESS_MW_BIND.0.cast_signed();
        let access = all as u32 | ibv_access_flags::IBV_ACCESS_ZERO_BASED.0;
        let register = lib().ibv_reg_dmabuf_mr().expect("the device supports it");
        // SAFETY: the context and the domain are live, and the memory lives until it is freed.
        let (dm, mrs) = unsafe {
            let dm = verbs::ibv_alloc_dm(device.context, &raw mut attr);
            assert!(!dm.is_null(), "ibv_alloc_dm: {}", std::io::Error::last_os_error());
            let mrs = [
                verbs::ibv_reg_dm_mr(device.pd, dm, 0, LEN, access),
                register(device.pd, 4096 + 8, LEN, 8, registered, all),
                verbs::ibv_alloc_null_mr(device.pd),
            ];
            (dm, mrs)
        };
        assert!(mrs.iter().all(|mr| !mr.is_null()), "{}", std::io::Error::last_os_error());
        Self { dm, file: file.into(), mrs }
    }

    /// The offset of the first byte of a region that differs from `byte`.
    fn differs(&self, which: usize, byte: u8) -> Option<usize> {
        use std::os::unix::fs::FileExt;
        let mut bytes = vec![!byte; LEN];
        if which == 0 {
            // SAFETY: the memory is live, and `bytes` has room for all of it.
            let result = unsafe { verbs::ibv_memcpy_from_dm(bytes.as_mut_ptr().cast(), self.dm, 0, LEN) };
            assert_eq!(result, 0);
        } else {
            self.file.read_exact_at(&mut bytes, 4096 + 8).expect("the file");
        }
        bytes.into_iter().position(|there| there != byte)
    }

    fn close(self) {
        for mr in self.mrs {
            assert_eq!(dereg(mr), 0);
        }
        // SAFETY: the memory is live, and has no regions left.
        assert_eq!(unsafe { verbs::ibv_free_dm(self.dm) }, 0);
    }
}

/// The owner role: the other process accesses its regions.
pub(crate) fn owner(arguments: &[String]) {
    let side = TestEndpoint::new();
    let regions = KindsOfRegions::new(side.device, arguments == ["dma"]);
    let own = side.address();
    for (mr, addr) in regions.mrs.iter().zip([0, 8, 0]) {
        say(&QpAddress { addr, rkey: rkey(*mr), ..own }.to_string());
    }
    let to: QpAddress = told().expect("a line").parse().expect("an address");
    side.connect(&to);
    say("ready");
    while let Some(line) = told() {
        let words: Vec<u8> = line.split(' ').map(|word| word.parse().expect("a number")).collect();
        match words[..] {
            [which, byte] => say(&format!("{:?}", regions.differs(which.into(), byte))),
            // A list of messages: the second arrives in the null region, the third behind it.
            [.., last] if words.len() == 3 => {
                // SAFETY: the region is live.
                let lkey = unsafe { (*regions.mrs[2]).lkey };
                let nowhere = ibv_sge { addr: 0, length: 1 << 20, lkey };
                side.memory.fill(last);
                let places = [side.memory.sge(side.mr, 0, 400), nowhere, side.memory.sge(side.mr, 400, 600)];
                for (id, place) in (10..).zip(places) {
                    assert_eq!(side.qp.receive(id, place), 0);
                }
                say("posted");
                for (id, len) in [(10, 300), (11, 5000), (12, 500)] {
                    let wc = until("a message", PATIENCE, || side.cq.poll().filter(|wc| wc.wr_id >= 9));
                    assert_eq!((wc.wr_id, wc.status, wc.byte_len), (id, SUCCESS, len));
                }
                let there = [0, 299, 300, 399, 400, 899, 900].map(|at| side.memory.byte(at).to_string());
                say(&there.join(" "));
            }
            // A message into the null region; reports its length.
            _ => {
                // SAFETY: the region is live.
                let lkey = unsafe { (*regions.mrs[2]).lkey };
                let nowhere = ibv_sge { addr: 1 << 40, length: 1 << 30, lkey };
                assert_eq!(side.qp.receive(9, nowhere), 0);
                say("posted");
                let wc = until("a message", PATIENCE, || side.cq.poll().filter(|wc| wc.wr_id == 9));
                assert_eq!(wc.status, SUCCESS);
                say(&wc.byte_len.to_string());
            }
        }
    }
    regions.close();
    side.close();
}

/// The traffic to the partner.
pub(crate) fn traffic() -> Traffic {
    let statistics = soft_rnic::statistics().expect("the device is open");
    let to_others = statistics.peers.into_iter().filter(|peer| peer.pid != Some(std::process::id()));
    to_others.map(|peer| peer.traffic).next().expect("a partner exists")
}

pub(crate) fn play(arguments: &[String]) {
    let path = arguments[0].as_str();
    let (role, allowed) = if path == "dma" { ("region-owner dma", "auto") } else { ("region-owner", path) };
    let mut partner = ChildRole::start(role, &[("SOFT_RNIC_PATH", allowed)]);
    let side = TestEndpoint::new();
    let places: [QpAddress; 3] = [(); 3].map(|()| partner.hear().parse().expect("an address"));
    partner.tell(&side.address().to_string());
    side.connect(&places[0]);
    assert_eq!(partner.hear(), "ready");
    // Use up the receives that the partner began with.
    (0..4).for_each(|_| assert_eq!(side.run(ibv_wr_opcode::IBV_WR_SEND, &places[2]), SUCCESS));
    for byte in 1..=ROUNDS {
        for (which, place) in places[..2].iter().enumerate() {
            side.memory.fill(byte);
            assert_eq!(side.run(ibv_wr_opcode::IBV_WR_RDMA_WRITE, place), SUCCESS);
            partner.tell(&format!("{which} {byte}"));
            assert_eq!(partner.hear(), "None", "region {which}");
            side.memory.fill(0);
            assert_eq!(side.run(ibv_wr_opcode::IBV_WR_RDMA_READ, place), SUCCESS);
            assert_eq!(side.memory.differs(byte), None, "region {which}");
        }
        partner.tell("9");
        assert_eq!(partner.hear(), "posted");
        assert_eq!(side.run(ibv_wr_opcode::IBV_WR_SEND, &places[2]), SUCCESS);
        assert_eq!(partner.hear(), LEN.to_string());
        // One list of messages, whose receives lie in different regions.
        partner.tell("0 0 77");
        assert_eq!(partner.hear(), "posted");
        side.memory.fill(byte);
        post_mixed(&side, &places[2], &[(SEND, 0, 300), (SEND, 0, 5000), (SEND, 0, 500)]);
        assert_eq!(statuses(&side, 3), [0, 1, 2].map(|id| (id, SUCCESS)));
        assert_eq!(partner.hear(), format!("{byte} {byte} 77 77 {byte} {byte} 77"));
    }
    let went = traffic();
    let to_memory = u64::from(ROUNDS) * 4;
    match path {
        // All messages, except the first ones, which are sent before the mappings exist.
        "auto" => assert!(went.direct.messages > to_memory / 2, "{went:?}"),
        "dma" => assert!(went.call.messages >= to_memory / 2 && went.direct.messages > 0, "{went:?}"),
        "vm" => assert!(went.vm.messages >= to_memory && went.call.messages == 0, "{went:?}"),
        _ => assert!(went.call.messages >= to_memory && went.vm.messages == 0, "{went:?}"),
    }
    // The null region grants no remote access.
    assert_eq!(side.run(ibv_wr_opcode::IBV_WR_RDMA_READ, &places[2]), ibv_wc_status::IBV_WC_REM_ACCESS_ERR);
    drop(partner);
    side.close();
}
