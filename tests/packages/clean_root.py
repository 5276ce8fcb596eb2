"""A root directory in which nothing is installed but what every Debian has, made of this machine's own packages: like
that of a fresh container, without the network. For tests that install something: `Root.run` runs commands in it, and
`Root.files` says what is there, so that before and after can be compared.

What is mounted for a command is mounted in a namespace of its own, and gone with it. The machine itself stays as it
is."""

import hashlib
import os
import re
import shutil
import stat
import subprocess
from pathlib import Path

DPKG = Path("/var/lib/dpkg")
# Nothing here is needed to run programs, and it is half of all files. (Directories stay: dpkg would notice.)
LEFT_OUT = re.compile(r"/usr/share/(doc|man|locale|info|i18n)/.")
# What dpkg and the tools for groups keep for themselves: databases, backups of what they wrote, logs, locks, a cache.
BOOKKEEPING = re.compile(r"var/lib/dpkg/(?!info/)|var/log/|etc/(group|gshadow)-$|etc/\.pwd\.lock$|etc/ld\.so\.cache$|"
                         r"var/cache/ldconfig/")

# $0 is the root, the arguments are the command.
ENTER = """
mount -t proc proc "$0/proc"
mount -t tmpfs dev "$0/dev"
cp -a /dev/null /dev/zero /dev/full /dev/random /dev/urandom "$0/dev"
if [ -e /dev/userfaultfd ]; then
    cp -a /dev/userfaultfd "$0/dev"
    chown 0:0 "$0/dev/userfaultfd"
    chmod 600 "$0/dev/userfaultfd"
fi
exec chroot "$0" "$@"
"""
NAMESPACES = ["unshare", "--mount", "--pid", "--fork", "--kill-child"]


def obstacle():
    """Why there can be none here; `None`: there can."""
    if os.geteuid() != 0:
        return "needs root"
    if not (DPKG / "status").exists() or shutil.which("dpkg-deb") is None:
        return "this machine has no dpkg"
    if subprocess.run([*NAMESPACES, "true"], capture_output=True, check=False).returncode != 0:
        return "no mount namespaces here"
    return None


def installed():
    """The fields of each installed package, by its name."""
    packages = {}
    for text in (DPKG / "status").read_text(encoding="utf-8").split("\n\n"):
        fields = dict(re.findall(r"^(\S+): (.*)$", text, re.M)) | {"": text.strip()}
        if fields.get("Status", "").endswith(" installed"):
            packages[fields["Package"]] = fields
    return packages


def names(relation):
    """`a (>= 1) | b:any, c` as [[a, b], [c]]."""
    clauses = [clause.split("|") for clause in relation.split(",") if clause.strip()]
    return [[re.match(r"[^\s:(]+", one.strip())[0] for one in clause] for clause in clauses]


def base(packages):
    """What is essential or required, and what that needs."""
    provided = {name[0]: package for package, fields in packages.items() for name in names(fields.get("Provides", ""))}
    wanted = [name for name, f in packages.items() if f.get("Essential") == "yes" or f.get("Priority") == "required"]
    found = set()
    while wanted:
        name = wanted.pop()
        name = name if name in packages else provided.get(name)
        if name in found or name is None:
            continue
        found.add(name)
        for relation in ("Depends", "Pre-Depends"):
            for clause in names(packages[name].get(relation, "")):
                wanted += [one for one in clause if one in packages or one in provided][:1]
    return sorted(found)


class Root:
    """The directory must be empty, and is the caller's to remove."""

    def __init__(self, directory):
        self.path = Path(directory)
        self.path.chmod(0o755)
        for name in ("bin", "sbin", "lib", "lib32", "lib64", "libx32"):
            if os.path.islink(f"/{name}"):
                to = os.readlink(f"/{name}").lstrip("/")
                (self.path / to).mkdir(parents=True)
                (self.path / name).symlink_to(to)
        packages = installed()
        chosen = base(packages)
        # Without it dpkg takes its database for one of long ago, and writes all of it anew.
        self._copy(str(DPKG / "info" / "format"))
        for name in chosen:
            self._copy_package(name)
        for name in ("proc", "dev", "var/lib/dpkg/updates", "var/lib/dpkg/triggers", "var/log"):
            (self.path / name).mkdir(parents=True, exist_ok=True)
        status = "\n\n".join(packages[name][""] for name in chosen)
        (self.path / "var/lib/dpkg/status").write_text(status + "\n", encoding="utf-8")
        for name in ("passwd", "group"):
            shutil.copyfile(self.path / f"usr/share/base-passwd/{name}.master", self.path / "etc" / name)
        subprocess.run(["ldconfig", "-r", self.path], check=True)

    def _copy_package(self, name):
        for file in [*DPKG.glob(f"info/{name}.*"), *DPKG.glob(f"info/{name}:*")]:
            self._copy(str(file))
            if file.suffix == ".list":
                for line in file.read_text(encoding="utf-8").splitlines():
                    if line != "/." and (os.path.isdir(line) or not LEFT_OUT.match(line)):
                        self._copy(line)

    def _copy(self, path):
        to = self.path / path.lstrip("/")
        try:
            status = os.lstat(path)
        except FileNotFoundError:
            return
        if os.path.lexists(to):
            return
        to.parent.mkdir(parents=True, exist_ok=True)
        if stat.S_ISDIR(status.st_mode):
            to.mkdir()
            shutil.copystat(path, to)
        else:
            shutil.copy2(path, to, follow_symlinks=False)
        os.chown(to, status.st_uid, status.st_gid, follow_symlinks=False)
        if stat.S_ISREG(status.st_mode):
            to.chmod(stat.S_IMODE(status.st_mode))

    def run(self, *argv, timeout=300):
        """Runs a command in the root, to its end."""
        environment = {"PATH": "/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "HOME": "/root", "LC_ALL": "C.UTF-8",
                       "DEBIAN_FRONTEND": "noninteractive"}
        argv = [*NAMESPACES, "sh", "-ec", ENTER, str(self.path), *(str(a) for a in argv)]
        return subprocess.run(argv, env=environment, cwd="/", stdin=subprocess.DEVNULL, capture_output=True, text=True,
                              timeout=timeout, check=False)

    def files(self):
        """What each path is: kind and permissions, owner and group, and what it holds. Without bookkeeping."""
        found = {}
        for directory, below, files in os.walk(self.path):
            for name in [*below, *files]:
                path = Path(directory, name)
                short = str(path.relative_to(self.path))
                if BOOKKEEPING.match(short):
                    continue
                status = path.lstat()
                content = ""
                if path.is_symlink():
                    content = os.readlink(path)
                elif path.is_file():
                    content = hashlib.sha256(path.read_bytes()).hexdigest()
                found[short] = (oct(status.st_mode), status.st_uid, status.st_gid, content)
        return found
