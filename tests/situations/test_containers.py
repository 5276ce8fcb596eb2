"""What container runtimes refuse: their seccomp profiles leave out what forks of managed programs used to need."""

import errno
import unittest

from situation import FARPAGE, Situation, build, without_waiting

CALLS = {
    "process_vm_readv": 310, "process_vm_writev": 311, "kcmp": 312, "ptrace": 101, "userfaultfd": 323,
    "perf_event_open": 298, "io_uring_setup": 425, "io_uring_enter": 426, "io_uring_register": 427, "pidfd_open": 434,
    "clone3": 435, "close_range": 436, "pidfd_getfd": 438, "process_madvise": 440,
}
# What the default profiles of Docker, Podman and containerd leave out of what farpage or its tests use (without
# capabilities).
CONTAINER = ["userfaultfd", "pidfd_getfd", "process_madvise", "perf_event_open", "kcmp", "io_uring_setup", "io_uring_enter",
             "io_uring_register"]
# Older ones, or for older kernels.
STRICT = [*CONTAINER, "ptrace", "process_vm_readv", "process_vm_writev", "pidfd_open", "close_range"]


def refusing(calls, error):
    return f"{error}:" + ",".join(str(CALLS[call]) for call in calls)


DOCKER = [refusing(CONTAINER, errno.EPERM), refusing(["clone3"], errno.ENOSYS)]
PODMAN = [refusing([*CONTAINER, "clone3"], errno.ENOSYS)]


class Containers(Situation):
    def run_refused(self, filters, *argv, ram="24M", options=("--verify",)):
        done = self.run_plain(build("refuse.c"), *filters, "--", FARPAGE, "run", "--ram", ram, *options, "--", *argv)
        done.stderr = without_waiting(done.stderr)
        return done

    def stress(self, filters, *options, program="stress"):
        stress = self.stress_program(program)
        arguments = ["--threads", 2, "--mb", 64, "--ops", 60, "--seed", 12, *options] if program == "stress" else [32, 1]
        ran = self.run_refused(filters, stress, *arguments)
        self.assertEqual((ran.returncode, ran.stderr), (0, ""), ran.stdout)

    def test_docker(self):
        self.stress(DOCKER)

    def test_podman_and_containerd(self):
        self.stress(PODMAN)

    def test_what_else_is_refused(self):
        self.stress([refusing(STRICT, errno.ENOSYS)], "--without", "vm")

    def test_children_by_system_calls(self):
        self.stress([refusing(STRICT, errno.EPERM)], program="clones")

    def test_messages_arrive(self):
        out = self.run_refused(DOCKER, "true", options=["-v"])
        self.assertIn("farpage: budget", out.stderr)
        ran = self.run_refused(DOCKER, "sh", "-c", "head -c 60M /dev/zero | tail -c 50M >/dev/null", options=["-v"])
        self.assertIn("farpage: the budget is near", ran.stderr)

    def test_doctor_and_run_say_what_forks_lack(self):
        doctor = self.run_plain(build("refuse.c"), *DOCKER, "--", FARPAGE, "doctor", "-v")
        self.assertRegex(doctor.stdout, r"descriptors for children +yes, over a socket \(pidfd_getfd: .*EPERM")
        none = [refusing(["pidfd_getfd"], errno.EPERM), f"{errno.EPERM}:41,53"]  # socket, socketpair
        doctor = self.run_plain(build("refuse.c"), *none, "--", FARPAGE, "doctor", "-v")
        self.assertRegex(doctor.stdout, r"descriptors for children +no: ")
        self.assertIn("cannot fork here: allow pidfd_getfd", doctor.stdout)
        # With nothing managed children live, and once it is said that they have no budget.
        ran = self.run_refused(none, "sh", "-c", "for i in 1 2 3; do (echo $i); done", options=[])
        self.assertEqual((ran.returncode, ran.stdout), (0, "1\n2\n3\n"))
        self.assertRegex(ran.stderr, r"\Afarpage: [^\n]*cannot fork here: [^\n]*\n(farpage: children go on without[^\n]*\n)?\Z")
        # With something managed, fork fails.
        ran = self.run_refused(none, build("limits.c"), "children", 3, 48, options=[])
        self.assertEqual((ran.returncode, ran.stdout), (0, "no child, 0 bad\n"), ran.stderr)


if __name__ == "__main__":
    unittest.main()
