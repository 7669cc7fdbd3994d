// Package harness is what the behaviour tests have in common, those of the root package and
// those of the folders beside this one: it makes clients, sandboxes and processes for them,
// and checks that they leave nothing.
package harness

import (
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/seed-1a2d6d8f/sandbox/internal/claim"
	"github.com/seed-1a2d6d8f/sandbox/internal/enginetest"
)

// Soaking reports whether all is tested that can be, however long it takes.
func Soaking() bool { return os.Getenv("SANDBOX_SOAK") != "" }

// Soak leaves a long test to make soak.
func Soak(t *testing.T) {
	t.Helper()
	if !Soaking() {
		t.Skip("a long test: make soak runs it")
	}
}

// Rounds is how often a test does what may go wrong at times: less in a plain run.
func Rounds(plain, soak int) int {
	if Soaking() {
		return soak
	}
	return plain
}

// Seeds are those of a test's random cases: the same ones in each plain run, and others in each soak. SANDBOX_SEED is the
// only one, if it is set, to repeat a case.
func Seeds(plain, soak int) []uint64 {
	if only, err := strconv.ParseUint(os.Getenv("SANDBOX_SEED"), 10, 64); err == nil {
		return []uint64{only}
	}
	first := uint64(0)
	if Soaking() {
		first = uint64(rand.Uint32())
	}
	seeds := make([]uint64, Rounds(plain, soak))
	for i := range seeds {
		seeds[i] = first + uint64(i)
	}
	return seeds
}

// Every selects every nth of what is numbered, beginning with another one in each run: soak tests have all.
func Every(n int) func(i int) bool {
	first := rand.IntN(n)
	return func(i int) bool { return Soaking() || i%n == first }
}

// EveryNth returns what [Every] selects of what is alike, and all of less than n.
func EveryNth[T any](n int, all []T) (some []T) {
	if len(all) < n {
		return all
	}
	at := Every(n)
	for i, one := range all {
		if at(i) {
			some = append(some, one)
		}
	}
	return some
}

var (
	atEnd      []func()
	atEndMutex sync.Mutex
)

// AtEnd has f called after the last test, for what tests share.
func AtEnd(f func()) {
	atEndMutex.Lock()
	defer atEndMutex.Unlock()
	atEnd = append(atEnd, f)
}

// Main runs a package's tests, or a role of theirs, and ends the process. The tests give
// the engine back as they found it and leave no goroutine, or Main fails them. Where others
// use the engine at the same time, as other packages' tests do in ci/test, Main is to look
// with SANDBOX_TEST_SHARED=1, or -short, at what belongs to its own tests' names alone. The
// functions are called at last.
//
// Without an engine it fails, but with -short: then tests that need one are left out, see
// [Story], and so are examples.
func Main(m *testing.M, last ...func() error) {
	if role := os.Getenv(roleVar); role != "" {
		shortenDeath()
		if err := roles[role](os.Args[1:]); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	flag.Parse()
	if flag.Lookup("test.list").Value.String() != "" {
		os.Exit(m.Run()) // it runs nothing
	}
	shortenDeath()
	others := goleak.IgnoreCurrent() // which imported packages start
	if p := flag.Lookup("test.parallel"); p.Value.String() == strconv.Itoa(runtime.GOMAXPROCS(0)) {
		// Tests wait for the engine, mostly, and not for a CPU; with other packages' beside
		// them the engine is what there is too little of.
		parallel := "8"
		if shared() {
			parallel = "5"
		}
		_ = p.Value.Set(parallel)
	}
	code := 0
	if testing.Short() && !enginetest.Answers() {
		enginetest.LeaveOut("^Example")
		code = m.Run()
	} else {
		code = withEngine(m)
	}
	for _, f := range last {
		if err := f(); err != nil {
			fmt.Fprintln(os.Stderr, err)
			code = max(code, 1)
		}
	}
	if code == 0 {
		err := goleak.Find(others)
		for deadline := time.Now().Add(30 * time.Second); err != nil && time.Now().Before(deadline); err = goleak.Find(others) {
		}
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			code = 1
		}
	}
	os.Exit(code)
}

func withEngine(m *testing.M) (code int) {
	defer enginetest.Watch()()
	before, err := left()
	if err != nil {
		fmt.Fprintln(os.Stderr, "the tests need a Docker Engine; `make test` starts one:", err)
		return 1
	}
	code = m.Run()
	for _, f := range atEnd {
		f()
	}
	if code == 0 {
		code = leaks(before)
	}
	return code
}

// shortenDeath makes tests of dead processes take seconds less: no test sets the engine's clock.
func shortenDeath() { claim.ConfirmAfter = time.Second }

// shared reports whether others use the engine at the same time. With -short nearly everybody runs
// all packages, which go test runs at once.
func shared() bool { return testing.Short() || os.Getenv("SANDBOX_TEST_SHARED") != "" }

// left names what the engine holds that may be these tests'.
func left() ([]string, error) {
	if shared() {
		return enginetest.Leftovers(enginetest.OfNames(namePrefix))
	}
	return enginetest.Leftovers(enginetest.IgnoreGuest())
}

// leaks fails if something is left. What a program that was killed left is for sweeps, which take
// it when its leases are over.
func leaks(before []string) int {
	s, err := openStore("")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer s.Engine.Close()
	for began := time.Now(); ; time.Sleep(time.Second) {
		now, err := left()
		now = slices.DeleteFunc(now, func(l string) bool { return slices.Contains(before, l) })
		if err == nil && len(now) == 0 {
			return 0
		}
		if time.Since(began) > 2*claim.Lease {
			fmt.Fprintf(os.Stderr, "left on the engine (%v):\n\t%s\n", err, strings.Join(now, "\n\t"))
			return 1
		}
		_ = sweepOf(s) // if the engine does not answer, left fails
	}
}
