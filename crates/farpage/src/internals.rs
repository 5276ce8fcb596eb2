//! The one door for what is built with the library, of the same version: the command, the preload library, the
//! measurements, and the tests in `tests/`. It shows what they use, by the paths of the crate, and nothing else.
//!
//! Nobody inside the crate comes in this way. Whoever stops using a name takes it off the list: then the compiler says
//! what is unused behind it.

pub mod conf {
    pub use crate::conf::{
        Alg, Conf, DeviceKind, ENV_CONF, ENV_DISABLE, ENV_STAT_FD, ENV_UFFD_FD, RAM_MIN, SwapSpec, parse_idle,
        parse_idle_poll, parse_readahead,
    };
    pub mod address {
        pub use crate::conf::address::Endpoint;
    }
    pub mod nbd {
        pub use crate::conf::nbd::NbdSpec;
    }
    pub mod redis {
        pub use crate::conf::redis::{ENV_PASSWORD, PasswordFrom, RedisSpec};
    }
    pub mod size {
        pub use crate::conf::size::{SizeError, format, parse, parse_of};
    }
    pub mod tuning {
        pub use crate::conf::tuning::{CONTROLLERS, ControllerInfo, TuneScope};
    }
}

pub mod mem {
    pub mod arena {
        pub use crate::mem::arena::Part;
    }
    pub mod count {
        pub use crate::mem::count::{Counting, allocations};
    }
    pub mod heap {
        pub use crate::mem::heap::Heap;
    }
    pub mod units {
        pub use crate::mem::units::Page;
    }
}

pub mod mm {
    pub mod page_hash {
        pub use crate::mm::page_hash::ContentKey;
    }
}

pub mod probe {
    pub use crate::probe::{
        DEVICE, FEATURES, Probe, Refusal, Verdict, errno_text, inherited_device, misc_device, open_device,
    };
    pub mod wake {
        pub use crate::probe::wake::WakeUp;
    }
}

pub mod run {
    pub mod budget {
        pub mod park {
            pub use crate::run::budget::park::{ASKED, PARKED, UNPARK};
        }
    }
    pub mod build {
        pub use crate::run::build::start_bytes;
    }
    pub mod cpus {
        pub mod cpu_latency {
            pub use crate::run::cpus::cpu_latency::is_possible;
        }
    }
    pub mod dormant {
        pub use crate::run::dormant::{leave_alone, wipes};
    }
    pub mod ended {
        pub use crate::run::ended::{end, end_at_once};
    }
    pub mod fork {
        pub use crate::run::fork::{child, child_of, parent, prepare, release, reserve, touch};
    }
    pub mod mappings {
        pub mod library_guard {
            pub use crate::run::mappings::library_guard::ProgramChange;
        }
    }
    pub mod given_uffds {
        pub use crate::run::given_uffds::{forget, give};
    }
    pub mod late {
        pub use crate::run::late::{LateStartError, Prepared, prepare, start};
        pub use crate::run::outcome::{StartFailure, StartOutcome};
    }
    pub mod pager {
        pub mod robust {
            pub use crate::run::pager::robust::used;
        }
        pub mod trace {
            pub use crate::run::pager::trace::{MAGIC, TraceKind, TraceRecord};
        }
    }
    pub mod preload {
        pub use crate::run::preload::{follow_forks, is_asked, start};
    }
    pub mod program {
        pub use crate::run::program::{handed_out, thread_started};
    }
    pub mod start {
        pub use crate::run::start::{
            before_filter, engine_for, engine_that_dozes, fork_child, grown, handed_out, shared, waits_for_children,
            wake_now,
        };
    }
    pub mod state {
        pub use crate::run::state::{Engine, engine};
    }
}

pub mod stat {
    pub use crate::stat::{
        EVENTS, Event, Exported, FAMILY, FULL, MAGIC, MEMFD_NAME, MappingReadahead, PAGER_THREAD_NAME, STAT_BYTES,
        Stat, THREAD_NAME, Value, Waiting, bucket_end, new_memfd, percentile_ns,
    };
}

pub mod swap {
    pub use crate::swap::{DeviceError, Entry, SwapSpace};
    pub mod file {
        pub use crate::swap::file::{check, check_mirror};
    }
    pub mod io {
        pub use crate::swap::io::{BATCH_MAX, Batch, Direction, Place, Rings, Transferred};
    }
    pub mod read_queue {
        pub use crate::swap::read_queue::{Arrived, ReadQueue, Submitted};
    }
    pub mod remote {
        pub use crate::swap::remote::HolderLease;
        pub mod nbd {
            pub use crate::swap::remote::nbd::Export;
        }
    }
    pub mod redis {
        pub mod server {
            pub use crate::swap::redis::server::{Server, ServerMemory, settle};
        }
        pub mod sweep {
            pub use crate::swap::redis::sweep::{KnownSession, remove, sessions};
        }
    }
    pub mod space {
        pub mod build {
            pub use crate::swap::space::build::{check_memory, resolve};
        }
    }
    pub mod zram {
        pub mod lz4 {
            pub use crate::swap::zram::lz4::{Compressor, bound, decompress};
        }
    }
}

pub mod sys {
    pub mod cpu {
        pub use crate::sys::cpu::count;
    }
    pub mod descriptor {
        pub use crate::sys::descriptor::{FileId, keep_across_exec};
    }
    pub mod escape {
        pub use crate::sys::escape::unescape;
    }
    pub mod loader {
        pub use crate::sys::loader::{ExecFormat, LoaderKind, SCRIPTS, format, is_library_here, is_program, kind};
    }
    pub mod pagemap {
        pub use crate::sys::pagemap::is_of_this_process;
    }
    pub mod pm_qos {
        pub use crate::sys::pm_qos::DEVICE;
    }
    pub mod raw {
        pub use crate::sys::raw::{Errno, ErrnoText, gettid, syscall};
    }
    pub mod thread {
        pub use crate::sys::thread::{engine_errno, is_engine_thread, thread_pointer};
    }
    pub mod uffd {
        pub mod given {
            pub use crate::sys::uffd::given::{FLAGS, KINDS, NEW, switch_on};
        }
    }
}

pub mod tree {
    pub use crate::tree::{
        ClampedPages, ENV_TREE_FD, Header, Member, MemberKind, SEGMENT_NAME, Segment, UNLIMITED, create, inherited,
        is_in_nest, named, nest, open,
    };
    pub mod mapped {
        pub use crate::tree::mapped::{MappedSegment, open};
    }
    pub mod sums {
        pub use crate::tree::sums::Sums;
    }
    pub mod strangers {
        pub use crate::tree::strangers::{announce, leaving, stays};
    }
}
