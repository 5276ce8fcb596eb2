"""Everything that puts farpage on a machine: what it puts where, that it works from there, and that it takes all of it
away again.

    make test-packages

With PROFILE=checked, as in make test, of the checked build; of a release it is cargo install, too, that is tested.
Files of an installation go below `target/tests`, packages into a clean root (`clean_root.py`)."""

import gzip
import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import unittest
import unittest.mock
from pathlib import Path

import clean_root

ROOT = Path(__file__).resolve().parent.parent.parent
sys.path.insert(0, str(ROOT / "scripts"))
import links  # noqa: E402

TARGET = ROOT / "target"
# make finds it in the environment. The checked build has commands with all features, as cargo install makes them.
PROFILE = os.environ.setdefault("PROFILE", "checked")
BUILT = TARGET / PROFILE
PAGES = ROOT / "crates" / "farpage-cli" / "pages"
VERSION = re.search(r'^version = "(.*)"', (ROOT / "Cargo.toml").read_text(encoding="utf-8"), re.M)[1]
MANUAL = sorted(page.name for page in (PAGES / "man1").iterdir())

# Holds and checks twice its budget. Every Debian has this much of perl.
HOLD = """my @kept = map { $_ . "y" x 1000 } 1 .. 50000;
die if grep { $kept[$_ - 1] ne $_ . "y" x 1000 } 1 .. 50000;
print "right";"""


def check(done):
    """Its standard output; with all that it said if it failed."""
    if done.returncode != 0:
        raise AssertionError(f"{done.args}: {done.returncode}\n{done.stdout}{done.stderr}")
    return done.stdout


def run(*argv, **options):
    options = {"capture_output": True, "text": True, "stdin": subprocess.DEVNULL, "check": False} | options
    return subprocess.run([str(a) for a in argv], **options)


def make(*arguments):
    return check(run("make", "--no-print-directory", "-C", ROOT, *arguments))


def sections(elf):
    return set(re.findall(r"\] (\.\S+)", check(run("readelf", "-SW", elf))))


def files_below(directory):
    return {str(path.relative_to(directory)) for path in directory.rglob("*") if not path.is_dir()}


def dead_links(documents):
    """Of the pages below that directory."""
    pages = sorted(documents.rglob("*.md"))
    with unittest.mock.patch.object(links, "ROOT", documents):
        return [line for page in pages for line in links.wrong(page)]


class Packages(unittest.TestCase):
    def setUp(self):
        TARGET.joinpath("tests").mkdir(parents=True, exist_ok=True)
        self.dir = Path(tempfile.mkdtemp(prefix="packages-", dir=TARGET / "tests")).resolve()
        self.addCleanup(shutil.rmtree, self.dir)

    def clean_root(self):
        if obstacle := clean_root.obstacle():
            self.skipTest(obstacle)
        place = self.dir / "root"
        place.mkdir()
        return clean_root.Root(place)

    def works_in(self, root, *before, library):
        """A program that needs twice its budget is right, and some of it was swapped out."""
        argv = [*before, "farpage", "run", "--ram", "24M", "--stats-json", "/tmp/stats", "--", "perl", "-e"]
        self.assertEqual(check(root.run(*argv, HOLD)), "right")
        stats = root.path / "tmp" / "stats"
        self.assertGreater(json.loads(stats.read_text())["pswpout"], 1000)
        stats.unlink()
        told = check(root.run(*before, "farpage", "run", "--ram", "24M", "--", "sh", "-c", "echo $LD_PRELOAD"))
        self.assertRegex(told, f"\\A{library}\n\\Z")


class Install(Packages):
    def setUp(self):
        super().setUp()
        self.prefix = self.dir / "usr"
        # What versions before 0.1.0 put beside the command would be found first.
        (self.prefix / "bin").mkdir(parents=True)
        (self.prefix / "bin" / "libfarpage_preload.so").write_text("old")
        make("install", f"PREFIX={self.prefix}")

    def test_everything_has_its_place_and_goes(self):
        library = f"lib/libfarpage.so.{VERSION}"
        documents = ["README.md", "CHANGELOG.md", "LICENSE-APACHE", "LICENSE-MIT", "table.c",
                     "60-userfaultfd.rules", "sysusers.conf", "farpage-guard.service", "service.conf", "compose.yaml",
                     "kubernetes.yaml", "Containerfile"]
        pages = [f"docs/{name}" for name in files_below(ROOT / "docs")]
        documents += ["docs/README.md"] + [page for page in pages if page.startswith(("docs/user/", "docs/pictures/"))]
        wanted = {"bin/farpage", "lib/farpage/libfarpage_preload.so", library, "lib/libfarpage.so.0",
                  "lib/libfarpage.so", "lib/libfarpage.a", "lib/pkgconfig/farpage.pc", "include/farpage.h",
                  "share/bash-completion/completions/farpage", "share/fish/vendor_completions.d/farpage.fish",
                  "share/zsh/site-functions/_farpage"}
        wanted |= {f"share/man/man1/{page}" for page in MANUAL} | {f"share/doc/farpage/{name}" for name in documents}
        self.assertEqual(files_below(self.prefix), wanted)
        for name in ("bin/farpage", "lib/farpage/libfarpage_preload.so", library):
            self.assertFalse({".debug_line", ".symtab"} & sections(self.prefix / name), name)
        command = [self.prefix / "bin" / "farpage", "run", "--ram", "64M", "--force", "-q", "--"]
        told = check(run(*command, "sh", "-c", "echo $LD_PRELOAD"))
        self.assertEqual(told, f"{self.prefix}/lib/farpage/libfarpage_preload.so\n")
        make("uninstall", f"PREFIX={self.prefix}")
        self.assertEqual(files_below(self.prefix), set())
        left = [place for place in ("lib/farpage", "share/doc/farpage") if (self.prefix / place).exists()]
        self.assertEqual(left, [])

    def test_links_of_installed_pages_lead_somewhere(self):
        documents = self.prefix / "share" / "doc" / "farpage"
        self.assertEqual(dead_links(documents), [])
        (documents / "docs" / "user" / "run.md").unlink()
        self.assertIn("README.md: no such file: docs/user/run.md", dead_links(documents))

    def test_programs_find_the_library_unless_a_packager_installs_it(self):
        self.assertIn("ldconfig", make("--dry-run", "install"))
        self.assertIn("ldconfig", make("--dry-run", "uninstall"))
        self.assertNotIn("ldconfig", make("--dry-run", "install", f"DESTDIR={self.dir}"))

    def test_symbols_stay_for_who_wants_them(self):
        make("install", f"PREFIX={self.prefix}", "STRIP=")
        self.assertIn(".symtab", sections(self.prefix / "lib" / "farpage" / "libfarpage_preload.so"))


class Pages(unittest.TestCase):
    @unittest.skipIf(shutil.which("groff") is None, "groff is not installed")
    def test_the_manual_is_right_for_groff(self):
        for page in MANUAL:
            done = run("groff", "-man", "-Tutf8", "-ww", "-rCHECKSTYLE=0", PAGES / "man1" / page)
            self.assertEqual((done.returncode, done.stderr), (0, ""), page)
            self.assertIn("SEE ALSO", re.sub("\x1b\\[[0-9]*m|.\b", "", done.stdout), page)

    def test_the_manual_has_every_command(self):
        names = ("run", "attach", "park", "set", "stat", "doctor", "size", "bench", "bench-program")
        self.assertLessEqual({"farpage.1"} | {f"farpage-{name}.1" for name in names}, set(MANUAL))

    def test_bash_completes(self):
        def offered(*words):
            script = """source "$0"; COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1))
                _farpage "$1" "${!#}" "$1"; echo "${COMPREPLY[@]}" """
            return check(run("bash", "-c", script, PAGES / "bash" / "farpage", "farpage", *words)).split()

        self.assertIn("run", offered(""))
        self.assertEqual(offered("sta"), ["stat"])
        self.assertEqual(offered("run", "--stats-"), ["--stats-json"])
        self.assertNotIn("bench-guard", offered(""))

    def test_other_shells_read_theirs(self):
        for shell, name in (("zsh", "_farpage"), ("fish", "farpage.fish")):
            with self.subTest(shell):
                if shutil.which(shell) is None:
                    self.skipTest(f"{shell} is not installed")
                check(run(shell, "-n", PAGES / shell / name))


class Documents(unittest.TestCase):
    def test_pages_quote_the_files_that_are_shipped(self):
        rule = (ROOT / "packaging" / "60-userfaultfd.rules").read_text(encoding="utf-8").splitlines()[-1]
        for page in ("README.md", "docs/user/run.md"):
            self.assertIn(rule, (ROOT / page).read_text(encoding="utf-8"), page)

    def test_udev_understands_the_rule(self):
        rule = ROOT / "packaging" / "60-userfaultfd.rules"
        if shutil.which("udevadm") is None or "verify" not in run("udevadm", "--help").stdout:
            self.skipTest("udevadm verify came with systemd 254")
        check(run("udevadm", "verify", rule))

    @unittest.skipIf(shutil.which("systemd-analyze") is None, "systemd is not installed")
    def test_systemd_understands_the_service(self):
        with tempfile.TemporaryDirectory(prefix="farpage-unit-") as place:
            text = (ROOT / "packaging" / "farpage-guard.service").read_text(encoding="utf-8")
            unit = Path(place, "farpage-guard.service")
            unit.write_text(text.replace("/usr/bin/farpage", "/bin/true"))
            done = run("systemd-analyze", "verify", "--man=no", unit)
            self.assertNotIn("farpage-guard", done.stderr + done.stdout)

    @unittest.skipIf(shutil.which("systemd-analyze") is None, "systemd is not installed")
    def test_systemd_understands_the_example(self):
        with tempfile.TemporaryDirectory(prefix="farpage-unit-") as place:
            unit = Path(place, "example.service")
            unit.write_text("[Service]\nExecStart=/bin/true\nUser=daemon\n")
            dropin = Path(place, "example.service.d")
            dropin.mkdir()
            text = (ROOT / "packaging" / "service.conf").read_text(encoding="utf-8")
            text = text.replace("/usr/bin/farpage", "/bin/true").replace("/usr/bin/program", "/bin/true")
            (dropin / "farpage.conf").write_text(text)
            done = run("systemd-analyze", "verify", "--man=no", unit)
            self.assertNotIn("example.service", done.stderr + done.stdout)


    def test_the_schema_of_kubernetes_allows_the_example(self):
        with tempfile.TemporaryDirectory(prefix="farpage-kubernetes-") as venv:
            check(run(sys.executable, "-m", "venv", venv))
            check(run(f"{venv}/bin/pip", "--disable-pip-version-check", "install", "--quiet", "kubernetes-validate"))
            example = ROOT / "packaging" / "kubernetes.yaml"
            told = check(run(f"{venv}/bin/kubernetes-validate", "--strict", example))
            self.assertEqual(told.count("passed"), 2)


class Deb(Packages):
    @classmethod
    def setUpClass(cls):
        if shutil.which("dpkg-deb") is None:
            raise unittest.SkipTest("this machine has no dpkg")
        make("deb")
        cls.debs = sorted((TARGET / "deb").glob("*.deb"))

    def test_what_is_in_it(self):
        self.assertEqual([deb.name for deb in self.debs],
                         [f"{name}_{VERSION}_amd64.deb" for name in ("farpage", "libfarpage-dev", "libfarpage0")])
        places = command, development, library = [self.dir / deb.stem for deb in self.debs]
        for deb, place in zip(self.debs, places):
            check(run("dpkg-deb", "--raw-extract", deb, place))
        for name in ("usr/bin/farpage", "usr/lib/farpage/libfarpage_preload.so", "usr/lib/sysusers.d/farpage.conf",
                     "usr/lib/udev/rules.d/60-userfaultfd.rules", "usr/lib/systemd/system/farpage-guard.service",
                     "usr/share/doc/farpage/examples/service.conf",
                     "usr/share/zsh/vendor-completions/_farpage", "usr/share/doc/farpage/copyright",
                     *(f"usr/share/man/man1/{page}.gz" for page in MANUAL)):
            self.assertTrue((command / name).is_file(), name)
        self.assertFalse([path for path in files_below(command) if "include" in path or "pkgconfig" in path])
        libraries = "usr/lib/x86_64-linux-gnu"
        for name in ("usr/include/farpage.h", f"{libraries}/libfarpage.a", f"{libraries}/pkgconfig/farpage.pc"):
            self.assertTrue((development / name).is_file(), name)
        self.assertTrue((development / libraries / "libfarpage.so").is_symlink())
        self.assertTrue((library / libraries / "libfarpage.so.0").is_file())
        self.assertEqual(dead_links(command / "usr/share/doc/farpage"), [])
        control = (command / "DEBIAN" / "control").read_text()
        self.assertRegex(control, r"\nDepends: libc6 \(>= 2\.\d\d\)")
        others = gzip.open(command / "usr/share/doc/farpage/third-party.txt.gz", "rt").read()
        for name in ("clap ", "zstd-sys ", "lz4-sys ", "Yann Collet", "uPlot: ", "Leon Sorokin"):
            self.assertIn(name, others)
        for bits in {oct(p.lstat().st_mode & 0o7022) for p in [command, *command.rglob("*")] if not p.is_symlink()}:
            self.assertEqual(bits, "0o0")

    @unittest.skipIf(shutil.which("lintian") is None, "lintian is not installed")
    def test_lintian_finds_no_errors(self):
        # An address for contact is the packager's to give.
        make("deb", "MAINTAINER=A Packager <packager@debian.org>")
        check(run("lintian", "--allow-root", "--fail-on", "error", *self.debs))

    def test_installed_in_a_clean_root_it_works_and_leaves_no_trace(self):
        root = self.clean_root()
        for deb in self.debs:
            shutil.copy(deb, root.path)
        debs = [f"/{deb.name}" for deb in self.debs]
        before = root.files()
        check(root.run("dpkg", "--install", *debs))

        self.works_in(root, library="/usr/lib/farpage/libfarpage_preload.so")
        # What the rule gives to the group; without it there is no access.
        rule = (root.path / "usr/lib/udev/rules.d/60-userfaultfd.rules").read_text()
        group, mode = re.search(r'GROUP="(\w+)", MODE="(\d+)"', rule).groups()
        as_member = ["sh", "-ec", f'chgrp {group} /dev/userfaultfd; chmod {mode} /dev/userfaultfd; exec "$@"', "sh",
                     "setpriv", "--reuid=nobody", "--regid=nogroup"]
        self.works_in(root, *as_member, f"--groups={group}", library="/usr/lib/farpage/libfarpage_preload.so")
        if Path("/proc/sys/vm/unprivileged_userfaultfd").read_text().strip() == "0":
            self.assertEqual(root.run(*as_member, "--clear-groups", "farpage", "doctor").returncode, 1)

        names = [deb.name.split("_")[0] for deb in self.debs]
        check(root.run("dpkg", "--remove", *names))
        left = {path for path, what in root.files().items() if before.get(path) != what}
        of_dpkg = {f"var/lib/dpkg/info/farpage.{kind}" for kind in ("list", "postrm")}
        self.assertEqual(left - {"etc/group", "etc/gshadow"}, of_dpkg)
        check(root.run("dpkg", "--purge", *names))
        self.assertEqual(root.files(), before)
        self.assertNotIn("farpage", check(root.run("dpkg-query", "--show")))

    def test_a_system_that_is_too_old_is_refused(self):
        root = self.clean_root()
        status = root.path / "var/lib/dpkg/status"
        older = re.sub(r"(\nPackage: libc6\n.*?\nVersion: )\S+", r"\g<1>2.17-1", status.read_text(), flags=re.S)
        status.write_text(older)
        shutil.copy(self.debs[0], root.path)
        done = root.run("dpkg", "--install", f"/{self.debs[0].name}")
        self.assertNotEqual(done.returncode, 0)
        self.assertIn("farpage depends on libc6", done.stderr)


class Cargo(Packages):
    def installed_by_cargo(self):
        # What is built already need not be built again; but the command in its place is what other tests run meanwhile.
        built = self.dir / "target"
        built.mkdir()
        check(run("cp", "-a", BUILT, built))
        environment = os.environ | {"CARGO_TARGET_DIR": str(built)}
        install = ["cargo", "install", "--quiet", "--locked", "--path", "crates/farpage-cli"]
        check(run(*install, "--root", self.dir / "cargo", cwd=ROOT, env=environment))
        command = self.dir / "cargo" / "bin" / "farpage"
        self.assertEqual(files_below(command.parent), {"farpage"})
        return command

    def test_a_command_that_carries_its_library_works_alone(self):
        command = self.installed_by_cargo() if PROFILE == "release" else BUILT / "farpage"
        root = self.clean_root()
        (root.path / "usr/local/bin").mkdir(parents=True)
        shutil.copy(command, root.path / "usr/local/bin")
        kept = root.path / "var" / "cache" / "farpage"
        place = "/var/cache/farpage/[0-9a-f]{16}/libfarpage_preload.so"
        self.works_in(root, library=place)
        library, = (kept / name for name in files_below(kept))
        first = library.stat()
        # Others whom root runs programs as load it, too; and it is written once.
        self.works_in(root, "sh", "-ec", 'umask 077; exec "$@"', "sh", library=place)
        echo = ["--ram", "24M", "--", "sh", "-c", "echo $LD_PRELOAD"]
        told = check(root.run("farpage", "run", "--user", "nobody:nogroup", *echo))
        self.assertRegex(told, f"\\A{place}\n\\Z")
        self.assertEqual(library.stat().st_ino, first.st_ino)

        # Users have it in their cache, and root's does not count for them.
        (root.path / "tmp" / "home").mkdir()
        os.chown(root.path / "tmp" / "home", 65534, 65534)
        as_user = ["setpriv", "--reuid=nobody", "--regid=nogroup", "--clear-groups", "env", "HOME=/tmp/home",
                   "farpage", "run", "--force", "-q", *echo]
        place = r"/tmp/home/\.cache/farpage/[0-9a-f]{16}/libfarpage_preload\.so"
        self.assertRegex(check(root.run(*as_user)), f"\\A{place}\n\\Z")
        done = root.run(*[a.replace("/tmp/home", "/nowhere") for a in as_user])
        self.assertEqual(done.returncode, 125)
        self.assertIn("XDG_CACHE_HOME", done.stderr)

    def test_every_crate_can_be_packaged(self):
        out = self.dir / "packaged"
        package = ["cargo", "package", "--quiet", "--workspace", "--no-verify", "--allow-dirty"]
        check(run(*package, "--target-dir", out, cwd=ROOT))
        crates = sorted((out / "package").glob("*.crate"))
        self.assertEqual([crate.name for crate in crates],
                         sorted(f"{crate.name}-{VERSION}.crate" for crate in (ROOT / "crates").iterdir()))
        for crate in crates:
            with tarfile.open(crate) as archive:
                names = {name.split("/", 1)[1] for name in archive.getnames()}
            self.assertLessEqual({"README.md", "LICENSE-APACHE", "LICENSE-MIT", "Cargo.toml"}, names, crate.name)


class Source(Packages):
    def test_the_archive_needs_no_network(self):
        make("dist")
        check(run("tar", "--extract", "--file", TARGET / "dist" / f"farpage-{VERSION}.tar.gz", "--directory", self.dir))
        source = self.dir / f"farpage-{VERSION}"
        kept = {name: value for name, value in os.environ.items() if name != "CARGO_TARGET_DIR"}
        # Nothing that was downloaded before, and no network.
        environment = kept | {"CARGO_HOME": str(self.dir / "cargo"), "PROFILE": "release"}
        alone = ["unshare", "--net"] if os.geteuid() == 0 else []
        cargo = check(run("rustc", "--print", "sysroot")).strip() + "/bin"
        environment["PATH"] = f"{cargo}:{environment['PATH']}"
        check(run(*alone, "cargo", "metadata", "--format-version=1", "--locked", cwd=source, env=environment))
        if PROFILE == "release":
            check(run(*alone, "make", "build", cwd=source, env=environment))
            check(run(source / "target" / "release" / "farpage", "--version"))


if __name__ == "__main__":
    unittest.main()
