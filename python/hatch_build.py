"""Puts what Rust made into the wheel, which is for any Python on Linux with glibc 2.35 or newer, on x86-64.

FARPAGE_STAGE names the root that `make install` filled with PREFIX=/usr: `make wheel` sets it.
"""

import os
import sys
from pathlib import Path

from hatchling.builders.hooks.plugin.interface import BuildHookInterface
from hatchling.metadata.plugin.interface import MetadataHookInterface

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "scripts"))
from project import field  # noqa: E402

# What the libraries need of glibc (`auditwheel show` says it; a test compares).
GLIBC = "2_35"


class Addresses(MetadataHookInterface):
    def update(self, metadata):
        metadata["urls"] = {name: field(name) for name in ("repository", "issues") if field(name)}


class Hook(BuildHookInterface):
    def initialize(self, version, build_data):
        stage = os.environ.get("FARPAGE_STAGE")
        if not stage:
            raise RuntimeError("farpage's wheel has a compiled library: build it with `make wheel` in the source tree")
        usr = Path(stage) / "usr"
        build_data["pure_python"] = False
        build_data["tag"] = f"py3-none-manylinux_{GLIBC}_x86_64"
        build_data["force_include"][str(usr / "lib" / "libfarpage.so")] = "farpage/libfarpage.so"
        # Where it is on every system: in bin and lib of what the wheel is installed into.
        build_data["shared_scripts"][str(usr / "bin" / "farpage")] = "farpage"
        library = "lib/farpage/libfarpage_preload.so"
        build_data["shared_data"][str(usr / library)] = library
        build_data["force_include"][str(Path(stage) / "third-party.txt")] = "farpage/third-party.txt"
