# What there is to do with this tree. Start with: make help, make run, make test.

# rustup installs here; a fresh machine's PATH does not have it yet.
export PATH := $(or $(CARGO_HOME),$(HOME)/.cargo)/bin:$(PATH)

SHELL := /bin/sh
export CARGO_TARGET_DIR := $(CURDIR)/target
CFLAGS ?= -O2 -g
WARNINGS := -Wall -Wextra
TESTS := target/tests
STRESS_SOURCES := $(addprefix tests/stress/,stress.c model.c ops_mem.c ops_sys.c ops_fork.c)
FARPAGE := target/release/farpage

# The profile of what is built and installed; tests build with the profile checked (Cargo.toml). It goes to what they
# run.
PROFILE ?= release
test test-one unit stress situations programs: PROFILE = checked
export PROFILE

# For make soak: SEED=N repeats one seed; SECONDS is the time of each of its runs.
SECONDS ?= 60
SEED ?= 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16
SOAK_MB ?= 512
SOAK_RAM ?= 128M

.PHONY: all help check test-one fuzz coverage hooks run setup setup-tests build build-checked install uninstall deb \
	wheel dist told test-all test-install test-packages test-python test-programs test-loom test lint unit models loom \
	tsan miri breakages stress situations programs programs-all soak bench bench-check bench-suite pictures book clean
.NOTPARALLEL:

all: build

## make help: this list
help:
	@sed -n 's/^## make //p' Makefile | awk -F': ' '{ printf "%-28s %s\n", $$1, substr($$0, length($$1) + 3) }'

## make check: what fails fast: format, clippy, unit tests of the pure part
check: setup
	cargo fmt --all --check
	cargo clippy --workspace --all-targets --quiet -- -D warnings
	cargo test --quiet -p farpage-swap --features seed --lib

## make test-one NAME=...: unit tests, and situations, with NAME in their name
NAME ?=
test-one: build
	@[ -n "$(NAME)" ] || { echo "make test-one NAME=part-of-a-name" >&2; exit 1; }
	cargo test --workspace --profile checked --quiet $(NAME)
	tests/run.py situations/$(NAME)

## make fuzz [FUZZ_MS=60000]: what reads others' input, fed at random for so long each (make unit: a second)
## guided by coverage with cargo install cargo-bolero: cargo bolero test -p farpage-ipc conf::tests::fuzz_conf_text
FUZZ_MS ?= 60000
fuzz:
	BOLERO_RANDOM_TEST_TIME_MS=$(FUZZ_MS) BOLERO_RANDOM_ITERATIONS=1000000000 \
		cargo test --workspace --profile checked --quiet -- fuzz_

## make coverage: what the unit tests run, by file (needs cargo-llvm-cov: cargo install cargo-llvm-cov)
coverage:
	cargo llvm-cov --workspace --summary-only

## make hooks: a git hook that checks format and width of lines before a commit
hooks:
	install -m 755 scripts/pre-commit "$$(git rev-parse --git-path hooks)/pre-commit"

## make run: install what is missing, build, and run the main job on real input
run: setup build
	@scripts/demo.py

## make test: everything that CI runs, in as many lanes as there are CPUs and one; each stage has a target of its own
test: setup-tests
	tests/run.py

## make test-all: that, and what is longer, some of it with the build that is released (an hour)
# The second run proves of a release (link-time optimisation, panics that abort, no assertions) what the first one
# proves of the checked build: what is packaged, situations, stress, real programs. Besides: cargo install, the Python
# package with large packages and in other Pythons, models with more preemptions, programs that are slow, and lint of
# the command without its features, for which half of all crates are read once more.
test-all: test
	cargo clippy --package farpage-cli --no-default-features --profile checked --quiet -- -D warnings
	$(MAKE) --no-print-directory build
	PROFILE=release tests/run.py packages stress situations programs
	$(MAKE) --no-print-directory PROFILE=release loom programs-all

setup:
	@scripts/setup.sh

setup-tests: setup
	@scripts/setup-tests.sh

# The command and the library it preloads lie side by side in target/release. So the command need not carry the library,
# as it does for cargo install. Measurements for developers: cargo run --release -p seed-bench
build:
	cargo build --profile $(PROFILE) --quiet $(PARTS_$(PROFILE))

PARTS_release := --no-default-features --features farpage-cli/top $(addprefix -p ,farpage-cli farpage-preload farpage-c)
# Tests and what they run, in one go: libraries of other dependencies' features would be built anew.
PARTS_checked := --workspace --lib --bins --tests

BUILT := target/$(PROFILE)
# Where make install puts things; DESTDIR and the other places for packagers.
PREFIX ?= /usr/local
DESTDIR ?=
LIBDIR ?= $(PREFIX)/lib
# The command looks for the library in ../lib/farpage.
OWNDIR := $(PREFIX)/lib/farpage
DOCDIR ?= $(PREFIX)/share/doc/farpage
MANDIR ?= $(PREFIX)/share/man
BASHDIR ?= $(PREFIX)/share/bash-completion/completions
ZSHDIR ?= $(PREFIX)/share/zsh/site-functions
FISHDIR ?= $(PREFIX)/share/fish/vendor_completions.d
VERSION := $(shell sed -n 's/^version = "\(.*\)"/\1/p' Cargo.toml)
INSTALL ?= install
# STRIP= keeps symbols and line numbers: seven times as large.
STRIP ?= strip
STRIPPED := $(if $(STRIP),-s --strip-program=$(STRIP))
PAGES := crates/farpage-cli/pages
DOCUMENTS := README.md CHANGELOG.md LICENSE-APACHE LICENSE-MIT crates/farpage-c/examples/table.c \
	$(addprefix packaging/,60-userfaultfd.rules sysusers.conf farpage-guard.service service.conf compose.yaml \
	kubernetes.yaml Containerfile)
# The pages for users, and what these show. Those for developers belong to the source.
DOCUMENT_PAGES := docs/README.md $(wildcard docs/user/*.md docs/pictures/*)
NOT_INSTALLED := ((docs/)?(dev|decisions|measurements)|crates|tests|python)/|CONTRIBUTING\.md

## make install [PREFIX=/usr/local] [DESTDIR=]: the command with its manual and completions, and the C library
install: build
	$(INSTALL) -d $(addprefix $(DESTDIR),$(PREFIX)/bin $(OWNDIR) $(LIBDIR)/pkgconfig $(PREFIX)/include $(MANDIR)/man1 \
		$(BASHDIR) $(ZSHDIR) $(FISHDIR) $(DOCDIR))
	$(INSTALL) $(STRIPPED) -m 755 $(BUILT)/farpage $(DESTDIR)$(PREFIX)/bin
	$(INSTALL) $(STRIPPED) -m 755 $(BUILT)/libfarpage_preload.so $(DESTDIR)$(OWNDIR)
	# Where it was before: there it would be found first.
	rm -f $(DESTDIR)$(PREFIX)/bin/libfarpage_preload.so
	$(INSTALL) -m 644 crates/farpage-c/include/farpage.h $(DESTDIR)$(PREFIX)/include
	$(INSTALL) -m 644 $(BUILT)/libfarpage.a $(DESTDIR)$(LIBDIR)
	$(if $(STRIP),$(STRIP) --strip-debug $(DESTDIR)$(LIBDIR)/libfarpage.a)
	$(INSTALL) $(STRIPPED) -m 755 $(BUILT)/libfarpage.so $(DESTDIR)$(LIBDIR)/libfarpage.so.$(VERSION)
	ln -sf libfarpage.so.$(VERSION) $(DESTDIR)$(LIBDIR)/libfarpage.so.0
	ln -sf libfarpage.so.0 $(DESTDIR)$(LIBDIR)/libfarpage.so
	sed 's|@PREFIX@|$(PREFIX)|; s|@LIBDIR@|$(patsubst $(PREFIX)/%,$${prefix}/%,$(LIBDIR))|; s|@VERSION@|$(VERSION)|' \
		crates/farpage-c/farpage.pc.in > $(DESTDIR)$(LIBDIR)/pkgconfig/farpage.pc
	$(INSTALL) -m 644 $(PAGES)/man1/*.1 $(DESTDIR)$(MANDIR)/man1
	$(INSTALL) -m 644 $(PAGES)/bash/farpage $(DESTDIR)$(BASHDIR)
	$(INSTALL) -m 644 $(PAGES)/zsh/_farpage $(DESTDIR)$(ZSHDIR)
	$(INSTALL) -m 644 $(PAGES)/fish/farpage.fish $(DESTDIR)$(FISHDIR)
	$(INSTALL) -m 644 $(DOCUMENTS) $(DESTDIR)$(DOCDIR)
	$(INSTALL) -d $(addprefix $(DESTDIR)$(DOCDIR)/,$(sort $(dir $(DOCUMENT_PAGES))))
	for page in $(DOCUMENT_PAGES); do $(INSTALL) -m 644 $$page $(DESTDIR)$(DOCDIR)/$$page || exit; done
	# What is installed is beside the README. Of what is not, a row of a table goes, a reference in parentheses goes, and
	# another link becomes its words.
	sed -i -zE -e 's#\]\(((\.\./)*)(packaging|crates/farpage-c/examples)/#](\1#g' \
		-e 's#\n\|[^\n]*\]\((\.\./)*($(NOT_INSTALLED))[^\n]*##g' \
		-e 's#[[:space:]]+\(\[[^]]*\]\((\.\./)*($(NOT_INSTALLED))[^)]*\)\)##g' \
		-e 's#\[([^]]*)\]\((\.\./)*($(NOT_INSTALLED))[^)]*\)#\1#g' \
		$(addprefix $(DESTDIR)$(DOCDIR)/,$(filter %.md,$(DOCUMENTS) $(DOCUMENT_PAGES)))
	# Programs find a new library by the loader's cache. Only root can write it, and packagers have their own way.
	$(if $(DESTDIR),,-@ldconfig 2>/dev/null || true)

## make uninstall [PREFIX=/usr/local] [DESTDIR=]: takes away what make install put there
uninstall:
	rm -f $(addprefix $(DESTDIR),$(PREFIX)/bin/farpage $(OWNDIR)/libfarpage_preload.so $(PREFIX)/include/farpage.h \
		$(addprefix $(LIBDIR)/,libfarpage.a libfarpage.so libfarpage.so.0 libfarpage.so.$(VERSION) pkgconfig/farpage.pc) \
		$(addprefix $(MANDIR)/man1/,$(notdir $(wildcard $(PAGES)/man1/*.1))) $(BASHDIR)/farpage $(ZSHDIR)/_farpage \
		$(FISHDIR)/farpage.fish $(addprefix $(DOCDIR)/,$(notdir $(DOCUMENTS)) $(DOCUMENT_PAGES)))
	rmdir $(DESTDIR)$(OWNDIR) $(addprefix $(DESTDIR)$(DOCDIR)/,$(filter-out docs/,$(sort $(dir $(DOCUMENT_PAGES)))) docs) \
		$(DESTDIR)$(DOCDIR) 2>/dev/null || true
	$(if $(DESTDIR),,-@ldconfig 2>/dev/null || true)

told:
	@scripts/project.py

## make deb: Debian packages of the command and of the C library, in target/deb
deb: build told
	rm -rf target/deb
	$(MAKE) --no-print-directory install DESTDIR=$(CURDIR)/target/deb/farpage PREFIX=/usr STRIP=strip \
		LIBDIR=/usr/lib/x86_64-linux-gnu ZSHDIR=/usr/share/zsh/vendor-completions >/dev/null
	scripts/deb.py target/deb/farpage target/deb

## make wheel: the Python package, in target/wheel
WHEEL := target/wheel
wheel: build told
	@rm -rf $(WHEEL)
	@$(MAKE) --no-print-directory install DESTDIR=$(CURDIR)/$(WHEEL)/stage PREFIX=/usr STRIP=strip >/dev/null
	@scripts/notices.py > $(WHEEL)/stage/third-party.txt
	@/usr/bin/python3 -m venv $(WHEEL)/venv
	@FARPAGE_STAGE=$(CURDIR)/$(WHEEL)/stage $(WHEEL)/venv/bin/pip --disable-pip-version-check wheel --no-deps --quiet \
		--wheel-dir $(WHEEL) ./python
	@ls $(WHEEL)/*.whl

## make dist: the sources of the last commit with all crates, which build without network, in target/dist
DIST := farpage-$(VERSION)
dist: told
	@rm -rf target/dist
	@mkdir -p target/dist/$(DIST)
	@git archive HEAD | tar --extract --directory target/dist/$(DIST)
	@# The compiler is the builder's choice. Libraries of Windows are binaries, and half of all bytes.
	@cd target/dist/$(DIST) && rm rust-toolchain.toml && cargo vendor --locked --quiet && \
		rm -r vendor/winapi-*-pc-windows-gnu/lib && \
		printf '\n[source.crates-io]\nreplace-with = "vendored"\n\n[source.vendored]\ndirectory = "vendor"\n' \
			>> .cargo/config.toml
	@tar --directory target/dist --owner=0 --group=0 --sort=name --mtime="@$$(git log -1 --format=%ct)" \
		--create $(DIST) | gzip -n9 > target/dist/$(DIST).tar.gz
	@rm -rf target/dist/$(DIST)
	@ls target/dist/$(DIST).tar.gz

# The package in a fresh environment, as an unprivileged user; of a release, in those of other Pythons, too.
test-python: wheel
	scripts/test_wheel.py $(WHEEL)/*.whl

# What a C programmer does after make install, in a directory of its own.
test-install:
	@rm -rf target/install
	@$(MAKE) --no-print-directory install PREFIX=$(CURDIR)/target/install DESTDIR= >/dev/null
	@export PKG_CONFIG_PATH=$(CURDIR)/target/install/lib/pkgconfig && \
	$(CC) $(WARNINGS) crates/farpage-c/examples/table.c -o target/install/shared \
		$$(pkg-config --cflags --libs farpage) -Wl,-rpath,$(CURDIR)/target/install/lib && \
	$(CC) $(WARNINGS) crates/farpage-c/examples/table.c -o target/install/static \
		$$(pkg-config --static --cflags --libs farpage | sed 's/-lfarpage/-l:libfarpage.a/') && \
	target/install/shared && target/install/static && target/install/bin/farpage --version

# What installs farpage: where it puts what, that it works from there, and that it takes it away again.
test-packages: build
	python3 -B -m unittest discover -s tests/packages

# With the profile of the tests: macros, build scripts and others' C code are built once for both.
lint:
	cargo fmt --all --check
	cargo clippy --workspace --all-targets --profile checked --quiet -- -D warnings
	scripts/links.py
	scripts/notices.py --check

# The slot allocator and the swap table under loom: every interleaving of two threads with at most so many preemptions.
LOOM_PREEMPTIONS ?= 2
test-loom:
	LOOM_MAX_PREEMPTIONS=$(LOOM_PREEMPTIONS) LOOM_MAX_BRANCHES=20000 RUSTFLAGS="--cfg loom" CARGO_TARGET_DIR=target/loom \
		cargo test -p farpage-swap -p seed-bench --profile checked --quiet --lib loom_tests

## make loom: the same, deeper (minutes)
loom:
	$(MAKE) test-loom LOOM_PREEMPTIONS=5

# The threaded tests of the slot allocator under ThreadSanitizer and under miri. Both need a nightly toolchain with
# rust-src and miri: rustup toolchain install nightly --component rust-src,miri
HOST = $(shell rustc -vV | sed -n 's/^host: //p')

## make tsan: the allocator's threaded tests under ThreadSanitizer (builds the standard library: minutes)
tsan:
	CARGO_TARGET_DIR=target/tsan CARGO_PROFILE_RELEASE_PANIC=unwind CARGO_PROFILE_RELEASE_LTO=off \
		RUSTFLAGS="-Zsanitizer=thread" \
		cargo +nightly test -Zbuild-std --target $(HOST) -p farpage-swap --features seed --release --quiet --lib -- \
		threads swapoff:: worker::

## make miri: the same, shorter, under miri
miri:
	CARGO_TARGET_DIR=target/miri cargo +nightly miri test -p farpage-swap --features seed --quiet --lib -- \
		threads swapoff:: worker::

## make breakages: takes guards of allocator and engine away, one by one; a test or a model must notice (15 minutes)
breakages:
	scripts/breakages.py

# Programs of one source.
SINGLE := $(addprefix $(TESTS)/,ahead arenas clones confined first handlers huge locked lost mallocs member moves \
	patterns probe_syscalls sparse storm wipe)

test-programs: $(TESTS)/stress $(SINGLE)

$(SINGLE): $(TESTS)/%: tests/stress/%.c
	@mkdir -p $(TESTS)
	$(CC) $(CFLAGS) $(WARNINGS) -pthread -o $@ $<

$(TESTS)/stress: $(STRESS_SOURCES) tests/stress/stress.h
	@mkdir -p $(TESTS)
	$(CC) $(CFLAGS) $(WARNINGS) -pthread -o $@ $(STRESS_SOURCES)

build-checked:
	cargo build --profile checked --quiet $(PARTS_checked)

# Jobs of tests, side by side: tests/run.py says how. unit needs the programs of the tests, the others the command, too.
## make unit, models, stress, situations, programs [ONLY=part-of-a-name]: these of make test
ONLY ?=
unit: build-checked
models:
stress situations programs: build build-checked test-programs
unit models stress situations programs:
	tests/run.py $@$(addprefix /,$(ONLY))

## make programs-all: every real program, also those that are known to fail or to be slow
programs-all: build test-programs
	tests/programs/run.py --quick
	tests/programs/run.py --quick --attach

## make soak [SECONDS=60] [SEED="1 2 3"]: the stress program for a long time, many seeds, several thread counts
soak: build test-programs
	tests/stress/attach.py $(FARPAGE) $(TESTS)/stress 1 50
	PROFILE=release ATTACHES=200 ROUNDS=20 tests/run.py situations/again_and_again situations/signals_meanwhile
	@for seed in $(SEED); do \
		for threads in 2 4 16; do \
			echo "seed $$seed, $$threads threads"; \
			$(FARPAGE) run --ram $(SOAK_RAM) --verify -- $(TESTS)/stress --seed $$seed --threads $$threads \
				--mb $(SOAK_MB) --seconds $(SECONDS) || exit 1; \
		done; \
	done

# The table of docs/measurements: medians and ranges over the rounds; about ten minutes. The kernel's side needs root.
BENCH_WORKLOADS ?= seq-read,rand-read,zipf-read,rand-rmw,fill
BENCH_ROUNDS ?= 5
BENCH_MODES ?= region run
BENCH_OUT ?= target/bench

## make bench: farpage against the kernel's swap; report in target/bench
bench: setup build
	cargo build --profile $(PROFILE) --quiet -p seed-bench
	@mkdir -p $(BENCH_OUT)
	@for mode in $(BENCH_MODES); do \
		echo "mode $$mode"; \
		$(BUILT)/farpage-bench compare --mode $$mode --rounds $(BENCH_ROUNDS) --workload $(BENCH_WORKLOADS) \
			--json $(BENCH_OUT)/compare-$$mode.json || exit 1; \
	done

## make bench-check [RECORD=--record]: whether this tree is slower than the recorded one; runs both in turns
RECORD ?=
bench-check: setup
	scripts/bench_check.py $(RECORD)

## make bench-suite [SUITE=sort,node]: common programs on the kernel's swap and under farpage; JSON in target/bench
SUITE ?=
bench-suite: setup build
	@scripts/setup-suite.sh
	@mkdir -p $(BENCH_OUT)
	$(FARPAGE) bench program --suite $(addprefix --only ,$(SUITE)) --python target/suite-venv/bin/python3 \
		--rounds $(BENCH_ROUNDS) --json $(BENCH_OUT)/suite.json

## make pictures: those of README.md and docs, by real programs, in docs/pictures (some minutes; says what to install)
pictures: build
	scripts/pictures.py

## make book: the pages below docs as a site, in target/book (installs mdbook if it is missing: some minutes)
book:
	scripts/links.py
	@command -v mdbook >/dev/null || env -u CARGO_TARGET_DIR cargo install --locked mdbook
	scripts/book.py summary > docs/SUMMARY.md
	cd docs && mdbook build

clean:
	cargo clean
